// bert_lamb(weight_1..n, gradient_1..n, mean_1..n, var_1..n) -> ratios (n,): one update of n float32 tensors
// in place by LAMB or Adam (training/optimizer/optimizer.py has the formulas). Weights, means and vars are
// changed, gradients are not; ratios are what each tensor's update was multiplied with besides lr, 1 where
// the tensor is not adapted. With state="bfloat16" means and vars are of that type, stored by stochastic
// rounding; MXNet has no such arrays for operators of others, so they are uint8 with an axis of 2 behind the
// weight's.
//
// Attributes: num_tensors; lr, rescale, beta1, beta2, epsilon, weight_decay; t, the number of this update
// (from 1), and bias_correction (0 or 1); lower_bound and upper_bound for ||weight|| in the ratio (0 and
// infinity unless given); decayed and adapted: n digits, 1 for the tensors with weight decay and for those
// with the ratio ||weight|| / ||u||; state, "float32" (also where it is left out) or "bfloat16", and with the
// latter seed, a whole number below 2^64: the roundings depend on it, on t and on the element alone.
//
// With packed="0+1+2,5" two more inputs follow, which are changed: copies of tensors 0, 1 and 2 below each
// other and of tensor 5, as bert_pack makes them for its dtype, packed_dtype. They are those of
// the new weights; on tiles they are made of rows that the update has left in the cache.
//
// The results are the same for any number of threads: norms are sums in float64 over chunks, added in order.
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <sstream>
#include <thread>

#include "chunks.h"
#include "dense_products.h"
#include "lamb_kernels.h"
#include "operator.h"

namespace operators {
namespace {

// Adapted tensors are read twice: the ratio is known when all elements have been seen. Their second pass
// follows when at least this many elements have had their first, and finds some of them (12 bytes each) in
// the shared cache. Waiting for a tensor's last chunk costs time: several small ones are waited for together.
constexpr int64_t kGroupSize = 1 << 19;

// A chunk that is packed at once has so many rows, fewer where it would be larger than the cache allows; the
// rows of a step of the product at least.
constexpr int64_t kMostRows = 128, kFewestRows = 32, kPackedChunk = 1 << 17;

// Tensors whose copies lie in one packed array, one below the other.
using Group = std::vector<int>;

struct Settings {
  AdamRule rule;
  float lr, weight_decay;
  double lower_bound, upper_bound;
  std::string decayed, adapted;
  bool low;          // whether the moments are bfloat16
  uint64_t key = 0;  // of this update's roundings
  std::vector<Group> packed;
  Precision packed_for = Precision::float32;
};

// Where the rows of a tensor go as soon as they are updated: below `first` others of `total`.
struct Place {
  PackedForms forms;
  int64_t columns = 0, first = 0, total = 0;  // no columns: nowhere
};

struct Tensor {
  float* weight;
  const float* gradient;
  void* mean;
  void* var;
  uint64_t key;  // of its roundings
  float decay;
  bool adapted;
  Place place;
  size_t first_chunk = 0, num_chunks = 0;
  std::atomic<size_t> unfinished{0};  // chunks whose norms are to come
  std::atomic<bool> ready{false};     // the ratio is there
  float ratio = 1.f;
};

// One chunk in one of the two passes.
struct Task {
  size_t chunk;
  bool second;
};

double number_or(const Attributes& attributes, const char* name, double otherwise) {
  return attributes.count(name) ? number(attributes, name) : otherwise;
}

const std::string& text(const Attributes& attributes, const char* name) {
  const auto found = attributes.find(name);
  if (found == attributes.end()) throw std::runtime_error(std::string("attribute ") + name + " is missing");
  return found->second;
}

// A bijection of 64 bits whose results look random: the finalizer of SplitMix64 (Steele, Lea, Flood, 2014).
uint64_t scrambled(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// A key that looks random and differs from those of other `number`s below the same `key`.
uint64_t key_below(uint64_t key, uint64_t number) {
  return scrambled(key + (number + 1) * 0x9e3779b97f4a7c15u);
}

uint64_t seed(const Attributes& given) {
  const std::string& digits = text(given, "seed");
  require(
      !digits.empty() && digits.size() <= 20 && digits.find_first_not_of("0123456789") == std::string::npos,
      "seed must be a whole number");
  try {
    return std::stoull(digits);
  } catch (const std::out_of_range&) {
    throw std::runtime_error("seed must be below 2^64");
  }
}

bool has_bfloat16(const Attributes& given) {
  const auto state = given.find("state");
  if (state == given.end() || state->second == "float32") return false;
  if (state->second == "bfloat16") return true;
  throw std::runtime_error("state=" + state->second + " is neither float32 nor bfloat16");
}

// Throws std::runtime_error unless every tensor is there and none is named twice.
std::vector<Group> groups(const std::string& list, int count) {
  std::vector<Group> read;
  std::vector<bool> named(count, false);
  std::istringstream all(list);
  for (std::string one; std::getline(all, one, ',');) {
    read.emplace_back();
    std::istringstream members(one);
    for (std::string word; std::getline(members, word, '+');) {
      const bool digits =
          !word.empty() && word.size() < 10 && word.find_first_not_of("0123456789") == std::string::npos;
      const int tensor = digits ? std::stoi(word) : count;
      require(tensor < count && !named[tensor], "packed must name tensors, each once");
      named[tensor] = true;
      read.back().push_back(tensor);
    }
    require(!read.back().empty(), "packed has an empty group");
  }
  return read;
}

Settings settings(const Attributes& given) {
  const float beta1 = number(given, "beta1"), beta2 = number(given, "beta2");
  const bool correct = integer(given, "bias_correction");
  const double t = number(given, "t");
  Settings read;
  read.rule = {static_cast<float>(number(given, "rescale")),
               beta1,
               beta2,
               static_cast<float>(number(given, "epsilon")),
               correct ? static_cast<float>(1 / (1 - std::pow(static_cast<double>(beta1), t))) : 1.f,
               correct ? static_cast<float>(1 / (1 - std::pow(static_cast<double>(beta2), t))) : 1.f};
  read.lr = number(given, "lr");
  read.weight_decay = number(given, "weight_decay");
  read.lower_bound = number_or(given, "lower_bound", 0);
  read.upper_bound = number_or(given, "upper_bound", std::numeric_limits<double>::infinity());
  read.decayed = text(given, "decayed");
  read.adapted = text(given, "adapted");
  read.low = has_bfloat16(given);
  if (given.count("packed")) {
    read.packed = groups(text(given, "packed"), integer(given, "num_tensors"));
    read.packed_for = precision_named(text(given, "packed_dtype"));
  }
  if (read.low) read.key = key_below(key_below(0, seed(given)), static_cast<uint64_t>(t));
  return read;
}

float ratio(const Settings& settings, const NormSquares& squares) {
  const double weight =
      std::min(std::max(std::sqrt(squares.weight), settings.lower_bound), settings.upper_bound);
  const double update = std::sqrt(squares.update);
  return weight == 0 || update == 0 ? 1.f : static_cast<float>(weight / update);
}

// The order in which chunks are taken. In their second pass they come in reverse, the last read first,
// because those are in the cache most likely.
std::vector<Task> plan(const std::vector<Chunk>& chunks, const Tensor* tensors) {
  std::vector<Task> tasks;
  size_t begin = 0;
  int64_t elements = 0;
  for (size_t i = 0; i < chunks.size(); i++) {
    tasks.push_back({i, false});
    elements += chunks[i].size;
    const bool last_of_tensor = i + 1 == chunks.size() || chunks[i + 1].tensor != chunks[i].tensor;
    if (!last_of_tensor || (elements < kGroupSize && i + 1 < chunks.size())) continue;
    for (size_t k = i + 1; k-- > begin;)
      if (tensors[chunks[k].tensor].adapted) tasks.push_back({k, true});
    begin = i + 1;
    elements = 0;
  }
  return tasks;
}

FloatMoments float_moments(const Tensor& tensor, const Chunk& chunk) {
  return {static_cast<float*>(tensor.mean) + chunk.begin, static_cast<float*>(tensor.var) + chunk.begin};
}

Bfloat16Moments bfloat16_moments(const Tensor& tensor, const Chunk& chunk) {
  return {static_cast<uint16_t*>(tensor.mean) + chunk.begin, static_cast<uint16_t*>(tensor.var) + chunk.begin,
          tensor.key, static_cast<uint32_t>(chunk.begin)};
}

// The kernels on the chunk of a tensor (lamb_kernels.h), for moments of either type.
NormSquares update_moments(const Settings& settings, const Tensor& tensor, const Chunk& chunk) {
  const float* const weight = tensor.weight + chunk.begin;
  const float* const gradient = tensor.gradient + chunk.begin;
  if (settings.low) {
    const auto kernel = KERNEL(update_bfloat16_moments);
    return kernel(settings.rule, tensor.decay, weight, gradient, bfloat16_moments(tensor, chunk), chunk.size);
  }
  const auto kernel = KERNEL(update_moments);
  return kernel(settings.rule, tensor.decay, weight, gradient, float_moments(tensor, chunk), chunk.size);
}

void update_weights(const Settings& settings, const Tensor& tensor, const Chunk& chunk) {
  float* const weight = tensor.weight + chunk.begin;
  const float step = settings.lr * tensor.ratio;
  if (settings.low) {
    const auto kernel = KERNEL(update_weights_of_bfloat16);
    kernel(settings.rule, tensor.decay, step, weight, bfloat16_moments(tensor, chunk), chunk.size);
  } else {
    const auto kernel = KERNEL(update_weights);
    kernel(settings.rule, tensor.decay, step, weight, float_moments(tensor, chunk), chunk.size);
  }
}

void update_at_once(const Settings& settings, const Tensor& tensor, const Chunk& chunk) {
  float* const weight = tensor.weight + chunk.begin;
  const float* const gradient = tensor.gradient + chunk.begin;
  const float step = settings.lr;
  if (settings.low) {
    const auto kernel = KERNEL(update_bfloat16_at_once);
    kernel(settings.rule, tensor.decay, step, weight, gradient, bfloat16_moments(tensor, chunk), chunk.size);
  } else {
    const auto kernel = KERNEL(update_at_once);
    kernel(settings.rule, tensor.decay, step, weight, gradient, float_moments(tensor, chunk), chunk.size);
  }
}

void pack_chunk(const Tensor& tensor, const Chunk& chunk) {
  const Place& place = tensor.place;
  if (!place.columns) return;
  KERNEL(pack_part)
  (tensor.weight + chunk.begin, chunk.size / place.columns, place.columns,
   place.first + chunk.begin / place.columns, place.total, place.forms);
}

// Threads take one task after the other. Nobody waits at the end of a pass for all threads: only a second
// pass for its own tensor's first, and those tasks were taken by others before, so they do get done.
void update(const Settings& settings, const std::vector<Chunk>& chunks, Tensor* tensors) {
  const std::vector<Task> tasks = plan(chunks, tensors);
  std::vector<NormSquares> squares(chunks.size());
  std::atomic<size_t> next{0};
#pragma omp parallel
  for (size_t number = next++; number < tasks.size(); number = next++) {
    const Task task = tasks[number];
    const Chunk& chunk = chunks[task.chunk];
    Tensor& tensor = tensors[chunk.tensor];
    if (!tensor.adapted) {
      update_at_once(settings, tensor, chunk);
      pack_chunk(tensor, chunk);
    } else if (!task.second) {
      squares[task.chunk] = update_moments(settings, tensor, chunk);
      if (--tensor.unfinished > 0) continue;
      NormSquares sum{0, 0};
      for (size_t i = tensor.first_chunk; i < tensor.first_chunk + tensor.num_chunks; i++) {
        sum.weight += squares[i].weight;
        sum.update += squares[i].update;
      }
      tensor.ratio = ratio(settings, sum);
      tensor.ready = true;
    } else {
      while (!tensor.ready) std::this_thread::yield();
      update_weights(settings, tensor, chunk);
      pack_chunk(tensor, chunk);
    }
  }
}

// The form of a group's packed array. Throws std::runtime_error for shapes that cannot be packed together.
PackedWeights packed_form(const Settings& settings, const Group& group, const Shapes& weights) {
  int64_t rows = 0;
  const Shape first = weights.at(group.front());
  for (const int tensor : group) {
    const Shape& shape = weights.at(tensor);
    require(shape.size() == 2 && first.size() == 2 && shape[0] > 0 && shape[1] > 0 && shape[1] == first[1],
            "weights that are packed together must have two axes and as many columns");
    rows += shape[0];
  }
  return PackedWeights(settings.packed_for, group.size(), rows, first[1]);
}

// Gives the tensors of a group their places in `target`, where they can be packed chunk by chunk.
bool placed(const PackedWeights& form, const Group& group, const Tensors& weights, void* target,
            Tensor* tensors) {
  if (!form.in_parts()) return false;
  int64_t total = 0;
  for (const int tensor : group) {
    if (tensor != group.back() && weights.at(tensor).shape[0] % kFewestRows) return false;
    total += weights.at(tensor).shape[0];
  }
  int64_t first = 0;
  for (const int tensor : group) {
    tensors[tensor].place = {form.forms(target), weights[tensor].shape[1], first, total};
    first += weights[tensor].shape[0];
  }
  return true;
}

int64_t chunk_size(const Place& place) {
  if (!place.columns) return kChunkSize;
  int64_t rows = kMostRows;
  while (rows > kFewestRows && rows * place.columns > kPackedChunk) rows /= 2;
  return rows * place.columns;
}

// The chunks of all tensors, which learn of theirs.
std::vector<Chunk> chunks_of(const Tensors& weights, Tensor* tensors) {
  std::vector<int64_t> sizes, pieces;
  for (size_t i = 0; i < weights.size(); i++) {
    sizes.push_back(weights[i].size());
    pieces.push_back(chunk_size(tensors[i].place));
  }
  const std::vector<Chunk> chunks = split(sizes, pieces);
  for (size_t i = chunks.size(); i-- > 0;) {
    Tensor& tensor = tensors[chunks[i].tensor];
    tensor.first_chunk = i;
    tensor.num_chunks++;
    tensor.unfinished++;
  }
  return chunks;
}

MXReturnValue attributes(const Attributes& given, int* inputs, int* outputs) {
  return guarded("bert_lamb", [&] {
    const int count = integer(given, "num_tensors");
    require(count > 0, "num_tensors must be at least 1");
    const Settings read = settings(given);
    for (const std::string& digits : {read.decayed, read.adapted})
      require(static_cast<int>(digits.size()) == count && digits.find_first_not_of("01") == std::string::npos,
              "decayed and adapted need one digit, 0 or 1, for each tensor");
    *inputs = 4 * count + read.packed.size();
    *outputs = 1;
  });
}

MXReturnValue mutated(const Attributes& given, std::vector<int>* indices) {
  return guarded("bert_lamb", [&] {
    const int count = integer(given, "num_tensors");
    for (int i = 0; i < 4 * count; i++)
      if (i / count != 1) indices->push_back(i);
    const int packed = settings(given).packed.size();
    for (int i = 0; i < packed; i++) indices->push_back(4 * count + i);
  });
}

MXReturnValue shapes(const Attributes& given, Shapes* in, Shapes* out) {
  return guarded("bert_lamb", [&] {
    const size_t count = integer(given, "num_tensors");
    const bool low = has_bfloat16(given);
    for (size_t i = count; i < 4 * count; i++) {
      Shape expected = in->at(i % count);
      if (low && i >= 2 * count) expected.push_back(sizeof(uint16_t));
      require(in->at(i) == expected, "a tensor's weight, gradient, mean and var differ in shape");
    }
    const Settings read = settings(given);
    for (size_t i = 0; i < read.packed.size(); i++) {
      const size_t bytes = packed_form(read, read.packed[i], *in).bytes();
      require(in->at(4 * count + i) == Shape{static_cast<unsigned>(bytes)},
              "a packed array has another size");
    }
    out->at(0) = {static_cast<unsigned int>(count)};
  });
}

MXReturnValue types(const Attributes& given, Types* in, Types* out) {
  return guarded("bert_lamb", [&] {
    const bool low = has_bfloat16(given);
    const size_t count = integer(given, "num_tensors");
    for (size_t i = 0; i < in->size(); i++)
      if (i >= 4 * count)
        require(in->at(i) == mxnet::ext::kUint8, "packed arrays must be uint8");
      else if (low && i >= 2 * count)
        require(in->at(i) == mxnet::ext::kUint8, "means and vars in bfloat16 must be uint8");
      else
        require(in->at(i) == mxnet::ext::kFloat32, "all inputs must be float32");
    out->assign(1, mxnet::ext::kFloat32);
  });
}

MXReturnValue forward(const Attributes& given, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_lamb", [&] {
    const Settings read = settings(given);
    const size_t count = integer(given, "num_tensors");
    const std::unique_ptr<Tensor[]> tensors(new Tensor[count]);
    for (size_t i = 0; i < count; i++) {
      Tensor& tensor = tensors[i];
      tensor.weight = floats(in->at(i));
      tensor.gradient = floats(in->at(count + i));
      tensor.mean = in->at(2 * count + i).data_ptr;
      tensor.var = in->at(3 * count + i).data_ptr;
      tensor.key = key_below(read.key, i);
      tensor.decay = read.decayed[i] == '1' ? read.weight_decay : 0.f;
      tensor.adapted = read.adapted[i] == '1';
    }
    const Tensors weights(in->begin(), in->begin() + count);
    Shapes shapes;
    for (const auto& weight : weights) shapes.emplace_back(weight.shape.begin(), weight.shape.end());
    const auto form = [&](size_t i) { return packed_form(read, read.packed[i], shapes); };
    std::vector<size_t> later;  // groups that are packed when all of their tensors are updated
    for (size_t i = 0; i < read.packed.size(); i++)
      if (!placed(form(i), read.packed[i], weights, in->at(4 * count + i).data_ptr, tensors.get()))
        later.push_back(i);
    update(read, chunks_of(weights, tensors.get()), tensors.get());
    for (const size_t i : later) {
      Tensors stacked;
      for (const int tensor : read.packed[i]) stacked.push_back(weights[tensor]);
      form(i).pack(stacked, in->at(4 * count + i).data_ptr);
    }
    for (size_t i = 0; i < count; i++) floats(out->at(0))[i] = tensors[i].ratio;
  });
}

REGISTER_OP(bert_lamb)
    .setParseAttrs(attributes)
    .setInferType(types)
    .setInferShape(shapes)
    .setMutateInputs(mutated)
    .setForward(forward, "cpu");

}  // namespace
}  // namespace operators

// The last layer of masked language modelling with its loss, without copies of the scores.
//
// bert_decode_loss(hidden (R, U), word_weight (V, U), bias (V), labels (R) int32, weights (R); dtype)
//   -> losses (R) = weight * cross entropy (in nats) of softmax(hidden word_weight^T + bias) at the label,
//      hits (R) = weight where the label has the highest score (the first of equals), otherwise 0,
//      scores (V, R up to a multiple of 16), sums (R): for the backward pass only.
//
// Everything is float32 but the labels. With dtype="bfloat16" both factors of the three products (scores,
// gradients of hidden and word_weight) are rounded to bfloat16. Rows whose weight is 0 are left out of all
// work. Gradients are those of the losses.
//
// With the attribute deferred=1 there is one more input, the output `decoder` of bert_words (words.cc), for R
// rows. The gradient of word_weight, which no one may ask for, is then not written: its two factors are, to
// the gradient of that input, and the backward pass of bert_words multiplies them.
//
// Scores stand word by word (V, width), one column for each row that counts: so oneDNN is fastest, and the
// weights' gradient needs no transposed copy. What is kept is E = exp(score - highest score) - [word is
// label] * sum, where sum is that of the exponentials: the gradient of a loss by its scores is E / sum. The
// factors of the rows, ograd * weight / sum, are applied to the small matrices of hidden states. The
// vocabulary is worked through in chunks that stay in the cache.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "decode_loss_kernels.h"
#include "dense_products.h"
#include "matmul.h"
#include "matmul_kernels.h"
#include "operator.h"
#include "word_factors.h"

namespace operators {
namespace {

enum Input { kHidden, kWordWeight, kBias, kLabels, kWeights, kDecoder };
constexpr int kOutputs = 4;

bool is_deferred(const Attributes& attributes) {
  return attributes.count("deferred") != 0 && integer(attributes, "deferred") != 0;
}

int inputs_of(const Attributes& attributes) { return is_deferred(attributes) ? kDecoder + 1 : kDecoder; }

MXReturnValue attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_decode_loss", [&] {
    low_precision(attributes);
    *inputs = inputs_of(attributes);
    *outputs = kOutputs;
  });
}

MXReturnValue shapes(const Attributes& attributes, Shapes* in, Shapes* out) {
  return guarded("bert_decode_loss", [&] {
    const Shape hidden = in->at(kHidden), word_weight = in->at(kWordWeight);
    require(hidden.size() == 2 && word_weight.size() == 2 && hidden[1] == word_weight[1],
            "hidden has the shape (rows, units), word_weight (words, units)");
    require(hidden[0] > 0 && hidden[1] > 0 && word_weight[0] > 0, "nothing may be empty");
    in->at(kBias) = {word_weight[0]};
    in->at(kLabels) = in->at(kWeights) = {hidden[0]};
    const int64_t width = decoder_width(hidden[0]);
    out->at(0) = out->at(1) = out->at(3) = {hidden[0]};
    out->at(2) = {word_weight[0], static_cast<unsigned>(width)};
    if (is_deferred(attributes)) {
      const WordFactors factors(low_precision(attributes), word_weight[0], width, hidden[1]);
      in->at(kDecoder) = {static_cast<unsigned>(factors.array_size())};
    }
  });
}

MXReturnValue types(const Attributes& attributes, Types* in, Types* out) {
  in->assign(inputs_of(attributes), mxnet::ext::kFloat32);
  in->at(kLabels) = mxnet::ext::kInt32;
  out->assign(kOutputs, mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

// The rows that count, their number up to a whole vector, and how the work is cut.
struct Work {
  std::vector<int64_t> rows;
  int64_t count, width, units, words;
  bool low, tiled;

  Work(const Attributes& attributes, const mxnet::ext::MXTensor& word_weight,
       const mxnet::ext::MXTensor& weights)
      : units(word_weight.shape[1]),
        words(word_weight.shape[0]),
        low(low_precision(attributes)),
        tiled(low && tile_products()) {
    for (int64_t row = 0; row < weights.size(); row++)
      if (floats(weights)[row] != 0) rows.push_back(row);
    count = rows.size();
    width = decoder_width(count);
  }

  // (width, units): the rows that count, each times its own factor, then rows of zeros.
  const float* gather(const float* hidden, const float* factors) const {
    float* gathered = static_cast<float*>(scratch(kRowsSlot, width * units * sizeof(float)));
    for (int64_t i = 0; i < count; i++)
      for (int64_t u = 0; u < units; u++)
        gathered[i * units + u] = hidden[rows[i] * units + u] * (factors ? factors[i] : 1.f);
    std::fill(gathered + count * units, gathered + width * units, 0.f);
    return gathered;
  }

  // A float32 matrix of this size as a factor: as it is, or rounded in scratch memory.
  const float* factor(const float* matrix, int64_t size, Slot slot) const {
    if (!low) return matrix;
    float* const rounded = static_cast<float*>(scratch(slot, size * sizeof(float)));
    KERNEL(round_within_float)(matrix, rounded, size);
    return rounded;
  }

  // The same to memory of the caller's.
  void copy_factor(const float* matrix, int64_t size, float* target) const {
    if (low)
      KERNEL(round_within_float)(matrix, target, size);
    else
      copy_floats(matrix, size, target);
  }

  WordFactors word_factors() const { return WordFactors(low, words, width, units); }

  template <typename Body>
  void for_chunks(Body body) const {
    for_chunks_of_words(words, body);
  }
};

// scores (words, width) = word_weight hidden^T for one chunk of words after the other; body(first, words)
// follows each. hidden: as Work::gather gives it.
template <typename Body>
void score(const Work& work, const float* weight, const float* hidden, float* scores, Body body) {
  if (work.tiled) {
    PackedForms of_hidden, of_weight;
    of_hidden.transposed_right = packed_scratch(kRightSlot, work.width, work.units);
    KERNEL(pack_factor)(hidden, work.width, work.units, of_hidden);
    work.for_chunks([&](int64_t first, int64_t words) {
      of_weight.left = packed_scratch(kLeftSlot, words, work.units);
      KERNEL(pack_factor)(weight + first * work.units, words, work.units, of_weight);
      KERNEL(multiply_packed_factors)
      ({of_weight.left, of_hidden.transposed_right, words, work.width, work.units,
        scores + first * work.width, work.width});
      body(first, words);
    });
    return;
  }
  const Layout hidden_layout = blocked(work.units, work.width);
  float* const blocks = static_cast<float*>(scratch(kBlockedSlot, hidden_layout.bytes()));
  reorder(row_major(work.width, work.units).transposed(),
          work.factor(hidden, work.width * work.units, kRightSlot), hidden_layout, blocks);
  work.for_chunks([&](int64_t first, int64_t words) {
    multiply(row_major(words, work.units),
             work.factor(weight + first * work.units, words * work.units, kLeftSlot), hidden_layout, blocks,
             row_major(words, work.width), scores + first * work.width);
    body(first, words);
  });
}

// The gradient of the word weights: computed, or its factors (word_factors.h) kept for bert_words.
struct WordGradient {
  float* product;  // (words, units); null: the factors are kept
  float* factors;  // an array of WordFactors::array_size()
};

// The products backward, chunk by chunk: d_rows (width, units) = gradient^T word_weight, and that of the word
// weights, gradient hidden, where `gradient` stands word by word as the scores do.
void multiply_gradients(const Work& work, const float* gradient, const float* weight, const float* hidden,
                        float* d_rows, const WordGradient& to) {
  const WordFactors factors = work.word_factors();
  const bool keeps = to.product == nullptr;
  if (keeps) factors.begin(to.factors);
  const void* hidden_factor = nullptr;
  if (work.tiled) {
    PackedForms of_hidden, of_gradient, of_weight;
    of_hidden.right = keeps ? reinterpret_cast<uint32_t*>(factors.hidden_in(to.factors))
                            : packed_scratch(kRightSlot, work.units, work.width);
    hidden_factor = of_hidden.right;
    KERNEL(pack_factor)(hidden, work.width, work.units, of_hidden);
    work.for_chunks([&](int64_t first, int64_t words) {
      of_gradient.left = keeps ? reinterpret_cast<uint32_t*>(factors.gradient_in(to.factors, first))
                               : packed_scratch(kLeftSlot, words, work.width);
      of_gradient.transposed_left = packed_scratch(kBlockedSlot, work.width, words);
      of_weight.right = packed_scratch(kGradientSlot, work.units, words);
      KERNEL(pack_factor)(gradient + first * work.width, words, work.width, of_gradient);
      KERNEL(pack_factor)(weight + first * work.units, words, work.units, of_weight);
      KERNEL(multiply_packed_factors)
      ({of_gradient.transposed_left, of_weight.right, work.width, work.units, words, d_rows, work.units,
        nullptr, first > 0});
      if (!keeps) factors.multiply(hidden_factor, of_gradient.left, words, to.product + first * work.units);
    });
    return;
  }
  const int64_t hidden_size = work.width * work.units;
  if (keeps)
    work.copy_factor(hidden, hidden_size, factors.hidden_in(to.factors));
  else
    hidden_factor = work.factor(hidden, hidden_size, kRightSlot);
  work.for_chunks([&](int64_t first, int64_t words) {
    const int64_t size = words * work.width;
    const float* const from = gradient + first * work.width;
    const float* chunk;
    if (keeps) {
      float* const kept = factors.gradient_in(to.factors, first);
      work.copy_factor(from, size, kept);
      chunk = kept;
    } else {
      chunk = work.factor(from, size, kLeftSlot);
    }
    const float* weight_data = work.factor(weight + first * work.units, words * work.units, kBlockedSlot);
    multiply(row_major(words, work.width).transposed(), chunk, row_major(words, work.units), weight_data,
             row_major(work.width, work.units), d_rows, nullptr, first > 0);
    if (!keeps) factors.multiply(hidden_factor, chunk, words, to.product + first * work.units);
  });
}

MXReturnValue forward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_decode_loss", [&] {
    const Work work(attributes, in->at(kWordWeight), in->at(kWeights));
    const float *weight = floats(in->at(kWordWeight)), *bias = floats(in->at(kBias));
    const float* weights = floats(in->at(kWeights));
    const int32_t* labels = static_cast<const int32_t*>(in->at(kLabels).data_ptr);
    float *losses = floats(out->at(0)), *hits = floats(out->at(1)), *scores = floats(out->at(2));
    std::fill(losses, losses + out->at(0).size(), 0.f);
    std::fill(hits, hits + out->at(1).size(), 0.f);
    if (work.count == 0) return;
    for (const int64_t row : work.rows)
      require(labels[row] >= 0 && labels[row] < work.words, "a label is no word of the vocabulary");

    std::vector<float> best(work.width, -std::numeric_limits<float>::infinity());
    std::vector<int32_t> best_word(work.width, 0);
    score(work, weight, work.gather(floats(in->at(kHidden)), nullptr), scores,
          [&](int64_t first, int64_t words) {
            KERNEL(update_best)
            (scores + first * work.width, bias + first, words, work.width, first, best.data(),
             best_word.data());
          });
    std::vector<double> label_score(work.count), sums(work.width);
    for (int64_t i = 0; i < work.count; i++) {
      const int32_t label = labels[work.rows[i]];
      label_score[i] = scores[label * work.width + i] + bias[label] - best[i];
    }
    KERNEL(exponentials)(scores, bias, best.data(), work.words, work.width, sums.data());
    for (int64_t i = 0; i < work.count; i++) {
      const int64_t row = work.rows[i];
      losses[row] = weights[row] * (std::log(sums[i]) - label_score[i]);
      hits[row] = labels[row] == best_word[i] ? weights[row] : 0.f;
      floats(out->at(3))[i] = sums[i];
      scores[labels[row] * work.width + i] -= sums[i];
    }
  });
}

// inputs: gradients of the four outputs, the inputs, the outputs; outputs: gradients of the inputs.
MXReturnValue backward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_decode_loss", [&] {
    const bool deferred = is_deferred(attributes);
    const mxnet::ext::MXTensor *inputs = in->data() + kOutputs, *outputs = inputs + inputs_of(attributes);
    const Work work(attributes, inputs[kWordWeight], inputs[kWeights]);
    const float *loss_gradient = floats(in->at(0)), *weights = floats(inputs[kWeights]);
    const float *scores = floats(outputs[2]), *sums = floats(outputs[3]);
    const auto clear = [&](int input) {
      std::memset(out->at(input).data_ptr, 0, out->at(input).size() * sizeof(float));
    };
    for (const int input : {kHidden, kLabels, kWeights}) clear(input);
    const WordGradient word_gradient = {deferred ? nullptr : floats(out->at(kWordWeight)),
                                        deferred ? floats(out->at(kDecoder)) : nullptr};
    if (work.count == 0) {
      if (deferred)
        work.word_factors().begin(word_gradient.factors);
      else
        clear(kWordWeight);
      clear(kBias);
      return;
    }
    std::vector<float> factors(work.width, 0.f);
    for (int64_t i = 0; i < work.count; i++)
      factors[i] = loss_gradient[work.rows[i]] * weights[work.rows[i]] / sums[i];
    const float* hidden = work.gather(floats(inputs[kHidden]), factors.data());
    float* d_rows = static_cast<float*>(scratch(kSumSlot, work.width * work.units * sizeof(float)));
    multiply_gradients(work, scores, floats(inputs[kWordWeight]), hidden, d_rows, word_gradient);
    KERNEL(row_products)(scores, factors.data(), work.words, work.width, floats(out->at(kBias)));
    float* const d_hidden = floats(out->at(kHidden));
    for (int64_t i = 0; i < work.count; i++)
      for (int64_t u = 0; u < work.units; u++)
        d_hidden[work.rows[i] * work.units + u] = d_rows[i * work.units + u] * factors[i];
  });
}

REGISTER_OP(bert_decode_loss)
    .setParseAttrs(attributes)
    .setInferType(types)
    .setInferShape(shapes)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu");

}  // namespace
}  // namespace operators

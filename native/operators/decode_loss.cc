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
#include "matmul.h"
#include "operator.h"

namespace operators {
namespace {

constexpr int64_t kColumns = 16;  // one vector; also keeps the number of different shapes small
constexpr int64_t kWordsPerThread = 1024;

int64_t round_up(int64_t count) { return (count + kColumns - 1) / kColumns * kColumns; }

MXReturnValue attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_decode_loss", [&] {
    low_precision(attributes);
    *inputs = 5;
    *outputs = 4;
  });
}

MXReturnValue shapes(const Attributes&, Shapes* in, Shapes* out) {
  return guarded("bert_decode_loss", [&] {
    const Shape &hidden = in->at(0), &word_weight = in->at(1);
    require(hidden.size() == 2 && word_weight.size() == 2 && hidden[1] == word_weight[1],
            "hidden has the shape (rows, units), word_weight (words, units)");
    require(hidden[0] > 0 && hidden[1] > 0 && word_weight[0] > 0, "nothing may be empty");
    in->at(2) = {word_weight[0]};
    in->at(3) = in->at(4) = {hidden[0]};
    out->at(0) = out->at(1) = out->at(3) = {hidden[0]};
    out->at(2) = {word_weight[0], static_cast<unsigned>(round_up(hidden[0]))};
  });
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  in->assign(5, mxnet::ext::kFloat32);
  in->at(3) = mxnet::ext::kInt32;
  out->assign(4, mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

// The rows that count, their number up to a whole vector, and how the work is cut.
struct Work {
  std::vector<int64_t> rows;
  int64_t count, width, units, words, chunk;
  bool low;
  Element element;

  Work(const Attributes& attributes, const mxnet::ext::MXTensor& word_weight,
       const mxnet::ext::MXTensor& weights)
      : units(word_weight.shape[1]), words(word_weight.shape[0]), low(low_precision(attributes)) {
    for (int64_t row = 0; row < weights.size(); row++)
      if (floats(weights)[row] != 0) rows.push_back(row);
    count = rows.size();
    width = round_up(count);
    chunk = kWordsPerThread * omp_get_max_threads();
    element = low ? bfloat16_storage() : Element::float32;
  }

  // As a factor (width, units): the rows that count, each times its own factor, then rows of zeros.
  const void* gather(const float* hidden, const float* factors) const {
    float* gathered = static_cast<float*>(scratch(kRowsSlot, width * units * sizeof(float)));
    for (int64_t i = 0; i < count; i++)
      for (int64_t u = 0; u < units; u++)
        gathered[i * units + u] = hidden[rows[i] * units + u] * (factors ? factors[i] : 1.f);
    std::fill(gathered + count * units, gathered + width * units, 0.f);
    return factor(gathered, width * units, kRightSlot);
  }

  // A float32 matrix of this size as a factor: as it is, or rounded in scratch memory.
  const void* factor(const float* matrix, int64_t size, Slot slot) const {
    if (!low) return matrix;
    void* rounded = scratch(slot, size * bytes_of(element));
    round_factor(matrix, size, rounded);
    return rounded;
  }

  // Calls body(first, words) for each chunk.
  template <typename Body>
  void for_chunks(Body body) const {
    for (int64_t first = 0; first < words; first += chunk) body(first, std::min(chunk, words - first));
  }
};

MXReturnValue forward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_decode_loss", [&] {
    const Work work(attributes, in->at(1), in->at(4));
    const float *weight = floats(in->at(1)), *bias = floats(in->at(2)), *weights = floats(in->at(4));
    const int32_t* labels = static_cast<const int32_t*>(in->at(3).data_ptr);
    float *losses = floats(out->at(0)), *hits = floats(out->at(1)), *scores = floats(out->at(2));
    std::fill(losses, losses + out->at(0).size(), 0.f);
    std::fill(hits, hits + out->at(1).size(), 0.f);
    if (work.count == 0) return;
    for (const int64_t row : work.rows)
      require(labels[row] >= 0 && labels[row] < work.words, "a label is no word of the vocabulary");

    std::vector<float> best(work.width, -std::numeric_limits<float>::infinity());
    std::vector<int32_t> best_word(work.width, 0);
    const Layout hidden_layout = blocked(work.units, work.width, work.element);
    void* hidden = scratch(kBlockedSlot, hidden_layout.bytes());
    reorder(row_major(work.width, work.units, work.element).transposed(),
            work.gather(floats(in->at(0)), nullptr), hidden_layout, hidden);
    work.for_chunks([&](int64_t first, int64_t words) {
      float* chunk = scores + first * work.width;
      multiply(row_major(words, work.units, work.element),
               work.factor(weight + first * work.units, words * work.units, kLeftSlot), hidden_layout, hidden,
               row_major(words, work.width), chunk);
      KERNEL(update_best)(chunk, bias + first, words, work.width, first, best.data(), best_word.data());
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
    const Work work(attributes, in->at(5), in->at(8));
    const float *loss_gradient = floats(in->at(0)), *weight = floats(in->at(5)), *weights = floats(in->at(8));
    const float *scores = floats(in->at(11)), *sums = floats(in->at(12));
    float *d_hidden = floats(out->at(0)), *d_weight = floats(out->at(1)), *d_bias = floats(out->at(2));
    for (const int i : {0, 3, 4}) std::memset(out->at(i).data_ptr, 0, out->at(i).size() * sizeof(float));
    if (work.count == 0) {
      for (const int i : {1, 2}) std::memset(out->at(i).data_ptr, 0, out->at(i).size() * sizeof(float));
      return;
    }
    std::vector<float> factors(work.width, 0.f);
    for (int64_t i = 0; i < work.count; i++)
      factors[i] = loss_gradient[work.rows[i]] * weights[work.rows[i]] / sums[i];
    const Layout hidden_layout = row_major(work.width, work.units, work.element);
    const void* hidden = work.gather(floats(in->at(4)), factors.data());
    float* d_rows = static_cast<float*>(scratch(kSumSlot, work.width * work.units * sizeof(float)));
    work.for_chunks([&](int64_t first, int64_t words) {
      const float* chunk = scores + first * work.width;
      const void* chunk_data = work.factor(chunk, words * work.width, kLeftSlot);
      const void* weight_data = work.factor(weight + first * work.units, words * work.units, kBlockedSlot);
      const Layout chunk_layout = row_major(words, work.width, work.element);
      multiply(chunk_layout.transposed(), chunk_data, row_major(words, work.units, work.element), weight_data,
               row_major(work.width, work.units), d_rows, nullptr, first > 0);
      multiply(chunk_layout, chunk_data, hidden_layout, hidden, row_major(words, work.units),
               d_weight + first * work.units);
      KERNEL(row_products)(chunk, factors.data(), words, work.width, d_bias + first);
    });
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

// bert_gather(input (B, L, U), positions (B, P) int32; first) -> the rows input[b, positions[b, p]].
//
// first=0: (B, P, U). first=1: (B, 1 + P, U), where input[b, 0] (the classification token) comes before them.
// A position may occur several times: the gradients add up, in the order of the positions. float32.
//
// With the attribute packed=1 the input is (T, U) and has sequences end to end; there is one more input,
// places (T, 2) int32 (sequences.h), which are B sequences.
#include <cstring>
#include <string>
#include <vector>

#include "indices.h"
#include "operator.h"
#include "sequences.h"

namespace operators {
namespace {

MXReturnValue attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_gather", [&] {
    const int first = integer(attributes, "first");
    require(first == 0 || first == 1, "first must be 0 or 1");
    *inputs = is_packed(attributes) ? 3 : 2;
    *outputs = 1;
  });
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  in->assign(in->size(), mxnet::ext::kInt32);
  in->at(0) = mxnet::ext::kFloat32;
  out->assign(1, mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

MXReturnValue shapes(const Attributes& attributes, Shapes* in, Shapes* out) {
  return guarded("bert_gather", [&] {
    const Shape input = in->at(0), positions = in->at(1);
    const bool packed = is_packed(attributes);
    require(positions.size() == 2 && (packed || positions[0] == input.at(0)),
            "positions must be one row for each sequence");
    if (packed) {
      require(input.size() == 2, "the packed input must have two axes");
      in->at(2) = {input[0], 2};
    } else {
      require(input.size() == 3, "the input must have three axes");
    }
    out->at(0) = {positions[0], integer(attributes, "first") + positions[1], input.back()};
  });
}

// Where the sequences lie in the input; `in` are the operator's inputs. Throws std::runtime_error for
// positions outside them.
std::vector<Sequence> checked_sequences(const Attributes& attributes, const mxnet::ext::MXTensor* in) {
  if (!is_packed(attributes)) {
    check_indices(in[1], in[0].shape[1], "position");
    return padded_sequences(in[0].shape[0], in[0].shape[1]);
  }
  std::vector<Sequence> sequences = packed_sequences(in[2]);
  const int64_t batch = in[1].shape[0], count = in[1].shape[1];
  if (static_cast<int64_t>(sequences.size()) != batch)
    throw std::runtime_error("positions are for " + std::to_string(batch) + " sequences, places for " +
                             std::to_string(sequences.size()));
  for (int64_t i = 0; i < batch * count; i++) {
    const int32_t position = indices(in[1])[i];
    const int64_t rows = sequences[i / count].rows;
    if (position < 0 || position >= rows)
      throw std::runtime_error("position " + std::to_string(position) + " at [" + std::to_string(i / count) +
                               ", " + std::to_string(i % count) + "] is outside [0, " + std::to_string(rows) +
                               ")");
  }
  return sequences;
}

// Calls row(input row, output row) for each row of the output of sequence b, in order.
template <typename Row>
void for_rows(int64_t b, const Sequence& sequence, const int32_t* positions, int64_t count, int64_t first,
              Row row) {
  const int64_t begin = b * (first + count);
  if (first != 0) row(sequence.first, begin);
  for (int64_t p = 0; p < count; p++) row(sequence.first + positions[b * count + p], begin + first + p);
}

MXReturnValue forward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_gather", [&] {
    const std::vector<Sequence> sequences = checked_sequences(attributes, in->data());
    const int64_t units = in->at(0).shape.back(), count = in->at(1).shape[1];
    const int32_t* positions = indices(in->at(1));
    const float* x = floats(in->at(0));
    float* y = floats(out->at(0));
    const int64_t batch = sequences.size(), first = integer(attributes, "first");
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < batch; b++)
      for_rows(b, sequences[b], positions, count, first, [&](int64_t from, int64_t to) {
        std::memcpy(y + to * units, x + from * units, units * sizeof(float));
      });
  });
}

// inputs: gradient of the output, the inputs, output; outputs: gradients of the inputs.
MXReturnValue backward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_gather's backward", [&] {
    const std::vector<Sequence> sequences = checked_sequences(attributes, in->data() + 1);
    const int64_t units = in->at(1).shape.back(), count = in->at(2).shape[1];
    const int32_t* positions = indices(in->at(2));
    const float* dy = floats(in->at(0));
    float* dx = floats(out->at(0));
    const int64_t batch = sequences.size(), first = integer(attributes, "first");
    const int64_t end = batch == 0 ? 0 : sequences.back().first + sequences.back().rows;
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < batch; b++) {
      std::memset(dx + sequences[b].first * units, 0, sequences[b].rows * units * sizeof(float));
      for_rows(b, sequences[b], positions, count, first, [&](int64_t to, int64_t from) {
        float* sum = dx + to * units;
        const float* row = dy + from * units;
#pragma omp simd
        for (int64_t c = 0; c < units; c++) sum[c] += row[c];
      });
    }
    std::memset(dx + end * units, 0, (out->at(0).size() - end * units) * sizeof(float));
    for (size_t input = 1; input < out->size(); input++)
      std::memset(out->at(input).data_ptr, 0, out->at(input).size() * sizeof(int32_t));
  });
}

REGISTER_OP(bert_gather)
    .setParseAttrs(attributes)
    .setInferType(types)
    .setInferShape(shapes)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu");

}  // namespace
}  // namespace operators

// bert_unpack(input (T, U), places (T, 2) int32, like (B, L) int32) -> (B, L, U): rows of sequences that lie
// end to end, padded with 0 to the length of `like`, whose values do not matter; beside it the sequences'
// lengths (B), 0 where there is none. All but `like` and places (sequences.h) are float32.
#include <cstring>
#include <string>
#include <vector>

#include "operator.h"
#include "sequences.h"

namespace operators {
namespace {

enum Input { kRows, kPlaces, kLike, kInputs };
enum Output { kPadded, kLengths, kOutputs };

MXReturnValue attributes(const Attributes&, int* inputs, int* outputs) {
  *inputs = kInputs;
  *outputs = kOutputs;
  return MX_SUCCESS;
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  *in = {mxnet::ext::kFloat32, mxnet::ext::kInt32, mxnet::ext::kInt32};
  out->assign(kOutputs, mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

MXReturnValue shapes(const Attributes&, Shapes* in, Shapes* out) {
  return guarded("bert_unpack", [&] {
    const Shape rows = in->at(kRows), like = in->at(kLike);
    require(rows.size() == 2, "the input must have two axes");
    require(like.size() == 2, "like must have two axes");
    in->at(kPlaces) = {rows[0], 2};
    out->at(kPadded) = {like[0], like[1], rows[1]};
    out->at(kLengths) = {like[0]};
  });
}

// Throws std::runtime_error for sequences that do not fit into (batch, length).
std::vector<Sequence> fitting(const mxnet::ext::MXTensor& places, int64_t batch, int64_t length) {
  std::vector<Sequence> sequences = packed_sequences(places);
  bool fit = static_cast<int64_t>(sequences.size()) <= batch;
  for (const Sequence& sequence : sequences) fit = fit && sequence.rows <= length;
  if (!fit)
    throw std::runtime_error("the sequences of places do not fit into " + std::to_string(batch) +
                             " of length " + std::to_string(length));
  return sequences;
}

MXReturnValue forward(const Attributes&, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_unpack", [&] {
    const int64_t batch = in->at(kLike).shape[0], length = in->at(kLike).shape[1];
    const int64_t units = in->at(kRows).shape[1];
    const std::vector<Sequence> sequences = fitting(in->at(kPlaces), batch, length);
    const int64_t given = sequences.size();
    const float* x = floats(in->at(kRows));
    float *y = floats(out->at(kPadded)), *lengths = floats(out->at(kLengths));
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < batch; b++) {
      const Sequence sequence = b < given ? sequences[b] : Sequence{0, 0, 0};
      const int64_t filled = sequence.rows * units;
      lengths[b] = static_cast<float>(sequence.rows);
      std::memcpy(y + b * length * units, x + sequence.first * units, filled * sizeof(float));
      std::memset(y + b * length * units + filled, 0, (length * units - filled) * sizeof(float));
    }
  });
}

// inputs: gradients of the outputs, the inputs, the outputs; outputs: gradients of the inputs.
MXReturnValue backward(const Attributes&, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_unpack's backward", [&] {
    const mxnet::ext::MXTensor* inputs = in->data() + kOutputs;
    const int64_t batch = inputs[kLike].shape[0], length = inputs[kLike].shape[1];
    const int64_t units = inputs[kRows].shape[1];
    const std::vector<Sequence> sequences = fitting(inputs[kPlaces], batch, length);
    const int64_t given = sequences.size();
    const int64_t end = given == 0 ? 0 : sequences.back().first + sequences.back().rows;
    const float* dy = floats(in->at(kPadded));
    float* dx = floats(out->at(kRows));
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < given; b++)
      std::memcpy(dx + sequences[b].first * units, dy + b * length * units,
                  sequences[b].rows * units * sizeof(float));
    std::memset(dx + end * units, 0, (out->at(kRows).size() - end * units) * sizeof(float));
    for (int input : {kPlaces, kLike})
      std::memset(out->at(input).data_ptr, 0, out->at(input).size() * sizeof(int32_t));
  });
}

REGISTER_OP(bert_unpack)
    .setParseAttrs(attributes)
    .setInferType(types)
    .setInferShape(shapes)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu");

}  // namespace
}  // namespace operators

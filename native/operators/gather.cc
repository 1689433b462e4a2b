// bert_gather(input (B, L, U), positions (B, P) int32; first) -> the rows input[b, positions[b, p]].
//
// first=0: (B, P, U). first=1: (B, 1 + P, U), where input[b, 0] (the classification token) comes before them.
// A position may occur several times: the gradients add up, in the order of the positions. float32.
#include <cstring>

#include "indices.h"
#include "operator.h"

namespace operators {
namespace {

MXReturnValue attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_gather", [&] {
    const int first = integer(attributes, "first");
    require(first == 0 || first == 1, "first must be 0 or 1");
    *inputs = 2;
    *outputs = 1;
  });
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  *in = {mxnet::ext::kFloat32, mxnet::ext::kInt32};
  out->assign(1, mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

MXReturnValue shapes(const Attributes& attributes, Shapes* in, Shapes* out) {
  return guarded("bert_gather", [&] {
    const Shape input = in->at(0), positions = in->at(1);
    require(input.size() == 3, "the input must have three axes");
    require(positions.size() == 2 && positions[0] == input[0], "positions must be one row for each sequence");
    out->at(0) = {input[0], integer(attributes, "first") + positions[1], input[2]};
  });
}

// Calls row(input row, output row) for each row of the output of one sequence, in order.
template <typename Row>
void for_rows(int64_t sequence, int64_t length, const int32_t* positions, int64_t count, int64_t first,
              Row row) {
  const int64_t begin = sequence * (first + count);
  if (first != 0) row(sequence * length, begin);
  for (int64_t p = 0; p < count; p++)
    row(sequence * length + positions[sequence * count + p], begin + first + p);
}

MXReturnValue forward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_gather", [&] {
    const int64_t length = in->at(0).shape[1], units = in->at(0).shape[2], count = in->at(1).shape[1];
    check_indices(in->at(1), length, "position");
    const int32_t* positions = indices(in->at(1));
    const float* x = floats(in->at(0));
    float* y = floats(out->at(0));
    const int64_t sequences = in->at(0).shape[0], first = integer(attributes, "first");
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < sequences; b++)
      for_rows(b, length, positions, count, first, [&](int64_t from, int64_t to) {
        std::memcpy(y + to * units, x + from * units, units * sizeof(float));
      });
  });
}

// inputs: gradient of the output, input, positions, output; outputs: gradients of input and positions.
MXReturnValue backward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_gather's backward", [&] {
    const int64_t length = in->at(1).shape[1], units = in->at(1).shape[2], count = in->at(2).shape[1];
    const int32_t* positions = indices(in->at(2));
    const float* dy = floats(in->at(0));
    float* dx = floats(out->at(0));
    const int64_t sequences = in->at(1).shape[0], first = integer(attributes, "first");
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < sequences; b++) {
      std::memset(dx + b * length * units, 0, length * units * sizeof(float));
      for_rows(b, length, positions, count, first, [&](int64_t to, int64_t from) {
        float* sum = dx + to * units;
        const float* row = dy + from * units;
#pragma omp simd
        for (int64_t c = 0; c < units; c++) sum[c] += row[c];
      });
    }
    std::memset(out->at(1).data_ptr, 0, out->at(1).size() * sizeof(int32_t));
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

// bert_bias_gelu(input (..., C), bias (C)) -> gelu(input + bias), float32.
#include "gelu_kernels.h"
#include "operator.h"

namespace operators {
namespace {

MXReturnValue attributes(const Attributes&, int* inputs, int* outputs) {
  *inputs = 2;
  *outputs = 1;
  return MX_SUCCESS;
}

MXReturnValue shapes(const Attributes&, Shapes* in, Shapes* out) {
  return guarded("bert_bias_gelu", [&] {
    require(!in->at(0).empty(), "the input needs an axis");
    in->at(1) = {in->at(0).back()};
    out->at(0) = in->at(0);
  });
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  in->assign(2, mxnet::ext::kFloat32);
  out->assign(1, mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

MXReturnValue forward(const Attributes&, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_bias_gelu", [&] {
    const int64_t columns = in->at(1).size();
    KERNEL(bias_gelu)
    (floats(in->at(0)), floats(in->at(1)), floats(out->at(0)), in->at(0).size() / columns, columns);
  });
}

// inputs: gradient of the output, input, bias, output; outputs: gradients of input and bias.
MXReturnValue backward(const Attributes&, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_bias_gelu's backward", [&] {
    const int64_t columns = in->at(2).size();
    KERNEL(bias_gelu_backward)
    (floats(in->at(0)), floats(in->at(1)), floats(in->at(2)), floats(out->at(0)), floats(out->at(1)),
     in->at(1).size() / columns, columns);
  });
}

REGISTER_OP(bert_bias_gelu)
    .setParseAttrs(attributes)
    .setInferType(types)
    .setInferShape(shapes)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu");

}  // namespace
}  // namespace operators

// bert_bias_gelu(input (..., C), bias (C); form) -> gelu(input + bias), float32. form is "erf" (also where it
// is left out) or "tanh".
#include "gelu_kernels.h"
#include "operator.h"

namespace operators {

bool gelu_by_tanh(const Attributes& attributes) {
  const auto form = attributes.find("form");
  if (form == attributes.end() || form->second == "erf") return false;
  if (form->second == "tanh") return true;
  throw std::runtime_error("form=" + form->second + " is neither erf nor tanh");
}

namespace {

MXReturnValue attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_bias_gelu", [&] {
    gelu_by_tanh(attributes);
    *inputs = 2;
    *outputs = 1;
  });
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

MXReturnValue forward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_bias_gelu", [&] {
    const int64_t columns = in->at(1).size();
    const auto kernel = gelu_by_tanh(attributes) ? KERNEL(bias_gelu_tanh) : KERNEL(bias_gelu);
    kernel(floats(in->at(0)), floats(in->at(1)), floats(out->at(0)), in->at(0).size() / columns, columns);
  });
}

// inputs: gradient of the output, input, bias, output; outputs: gradients of input and bias.
MXReturnValue backward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_bias_gelu's backward", [&] {
    const int64_t columns = in->at(2).size();
    const auto kernel =
        gelu_by_tanh(attributes) ? KERNEL(bias_gelu_tanh_backward) : KERNEL(bias_gelu_backward);
    kernel(floats(in->at(0)), floats(in->at(1)), floats(in->at(2)), floats(out->at(0)), floats(out->at(1)),
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

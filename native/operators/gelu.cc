// bert_bias_gelu(input (..., C), bias (C); form) -> gelu(input + bias), float32. form is "erf" (also where it
// is left out), "tanh", or "relu" for max(input + bias, 0).
#include "gelu_kernels.h"
#include "operator.h"

namespace operators {

Form gelu_form(const Attributes& attributes) {
  const auto form = attributes.find("form");
  if (form == attributes.end() || form->second == "erf") return Form::erf;
  if (form->second == "tanh") return Form::tanh;
  if (form->second == "relu") return Form::relu;
  throw std::runtime_error("form=" + form->second + " is none of erf, tanh and relu");
}

namespace {

MXReturnValue attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_bias_gelu", [&] {
    gelu_form(attributes);
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
    KERNEL(bias_gelu)
    (gelu_form(attributes), floats(in->at(0)), floats(in->at(1)), floats(out->at(0)),
     in->at(0).size() / columns, columns);
  });
}

// inputs: gradient of the output, input, bias, output; outputs: gradients of input and bias.
MXReturnValue backward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_bias_gelu's backward", [&] {
    const int64_t columns = in->at(2).size();
    KERNEL(bias_gelu_backward)
    (gelu_form(attributes), floats(in->at(0)), floats(in->at(1)), floats(in->at(2)), floats(out->at(0)),
     floats(out->at(1)), in->at(1).size() / columns, columns);
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

// bert_layer_norm(input (..., C), gamma (C), beta (C); eps) -> (..., C): LayerNorm over the last axis.
//
// bert_add_norm(input (..., C), bias (C), residual (..., C), gamma (C), beta (C), mode (1); dropout, eps)
//   -> LayerNorm(residual + dropout(input + bias)), and the dropped elements' key for the backward pass (2).
//   mode is 1 in predict mode, which drops nothing.
//
// All are float32.
#include "dropout_choice.h"
#include "norm_kernels.h"
#include "operator.h"

namespace operators {

float norm_epsilon(const Attributes& attributes) {
  const double value = number(attributes, "eps");
  require(value >= 0, "eps is negative");
  return static_cast<float>(value);
}

namespace {

MXReturnValue layer_norm_attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_layer_norm", [&] {
    norm_epsilon(attributes);
    *inputs = 3;
    *outputs = 1;
  });
}

MXReturnValue add_norm_attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_add_norm", [&] {
    norm_epsilon(attributes);
    dropout_rate(attributes);
    *inputs = 6;
    *outputs = 2;
  });
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  in->assign(in->size(), mxnet::ext::kFloat32);
  out->assign(out->size(), mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

MXReturnValue layer_norm_shapes(const Attributes&, Shapes* in, Shapes* out) {
  return guarded("bert_layer_norm", [&] {
    require(!in->at(0).empty(), "the input needs an axis");
    in->at(1) = in->at(2) = {in->at(0).back()};
    out->at(0) = in->at(0);
  });
}

MXReturnValue add_norm_shapes(const Attributes&, Shapes* in, Shapes* out) {
  return guarded("bert_add_norm", [&] {
    require(!in->at(0).empty(), "the input needs an axis");
    in->at(1) = in->at(3) = in->at(4) = {in->at(0).back()};
    in->at(2) = out->at(0) = in->at(0);
    in->at(5) = {1};
    out->at(1) = {2};
  });
}

MXReturnValue layer_norm_forward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_layer_norm", [&] {
    const int64_t columns = in->at(1).size();
    KERNEL(layer_norm)
    (floats(in->at(0)), floats(in->at(1)), floats(in->at(2)), floats(out->at(0)), in->at(0).size() / columns,
     columns, norm_epsilon(attributes));
  });
}

// inputs: gradient of the output, input, gamma, beta, output; outputs: gradients of input, gamma, beta.
MXReturnValue layer_norm_backward(const Attributes& attributes, Tensors* in, Tensors* out,
                                  const OpResource&) {
  return guarded("bert_layer_norm's backward", [&] {
    const int64_t columns = in->at(2).size();
    KERNEL(layer_norm_backward)
    (floats(in->at(0)), floats(in->at(1)), floats(in->at(2)), floats(out->at(0)), floats(out->at(1)),
     floats(out->at(2)), in->at(1).size() / columns, columns, norm_epsilon(attributes));
  });
}

// `in` from the operator's first input on.
AddNorm add_norm_inputs(const Attributes& attributes, const mxnet::ext::MXTensor* in,
                        const Dropout& dropout) {
  const int64_t columns = in[1].size();
  const int64_t rows = in[0].size() / columns;
  return {floats(in[0]), floats(in[1]), floats(in[2]), floats(in[3]), rows, columns, norm_epsilon(attributes),
          dropout};
}

MXReturnValue add_norm_forward(const Attributes& attributes, Tensors* in, Tensors* out,
                               const OpResource& resource) {
  return guarded("bert_add_norm", [&] {
    const Dropout dropout = choose_dropout(attributes, in->at(5), resource, &out->at(1));
    KERNEL(add_norm)
    (add_norm_inputs(attributes, in->data(), dropout), floats(in->at(4)), floats(out->at(0)));
  });
}

// inputs: gradients of output and key, input, bias, residual, gamma, beta, mode, output, key;
// outputs: gradients of input, bias, residual, gamma, beta, mode.
MXReturnValue add_norm_backward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_add_norm's backward", [&] {
    const Dropout dropout = chosen_dropout(attributes, in->at(7), in->at(9));
    const AddNormGradients gradients = {floats(out->at(0)), floats(out->at(1)), floats(out->at(2)),
                                        floats(out->at(3)), floats(out->at(4))};
    KERNEL(add_norm_backward)
    (add_norm_inputs(attributes, in->data() + 2, dropout), floats(in->at(0)), gradients);
    *floats(out->at(5)) = 0;
  });
}

REGISTER_OP(bert_layer_norm)
    .setParseAttrs(layer_norm_attributes)
    .setInferType(types)
    .setInferShape(layer_norm_shapes)
    .setForward(layer_norm_forward, "cpu")
    .setBackward(layer_norm_backward, "cpu");

REGISTER_OP(bert_add_norm)
    .setParseAttrs(add_norm_attributes)
    .setInferType(types)
    .setInferShape(add_norm_shapes)
    .setForward(add_norm_forward, "cpu")
    .setBackward(add_norm_backward, "cpu");

}  // namespace
}  // namespace operators

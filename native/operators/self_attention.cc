// The attention half of a transformer layer (Devlin et al., arXiv:1810.04805; Vaswani et al.,
// arXiv:1706.03762, section 3.2) with its residual connection:
//
// bert_self_attention(x (B, L, U), lengths (B) int32, query, key, value (U, U), their biases (U),
//                     projection (U, U), its bias (U), gamma (U), beta (U), mode (1), packed,
//                     packed_projection; heads, dtype, dropout, eps)
//   -> y (B, L, U) = LayerNorm(x + dropout(context projection^T + bias)), where context is bert_attention of
//      x [query; key; value]^T + biases; for the backward pass only: the keys of what is dropped from the
//      probabilities and from the sum (2 each), bert_attention's logarithms, qkv (B, L, 3U), context (B, L,
//      U) and outer (B, L, U), the last product.
//
// x (T, U) has sequences end to end, and places (T, 2) take the place of lengths (attention.cc).
//
// The same as bert_dense, bert_attention, bert_dense and bert_add_norm one after the other (see there for
// heads, dtype, dropout, eps, mode and what bert_pack makes of the weights: packed is of the first three),
// but the two gradients of x are one sum, and gradients of what lies between use the same memory in all
// layers.
#include <cstring>
#include <vector>

#include "attention_kernels.h"
#include "attention_shape.h"
#include "dense_products.h"
#include "dropout_choice.h"
#include "norm_kernels.h"
#include "operator.h"

namespace operators {
namespace {

using mxnet::ext::MXTensor;

enum Input {
  kX,
  kLengths,
  kWeights,
  kBiases = kWeights + 3,
  kProjection = kBiases + 3,
  kProjectionBias,
  kGamma,
  kBeta,
  kMode,
  kPacked,
  kPackedProjection,
  kInputs
};
enum Output { kY, kAttentionKey, kKey, kLogSum, kQkv, kContext, kOuter, kOutputs };

MXReturnValue attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_self_attention", [&] {
    require(integer(attributes, "heads") > 0, "heads must be positive");
    precision(attributes);
    dropout_rate(attributes);
    norm_epsilon(attributes);
    *inputs = kInputs;
    *outputs = kOutputs;
  });
}

MXReturnValue shapes(const Attributes& attributes, Shapes* in, Shapes* out) {
  return guarded("bert_self_attention", [&] {
    const Shape x = in->at(kX);
    require(x.size() == 2 || x.size() == 3, "x must have axes (sequence, position, units) or (row, units)");
    const unsigned units = x.back(), heads = integer(attributes, "heads");
    require(units > 0 && units % heads == 0, "units must be a multiple of heads");
    const Precision by = precision(attributes);
    const bool padded = x.size() == 3;
    for (const int i : {+kWeights, kWeights + 1, kWeights + 2, +kProjection}) in->at(i) = {units, units};
    for (int i = 0; i < 3; i++) in->at(kBiases + i) = {units};
    in->at(kProjectionBias) = in->at(kGamma) = in->at(kBeta) = {units};
    in->at(kMode) = {1};
    in->at(kPacked) = {static_cast<unsigned>(PackedWeights(by, 3, 3 * units, units).bytes())};
    in->at(kPackedProjection) = {static_cast<unsigned>(PackedWeights(by, 1, units, units).bytes())};
    in->at(kLengths) = padded ? Shape{x[0]} : Shape{x[0], 2};
    out->at(kLogSum) = padded ? Shape{x[0], heads, x[1]} : Shape{heads, x[0]};
    out->at(kAttentionKey) = out->at(kKey) = {2};
    out->at(kY) = out->at(kQkv) = out->at(kContext) = out->at(kOuter) = x;
    out->at(kQkv).back() *= 3;
  });
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  in->assign(kInputs, mxnet::ext::kFloat32);
  in->at(kLengths) = mxnet::ext::kInt32;
  in->at(kPacked) = in->at(kPackedProjection) = mxnet::ext::kUint8;
  out->assign(kOutputs, mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

// What forward and backward have in common. `in` begins with the operator's first input.
struct SelfAttention {
  const MXTensor* in;
  int64_t rows, units;
  DenseProducts first, projection;
  std::vector<Sequence> sequences;
  Attention shape;  // all but the dropout

  SelfAttention(const Attributes& attributes, const MXTensor* in)
      : in(in),
        rows(in[kX].size() / in[kX].shape.back()),
        units(in[kX].shape.back()),
        first(precision(attributes), 3, rows, units, 3 * units, in[kPacked], in[kWeights]),
        projection(precision(attributes), 1, rows, units, units, in[kPackedProjection], in[kProjection]),
        sequences(attended_sequences(in[kX], in[kLengths])),
        shape(attention_shape(attributes, units, sequences)) {}
  SelfAttention(const SelfAttention&) = delete;

  AddNorm add_norm(const Attributes& attributes, const float* outer, const Dropout& dropout) const {
    return {outer, floats(in[kProjectionBias]), floats(in[kX]), floats(in[kGamma]), rows,
            units, norm_epsilon(attributes),    dropout};
  }

  float* scratch_rows(Slot slot, int64_t columns) const {
    return static_cast<float*>(scratch(slot, rows * columns * sizeof(float)));
  }
};

MXReturnValue forward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource& resource) {
  return guarded("bert_self_attention", [&] {
    SelfAttention layer(attributes, in->data());
    const MXTensor& mode = in->at(kMode);
    layer.shape.dropout = choose_dropout(attributes, mode, resource, &out->at(kAttentionKey));
    const Dropout dropout = choose_dropout(attributes, mode, resource, &out->at(kKey));
    if (layer.rows == 0) return;
    float *qkv = floats(out->at(kQkv)), *context = floats(out->at(kContext)),
          *outer = floats(out->at(kOuter));
    const MXTensor* biases = in->data() + kBiases;
    layer.first.forward(floats(in->at(kX)), stacked_biases(biases, biases + 3), qkv);
    KERNEL(attention)(layer.shape, qkv, context, floats(out->at(kLogSum)));
    zero_rows_behind(layer.sequences, out->at(kContext).size(), layer.units, context);
    layer.projection.forward(context, nullptr, outer);
    KERNEL(add_norm)
    (layer.add_norm(attributes, outer, dropout), floats(in->at(kBeta)), floats(out->at(kY)));
  });
}

// inputs: gradients of the outputs, the inputs, the outputs; outputs: gradients of the inputs. Those of the
// packed weights stay as they are: the weights' own are the whole gradient.
MXReturnValue backward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource& resource) {
  return guarded("bert_self_attention's gradient", [&] {
    const MXTensor *inputs = in->data() + kOutputs, *outputs = inputs + kInputs;
    SelfAttention layer(attributes, inputs);
    std::memset(out->at(kLengths).data_ptr, 0, out->at(kLengths).size() * sizeof(int32_t));
    *floats(out->at(kMode)) = 0;
    if (layer.rows == 0) {
      for (int i = kX; i < kMode; i++) std::memset(out->at(i).data_ptr, 0, out->at(i).size() * sizeof(float));
      return;
    }
    float *dx = floats(out->at(kX)), *d_outer = layer.scratch_rows(kOuterSlot, layer.units);
    KERNEL(add_norm_backward)
    (layer.add_norm(attributes, floats(outputs[kOuter]),
                    chosen_dropout(attributes, inputs[kMode], outputs[kKey])),
     floats(in->at(kY)),
     {d_outer, floats(out->at(kProjectionBias)), dx, floats(out->at(kGamma)), floats(out->at(kBeta))});

    const float *qkv = floats(outputs[kQkv]), *context = floats(outputs[kContext]);
    float* d_context = layer.scratch_rows(kGeluSlot, layer.units);
    layer.projection.backward(d_outer, context, false, d_context, out->data() + kProjection,
                              out->data() + kProjection + 1);

    layer.shape.dropout = chosen_dropout(attributes, inputs[kMode], outputs[kAttentionKey]);
    const int64_t partial = KERNEL(attention_partial_size)(layer.shape);
    float* memory = partial == 0 ? nullptr : static_cast<float*>(resource.alloc_cpu(partial * sizeof(float)));
    const int64_t columns = 3 * layer.units;
    float* d_qkv = layer.scratch_rows(kGradientSlot, columns);
    KERNEL(attention_backward)
    (layer.shape, d_context, qkv, context, floats(outputs[kLogSum]), memory, d_qkv);
    zero_rows_behind(layer.sequences, layer.rows * columns, columns, d_qkv);

    MXTensor *d_weights = out->data() + kWeights, *d_biases = out->data() + kBiases;
    layer.first.backward(d_qkv, floats(inputs[kX]), true, dx, d_weights, d_weights + 3);
    bias_gradients(d_qkv, layer.rows, d_biases, d_biases + 3);
  });
}

REGISTER_OP(bert_self_attention)
    .setParseAttrs(attributes)
    .setInferType(types)
    .setInferShape(shapes)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu");

}  // namespace
}  // namespace operators

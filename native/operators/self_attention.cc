// The attention half of a transformer layer (Devlin et al., arXiv:1810.04805; Vaswani et al.,
// arXiv:1706.03762, section 3.2) with its residual connection:
//
// bert_self_attention(x (B, L, U), lengths (B) int32, query, key, value (U, U), their biases (U),
//                     projection (U, U), its bias (U), gamma (U), beta (U), mode (1), packed,
//                     packed_projection; heads, dtype, dropout, eps)
//   -> y (B, L, U) = LayerNorm(x + dropout(context projection^T + bias)), where context is bert_attention of
//      x [query; key; value]^T + biases; for the backward pass only: the keys of what is dropped from the
//      probabilities and from the sum (2 each), bert_attention's logarithms, qkv (B, L, 3U), context (B, L,
//      U) and outer (B, L, U), the last product. On tiles qkv and context are bfloat16, packed as left
//      factors, where heads are whole steps of these; an element holds two then. With recompute=1 all of this
//      but the keys is computed again there.
//
// x (T, U) has sequences end to end, and places (T, 2) take the place of lengths (attention.cc).
//
// The same as bert_dense, bert_attention, bert_dense and bert_add_norm one after the other (see there for
// heads, dtype, dropout, eps, mode and what bert_pack makes of the weights: packed is of the first three),
// but the two gradients of x are one sum, and gradients of what lies between use the same memory in all
// layers. On tiles what lies between the products is never float32: the numbers that the products would
// round are written, read and kept as bfloat16, and the biases' gradients are sums of rounded numbers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "attention_kernels.h"
#include "attention_shape.h"
#include "attention_tiles_kernels.h"
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
    counts_squares(attributes);
    recomputes(attributes);
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
    if (by == Precision::bfloat16 && tile_products() && packs_heads(units / heads)) {
      const unsigned rows = padded ? x[0] * x[1] : x[0];
      out->at(kQkv) = {static_cast<unsigned>(packed_words(rows, 3 * units))};
      out->at(kContext) = {static_cast<unsigned>(packed_words(rows, units))};
    }
    if (recomputes(attributes)) out->at(kLogSum) = out->at(kQkv) = out->at(kContext) = out->at(kOuter) = {1};
  });
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  in->assign(kInputs, mxnet::ext::kFloat32);
  in->at(kLengths) = mxnet::ext::kInt32;
  in->at(kPacked) = in->at(kPackedProjection) = mxnet::ext::kUint8;
  out->assign(kOutputs, mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

// What the forward pass leaves for the backward pass.
struct Kept {
  float *log_sum, *qkv, *context, *outer;
};

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

  // Whether what lies between the products is bfloat16 and packed.
  bool packs() const { return first.packs_once() && packs_heads(shape.size); }

  float* scratch_rows(Slot slot, int64_t columns) const {
    return static_cast<float*>(scratch(slot, rows * columns * sizeof(float)));
  }

  // The outputs' memory, or this thread's.
  Kept kept(const Attributes& attributes, const MXTensor* outputs) const {
    const auto output = [&](Output which) { return static_cast<float*>(outputs[which].data_ptr); };
    if (!recomputes(attributes)) return {output(kLogSum), output(kQkv), output(kContext), output(kOuter)};
    const int64_t qkv = packs() ? packed_words(rows, 3 * units) : rows * 3 * units;
    const int64_t context = packs() ? packed_words(rows, units) : rows * units;
    const int64_t outer = rows * units, log_sum = rows * shape.heads;
    float* const memory =
        static_cast<float*>(scratch(kAgainSlot, (qkv + context + outer + log_sum) * sizeof(float)));
    return {memory + qkv + context + outer, memory, memory + qkv, memory + qkv + context};
  }

  // The rows of no sequence, which products must not see: NaN times 0 is none.
  void zero_factor_behind(int64_t columns, uint32_t* left) const {
    const int64_t first = sequences.empty() ? 0 : sequences.back().first + sequences.back().rows;
    KERNEL(zero_factor_rows)(left, first, rows, columns);
  }
};

void attend_on_tiles(const SelfAttention& layer, const Kept& kept) {
  PackedForms x;
  x.left = packed_scratch(kLeftSlot, layer.rows, layer.units);
  KERNEL(pack_factor)(floats(layer.in[kX]), layer.rows, layer.units, x);
  const MXTensor* biases = layer.in + kBiases;
  uint32_t* const packed_qkv = reinterpret_cast<uint32_t*>(kept.qkv);
  uint32_t* const packed_context = reinterpret_cast<uint32_t*>(kept.context);
  const ScaledColumns queries = {layer.units, 1.f / std::sqrt(static_cast<float>(layer.shape.size))};
  layer.first.forward_into_factor(x.left, stacked_biases(biases, biases + 3), queries, packed_qkv);
  KERNEL(packed_attention)(layer.shape, packed_qkv, packed_context, kept.log_sum);
  layer.zero_factor_behind(layer.units, packed_context);
  layer.projection.forward_on_tiles(packed_context, nullptr, kept.outer);
}

void attend_plainly(const SelfAttention& layer, const Kept& kept) {
  const MXTensor* biases = layer.in + kBiases;
  layer.first.forward_of_few(floats(layer.in[kX]), stacked_biases(biases, biases + 3), kept.qkv);
  KERNEL(attention)(layer.shape, kept.qkv, kept.context, kept.log_sum);
  zero_rows_behind(layer.sequences, layer.rows * layer.units, layer.units, kept.context);
  layer.projection.forward_of_few(kept.context, nullptr, kept.outer);
}

// All before the addition, into `kept`; the attention's dropout is that of the layer's shape.
void attend(const SelfAttention& layer, const Kept& kept) {
  (layer.packs() ? attend_on_tiles : attend_plainly)(layer, kept);
}

MXReturnValue forward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource& resource) {
  return guarded("bert_self_attention", [&] {
    SelfAttention layer(attributes, in->data());
    const MXTensor& mode = in->at(kMode);
    layer.shape.dropout = choose_dropout(attributes, mode, resource, &out->at(kAttentionKey));
    const Dropout dropout = choose_dropout(attributes, mode, resource, &out->at(kKey));
    if (layer.rows == 0) return;
    const Kept kept = layer.kept(attributes, out->data());
    attend(layer, kept);
    KERNEL(add_norm)
    (layer.add_norm(attributes, kept.outer, dropout), floats(in->at(kBeta)), floats(out->at(kY)));
  });
}

// The attention's memory for the parts of heads.
float* parts_memory(const Attention& shape, const OpResource& resource) {
  const int64_t partial = KERNEL(attention_partial_size)(shape);
  return partial == 0 ? nullptr : static_cast<float*>(resource.alloc_cpu(partial * sizeof(float)));
}

// The gradients of weights and biases from that of `outer` (M, U); the one of x is added to what is in
// out[kX]. The sum of the squares of the weights' is added to `squares`, unless it is null.
void backward_on_tiles(const SelfAttention& layer, const Kept& kept, const float* d_outer, float* partial,
                       MXTensor* out, double* squares) {
  const int64_t rows = layer.rows, units = layer.units, columns = 3 * units;
  const uint32_t* const qkv = reinterpret_cast<const uint32_t*>(kept.qkv);
  const uint32_t* const context = reinterpret_cast<const uint32_t*>(kept.context);
  PackedForms of_outer, of_context, of_qkv, of_x;
  of_outer.left = packed_scratch(kLeftSlot, rows, units);
  of_outer.transposed_left = packed_scratch(kBlockedSlot, units, rows);
  KERNEL(pack_factor)(d_outer, rows, units, of_outer);
  uint32_t* const d_context = packed_scratch(kGeluSlot, rows, units);
  layer.projection.input_gradient_into_factor(of_outer.left, d_context);
  of_context.right = packed_scratch(kRightSlot, units, rows);
  KERNEL(repack_factor)(context, rows, units, of_context, nullptr);
  layer.projection.weight_gradients_on_tiles(of_outer.transposed_left, of_context.right, out + kProjection,
                                             out + kProjection + 1, squares);

  uint32_t* const d_qkv = packed_scratch(kGradientSlot, rows, columns);
  KERNEL(packed_attention_backward)
  (layer.shape, {d_context, qkv, context, kept.log_sum}, partial, d_qkv);
  layer.zero_factor_behind(columns, d_qkv);

  layer.first.input_gradient_on_tiles(d_qkv, true, floats(out[kX]));
  of_qkv.transposed_left = packed_scratch(kBlockedSlot, columns, rows);
  float* const sums = static_cast<float*>(scratch(kBiasSlot, columns * sizeof(float)));
  KERNEL(repack_factor)(d_qkv, rows, columns, of_qkv, sums);
  for (int64_t i = 0; i < 3; i++) std::copy_n(sums + i * units, units, floats(out[kBiases + i]));
  of_x.right = packed_scratch(kRightSlot, units, rows);
  KERNEL(pack_factor)(floats(layer.in[kX]), rows, units, of_x);
  layer.first.weight_gradients_on_tiles(of_qkv.transposed_left, of_x.right, out + kWeights,
                                        out + kWeights + 3, squares);
}

void backward_plainly(const SelfAttention& layer, const Kept& kept, const float* d_outer, float* partial,
                      MXTensor* out, double* squares) {
  float *const dx = floats(out[kX]), *const d_context = layer.scratch_rows(kGeluSlot, layer.units);
  layer.projection.backward(d_outer, kept.context, false, d_context, out + kProjection, out + kProjection + 1);
  const int64_t columns = 3 * layer.units;
  float* const d_qkv = layer.scratch_rows(kGradientSlot, columns);
  KERNEL(attention_backward)
  (layer.shape, d_context, kept.qkv, kept.context, kept.log_sum, partial, d_qkv);
  zero_rows_behind(layer.sequences, layer.rows * columns, columns, d_qkv);
  layer.first.backward(d_qkv, floats(layer.in[kX]), true, dx, out + kWeights, out + kWeights + 3);
  bias_gradients(d_qkv, layer.rows, out + kBiases, out + kBiases + 3);
  if (!squares) return;
  *squares += sum_of_squares(out + kProjection, out + kProjection + 1);
  *squares += sum_of_squares(out + kWeights, out + kWeights + 3);
}

// inputs: gradients of the outputs, the inputs, the outputs; outputs: gradients of the inputs. Those of the
// packed weights stay as they are: the weights' own are the whole gradient. That of mode is 0, or what
// counts_squares() says.
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
    layer.shape.dropout = chosen_dropout(attributes, inputs[kMode], outputs[kAttentionKey]);
    const Kept kept = layer.kept(attributes, outputs);
    if (recomputes(attributes)) attend(layer, kept);
    float *dx = floats(out->at(kX)), *d_outer = layer.scratch_rows(kOuterSlot, layer.units);
    KERNEL(add_norm_backward)
    (layer.add_norm(attributes, kept.outer, chosen_dropout(attributes, inputs[kMode], outputs[kKey])),
     floats(in->at(kY)),
     {d_outer, floats(out->at(kProjectionBias)), dx, floats(out->at(kGamma)), floats(out->at(kBeta))});

    float* const partial = parts_memory(layer.shape, resource);
    double squares = 0;
    (layer.packs() ? backward_on_tiles : backward_plainly)(layer, kept, d_outer, partial, out->data(),
                                                           counts_squares(attributes) ? &squares : nullptr);
    *floats(out->at(kMode)) = squares;
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

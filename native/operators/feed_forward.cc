// The feed-forward half of a transformer layer (Devlin et al., arXiv:1810.04805; Vaswani et al.,
// arXiv:1706.03762, section 3.3) with its residual connection:
//
// bert_feed_forward(x (..., U), weight_1 (H, U), bias_1 (H), weight_2 (U, H), bias_2 (U), gamma (U), beta
// (U),
//                   mode (1), packed_1, packed_2; dtype, form, dropout, eps)
//   -> y (..., U) = LayerNorm(x + dropout(gelu(x weight_1^T + bias_1) weight_2^T + bias_2)),
//      the dropped elements' key (2); inner and outer (M, U), the two products, for the backward pass only:
//      without their biases, inner (M, H). On tiles inner is block by block, with its bias, and rounded to
//      bfloat16, of which an element holds two: its gradient, which MXNet fills with zeros, is as large.
//      With recompute=1 both are computed again there.
//
// The same as bert_dense, bert_bias_gelu, bert_dense and bert_add_norm one after the other (see there for
// dtype, form, dropout, eps, mode and what bert_pack makes of the weights), with less traffic: what gelu
// gives is rounded and packed at once where products are on tiles, it is computed once more and not kept for
// the backward pass, and the two gradients of x are one sum.
#include <cstring>

#include "dense_products.h"
#include "dropout_choice.h"
#include "gelu_kernels.h"
#include "gelu_tiles_kernels.h"
#include "norm_kernels.h"
#include "operator.h"

namespace operators {
namespace {

using mxnet::ext::MXTensor;

enum Input { kX, kWeight1, kBias1, kWeight2, kBias2, kGamma, kBeta, kMode, kPacked1, kPacked2, kInputs };
enum Output { kY, kKey, kInner, kOuter, kOutputs };

MXReturnValue attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_feed_forward", [&] {
    precision(attributes);
    gelu_form(attributes);
    dropout_rate(attributes);
    norm_epsilon(attributes);
    counts_squares(attributes);
    recomputes(attributes);
    *inputs = kInputs;
    *outputs = kOutputs;
  });
}

MXReturnValue shapes(const Attributes& attributes, Shapes* in, Shapes* out) {
  return guarded("bert_feed_forward", [&] {
    const Shape &x = in->at(kX), &weight = in->at(kWeight1);
    require(!x.empty() && weight.size() == 2 && weight[1] == x.back(),
            "weight_1 has the shape (hidden, units), x (..., units)");
    const unsigned units = weight[1], hidden = weight[0];
    require(units > 0 && hidden > 0, "nothing may be empty");
    unsigned rows = 1;
    for (size_t axis = 0; axis + 1 < x.size(); axis++) rows *= x[axis];
    const Precision by = precision(attributes);
    in->at(kWeight2) = {units, hidden};
    in->at(kBias1) = {hidden};
    in->at(kBias2) = in->at(kGamma) = in->at(kBeta) = {units};
    in->at(kMode) = {1};
    in->at(kPacked1) = {static_cast<unsigned>(PackedWeights(by, 1, hidden, units).bytes())};
    in->at(kPacked2) = {static_cast<unsigned>(PackedWeights(by, 1, units, hidden).bytes())};
    out->at(kY) = x;
    out->at(kKey) = {2};
    out->at(kInner) = {static_cast<unsigned>(
        by == Precision::bfloat16 && tile_products() ? kept_size(rows, hidden) / 2 : rows * hidden)};
    out->at(kOuter) = {rows, units};
    if (recomputes(attributes)) out->at(kInner) = out->at(kOuter) = {1};
  });
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  in->assign(kInputs, mxnet::ext::kFloat32);
  in->at(kPacked1) = in->at(kPacked2) = mxnet::ext::kUint8;
  out->assign(kOutputs, mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

// What the forward pass leaves for the backward pass.
struct Kept {
  float *inner, *outer;
};

// What forward and backward have in common. `in` begins with the operator's first input.
struct FeedForward {
  const MXTensor* in;
  int64_t rows, units, hidden;
  DenseProducts first, second;
  Form form;

  FeedForward(const Attributes& attributes, const MXTensor* in)
      : in(in),
        rows(in[kX].size() / in[kX].shape.back()),
        units(in[kX].shape.back()),
        hidden(in[kWeight1].shape[0]),
        first(precision(attributes), 1, rows, units, hidden, in[kPacked1], in[kWeight1]),
        second(precision(attributes), 1, rows, hidden, units, in[kPacked2], in[kWeight2]),
        form(gelu_form(attributes)) {}

  const float* bias_1() const { return floats(in[kBias1]); }

  AddNorm add_norm(const Attributes& attributes, const float* outer, const Dropout& dropout) const {
    return {outer, floats(in[kBias2]),       floats(in[kX]), floats(in[kGamma]), rows,
            units, norm_epsilon(attributes), dropout};
  }

  float* scratch_hidden(Slot slot) const {
    return static_cast<float*>(scratch(slot, rows * hidden * sizeof(float)));
  }

  // The outputs' memory, or this thread's.
  Kept kept(const Attributes& attributes, const MXTensor* outputs) const {
    if (!recomputes(attributes))
      return {static_cast<float*>(outputs[kInner].data_ptr), static_cast<float*>(outputs[kOuter].data_ptr)};
    const int64_t inner = first.packs_once() ? kept_size(rows, hidden) / 2 : rows * hidden;
    float* const memory = static_cast<float*>(scratch(kAgainSlot, (inner + rows * units) * sizeof(float)));
    return {memory, memory + inner};
  }

  // Both products, into `kept`.
  void multiply(const Kept& kept) const;
};

void FeedForward::multiply(const Kept& kept) const {
  if (second.packs_once()) {
    PackedForms x;
    x.left = packed_scratch(kRightSlot, rows, units);
    uint32_t* const gelu = packed_scratch(kLeftSlot, rows, hidden);
    KERNEL(pack_factor)(floats(in[kX]), rows, units, x);
    KERNEL(multiply_gelu)
    (first.forward_product(x.left, nullptr, nullptr), {bias_1(), form}, reinterpret_cast<uint16_t*>(kept.inner),
     gelu);
    second.forward_on_tiles(gelu, nullptr, kept.outer);
  } else {
    float* gelu = scratch_hidden(kGeluSlot);
    first.forward_of_few(floats(in[kX]), nullptr, kept.inner);
    KERNEL(bias_gelu)(form, kept.inner, bias_1(), gelu, rows, hidden);
    second.forward_of_few(gelu, nullptr, kept.outer);
  }
}

MXReturnValue forward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource& resource) {
  return guarded("bert_feed_forward", [&] {
    const FeedForward layer(attributes, in->data());
    const Dropout dropout = choose_dropout(attributes, in->at(kMode), resource, &out->at(kKey));
    if (layer.rows == 0) return;
    const Kept kept = layer.kept(attributes, out->data());
    layer.multiply(kept);
    KERNEL(add_norm)
    (layer.add_norm(attributes, kept.outer, dropout), floats(in->at(kBeta)), floats(out->at(kY)));
  });
}

// The gradients of both products' factors and of bias_1, from the gradient of `outer` (M, U); the one of x is
// added to what is in out[kX]. The sum of the squares of the weights' is added to `squares`, unless it is
// null.
void backward_on_tiles(const FeedForward& layer, const float* inner, const float* d_outer, MXTensor* out,
                       double* squares) {
  PackedForms of_outer, of_x;
  of_outer.left = packed_scratch(kLeftSlot, layer.rows, layer.units);
  of_outer.transposed_left = packed_scratch(kBlockedSlot, layer.units, layer.rows);
  KERNEL(pack_factor)(d_outer, layer.rows, layer.units, of_outer);
  const GeluGradientForms forms = {packed_scratch(kGradientSlot, layer.rows, layer.hidden),
                                   packed_scratch(kGeluSlot, layer.hidden, layer.rows),
                                   packed_scratch(kRightSlot, layer.hidden, layer.rows)};
  KERNEL(multiply_gelu_backward)
  (layer.second.input_gradient_product(of_outer.left, false, nullptr), layer.form,
   reinterpret_cast<const uint16_t*>(inner), forms, floats(out[kBias1]));
  layer.second.weight_gradients_on_tiles(of_outer.transposed_left, forms.output_right, out + kWeight2,
                                         out + kWeight2 + 1, squares);
  layer.first.input_gradient_on_tiles(forms.left, true, floats(out[kX]));
  of_x.right = packed_scratch(kRightSlot, layer.units, layer.rows);
  KERNEL(pack_factor)(floats(layer.in[kX]), layer.rows, layer.units, of_x);
  layer.first.weight_gradients_on_tiles(forms.transposed_left, of_x.right, out + kWeight1, out + kWeight1 + 1,
                                        squares);
}

void backward_plainly(const FeedForward& layer, const float* inner, const float* d_outer, MXTensor* out,
                      double* squares) {
  float* gradient = layer.scratch_hidden(kGradientSlot);  // of gelu's output, then of its input
  float* gelu = layer.scratch_hidden(kGeluSlot);
  layer.second.input_gradient(d_outer, false, gradient);
  KERNEL(bias_gelu_backward_again)
  (layer.form, gradient, inner, layer.bias_1(), gelu, floats(out[kBias1]), layer.rows, layer.hidden);
  layer.second.weight_gradients(d_outer, gelu, out + kWeight2, out + kWeight2 + 1);
  layer.first.backward(gradient, floats(layer.in[kX]), true, floats(out[kX]), out + kWeight1,
                       out + kWeight1 + 1);
  for (const int weight : {kWeight1, kWeight2})
    if (squares) *squares += sum_of_squares(out + weight, out + weight + 1);
}

// inputs: gradients of the outputs, the inputs, the outputs; outputs: gradients of the inputs. Those of the
// packed weights stay as they are: the weights' own are the whole gradient. That of mode is 0, or what
// counts_squares() says.
MXReturnValue backward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_feed_forward's gradient", [&] {
    const MXTensor *inputs = in->data() + kOutputs, *outputs = inputs + kInputs;
    const FeedForward layer(attributes, inputs);
    *floats(out->at(kMode)) = 0;
    if (layer.rows == 0) {
      for (int i = kX; i < kMode; i++) std::memset(out->at(i).data_ptr, 0, out->at(i).size() * sizeof(float));
      return;
    }
    const Dropout dropout = chosen_dropout(attributes, inputs[kMode], outputs[kKey]);
    const Kept kept = layer.kept(attributes, outputs);
    if (recomputes(attributes)) layer.multiply(kept);
    float* d_outer = static_cast<float*>(scratch(kOuterSlot, layer.rows * layer.units * sizeof(float)));
    KERNEL(add_norm_backward)
    (layer.add_norm(attributes, kept.outer, dropout), floats(in->at(kY)),
     {d_outer, floats(out->at(kBias2)), floats(out->at(kX)), floats(out->at(kGamma)),
      floats(out->at(kBeta))});
    double squares = 0;
    (layer.second.packs_once() ? backward_on_tiles : backward_plainly)(
        layer, kept.inner, d_outer, out->data(), counts_squares(attributes) ? &squares : nullptr);
    *floats(out->at(kMode)) = squares;
  });
}

REGISTER_OP(bert_feed_forward)
    .setParseAttrs(attributes)
    .setInferType(types)
    .setInferShape(shapes)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu");

}  // namespace
}  // namespace operators

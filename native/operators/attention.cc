// bert_attention(qkv (B, L, 3U), lengths (B) int32, mode (1); heads, dropout, dtype) -> context (B, L, U),
// float32; beside it the logarithms of the softmax's denominators (B, heads, L) and dropout's key (2), for
// the backward pass. qkv holds queries, keys and values, each heads * U / heads columns. Keys from a
// sequence's length on do not exist.
//
// Packed, qkv (T, 3U) has sequences end to end, and places (T, 2) int32 (sequences.h) take the place of
// lengths; context is (T, U), 0 in rows of no sequence, the logarithms are (heads, T).
//
// With dtype="bfloat16" the factors of all products are rounded to
// bfloat16: queries, keys, values, probabilities and the gradients of context and scores. mode is
// F.Dropout(F.ones((1,)), p=0.5): 1 where MXNet predicts, which turns dropout off.
#include <cstring>
#include <vector>

#include "attention_kernels.h"
#include "attention_shape.h"
#include "matmul.h"
#include "operator.h"

namespace operators {

namespace {

enum Input { kQkv, kLengths, kMode, kInputs };
enum Output { kContext, kLogSum, kKey, kOutputs };

MXReturnValue attributes(const Attributes&, int* inputs, int* outputs) {
  *inputs = kInputs;
  *outputs = kOutputs;
  return MX_SUCCESS;
}

MXReturnValue shapes(const Attributes& attributes, Shapes* in, Shapes* out) {
  return guarded("bert_attention", [&] {
    const Shape& qkv = in->at(kQkv);
    const int heads = integer(attributes, "heads");
    require(heads > 0, "heads must be positive");
    dropout_rate(attributes);
    low_precision(attributes);
    require(qkv.size() == 2 || qkv.size() == 3,
            "qkv must have axes (sequence, position, 3 * units) or (row, 3 * units)");
    require(qkv.back() > 0 && qkv.back() % (3 * heads) == 0,
            "qkv's last axis must be a multiple of 3 * heads");
    const unsigned int of_heads = heads;
    if (qkv.size() == 2) {
      in->at(kLengths) = {qkv[0], 2};
      out->at(kLogSum) = {of_heads, qkv[0]};
    } else {
      in->at(kLengths) = {qkv[0]};
      out->at(kLogSum) = {qkv[0], of_heads, qkv[1]};
    }
    in->at(kMode) = {1};
    out->at(kContext) = qkv;
    out->at(kContext).back() = qkv.back() / 3;
    out->at(kKey) = {2};
  });
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  in->assign(kInputs, mxnet::ext::kFloat32);
  in->at(kLengths) = mxnet::ext::kInt32;
  out->assign(kOutputs, mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

MXReturnValue forward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource& resource) {
  return guarded("bert_attention", [&] {
    const std::vector<Sequence> sequences = attended_sequences(in->at(kQkv), in->at(kLengths));
    Attention shape = attention_shape(attributes, out->at(kContext).shape.back(), sequences);
    shape.dropout = choose_dropout(attributes, in->at(kMode), resource, &out->at(kKey));
    KERNEL(attention)(shape, floats(in->at(kQkv)), floats(out->at(kContext)), floats(out->at(kLogSum)));
    zero_rows_behind(sequences, out->at(kContext).size(), out->at(kContext).shape.back(),
                     floats(out->at(kContext)));
  });
}

// inputs: gradients of the outputs, the inputs, the outputs; outputs: gradients of the inputs.
MXReturnValue backward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource& resource) {
  return guarded("bert_attention's gradient", [&] {
    const mxnet::ext::MXTensor* inputs = in->data() + kOutputs;
    const mxnet::ext::MXTensor* outputs = inputs + kInputs;
    const std::vector<Sequence> sequences = attended_sequences(inputs[kQkv], inputs[kLengths]);
    Attention shape = attention_shape(attributes, in->at(kContext).shape.back(), sequences);
    shape.dropout = chosen_dropout(attributes, inputs[kMode], outputs[kKey]);
    const int64_t partial = KERNEL(attention_partial_size)(shape);
    float* memory = partial == 0 ? nullptr : static_cast<float*>(resource.alloc_cpu(partial * sizeof(float)));
    KERNEL(attention_backward)
    (shape, floats(in->at(kContext)), floats(inputs[kQkv]), floats(outputs[kContext]),
     floats(outputs[kLogSum]), memory, floats(out->at(kQkv)));
    zero_rows_behind(sequences, out->at(kQkv).size(), out->at(kQkv).shape.back(), floats(out->at(kQkv)));
    std::memset(out->at(kLengths).data_ptr, 0, out->at(kLengths).size() * sizeof(int32_t));
    std::memset(out->at(kMode).data_ptr, 0, sizeof(float));
  });
}

REGISTER_OP(bert_attention)
    .setParseAttrs(attributes)
    .setInferType(types)
    .setInferShape(shapes)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu");

}  // namespace
}  // namespace operators

// bert_embed(input_ids (B, L) int32, segment_ids (B, L) int32, word (V, U), segment (S, U), position (M, U),
//            gamma (U), beta (U), mode (1); dropout, eps)
//   -> LayerNorm(dropout(word[input_ids] + segment[segment_ids] + position[0 ... L - 1])), (B, L, U), and the
//   dropped elements' key for the backward pass (2).
//   mode is 1 in predict mode, which drops nothing. Ids outside the tables are an error.
//
// All but the ids are float32.
#include <cstring>
#include <vector>

#include "dropout_choice.h"
#include "embed_kernels.h"
#include "indices.h"
#include "operator.h"

namespace operators {
namespace {

enum Input { kIds, kSegments, kWord, kSegment, kPosition, kGamma, kBeta, kMode, kInputs };

MXReturnValue attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_embed", [&] {
    number(attributes, "eps");
    dropout_rate(attributes);
    *inputs = kInputs;
    *outputs = 2;
  });
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  in->assign(kInputs, mxnet::ext::kFloat32);
  in->at(kIds) = in->at(kSegments) = mxnet::ext::kInt32;
  out->assign(2, mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

MXReturnValue shapes(const Attributes&, Shapes* in, Shapes* out) {
  return guarded("bert_embed", [&] {
    const Shape ids = in->at(kIds), word = in->at(kWord);
    const Shape segment = in->at(kSegment), position = in->at(kPosition);
    require(ids.size() == 2, "input_ids must have two axes");
    require(word.size() == 2, "word must have two axes");
    require(position.size() == 2 && position[1] == word[1], "position must have as many columns as word");
    if (position[0] < ids[1])
      throw std::runtime_error("sequences of " + std::to_string(ids[1]) + " tokens and only " +
                               std::to_string(position[0]) + " positions");
    in->at(kSegments) = ids;
    require(segment.size() == 2 && segment[1] == word[1], "segment must have as many columns as word");
    in->at(kGamma) = in->at(kBeta) = {word[1]};
    in->at(kMode) = {1};
    out->at(0) = {ids[0], ids[1], word[1]};
    out->at(1) = {2};
  });
}

// `in` from the operator's first input on.
Embedding embedding(const Attributes& attributes, const mxnet::ext::MXTensor* in, const Dropout& dropout) {
  return {indices(in[kIds]),
          indices(in[kSegments]),
          floats(in[kWord]),
          floats(in[kSegment]),
          floats(in[kPosition]),
          floats(in[kGamma]),
          in[kIds].shape[0],
          in[kIds].shape[1],
          in[kWord].shape[1],
          in[kWord].shape[0],
          in[kSegment].shape[0],
          in[kPosition].shape[0],
          static_cast<float>(number(attributes, "eps")),
          dropout};
}

MXReturnValue forward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource& resource) {
  return guarded("bert_embed", [&] {
    check_indices(in->at(kIds), in->at(kWord).shape[0], "token");
    check_indices(in->at(kSegments), in->at(kSegment).shape[0], "segment");
    const Dropout dropout = choose_dropout(attributes, in->at(kMode), resource, &out->at(1));
    KERNEL(embed)(embedding(attributes, in->data(), dropout), floats(in->at(kBeta)), floats(out->at(0)));
  });
}

// inputs: gradients of output and key, the inputs, output, key; outputs: gradients of the inputs.
MXReturnValue backward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_embed's backward", [&] {
    const mxnet::ext::MXTensor* inputs = in->data() + 2;
    const Dropout dropout = chosen_dropout(attributes, inputs[kMode], in->at(2 + kInputs + 1));
    const Embedding embed = embedding(attributes, inputs, dropout);
    std::vector<int32_t> first(embed.vocabulary, -1), next(embed.batch * embed.length);
    for (int64_t token = embed.batch * embed.length - 1; token >= 0; token--) {
      next[token] = first[embed.ids[token]];
      first[embed.ids[token]] = static_cast<int32_t>(token);
    }
    const EmbeddingGradients gradients = {floats(out->at(kWord)), floats(out->at(kSegment)),
                                          floats(out->at(kPosition)), floats(out->at(kGamma)),
                                          floats(out->at(kBeta))};
    KERNEL(embed_backward)(embed, {first.data(), next.data()}, floats(in->at(0)), gradients);
    for (int input : {kIds, kSegments, kMode})  // 0 has the same bits as int32 and as float32.
      std::memset(out->at(input).data_ptr, 0, out->at(input).size() * sizeof(float));
  });
}

REGISTER_OP(bert_embed)
    .setParseAttrs(attributes)
    .setInferType(types)
    .setInferShape(shapes)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu");

}  // namespace
}  // namespace operators

// bert_embed(input_ids (B, L) int32, segment_ids (B, L) int32, word (V, U), segment (S, U), position (M, U),
//            gamma (U), beta (U), mode (1); dropout, eps)
//   -> LayerNorm(dropout(word[input_ids] + segment[segment_ids] + position[0 ... L - 1])), (B, L, U), and the
//   dropped elements' key for the backward pass (2).
//   mode is 1 in predict mode, which drops nothing. Ids outside the tables are an error.
//
// With the attribute packed=1 there is one more input, places (T, 2) int32 (sequences.h), and the output is
// (T, U): the rows of those tokens, and of 0 where a row belongs to no sequence. Dropout is the same as
// without.
//
// With the attribute looked_up=1, `word` is not the table but what bert_words (words.cc) has looked up in it,
// in the shape of the output, and so is its gradient.
//
// All but ids and places are float32.
#include <cstring>
#include <vector>

#include "dropout_choice.h"
#include "embed_kernels.h"
#include "indices.h"
#include "operator.h"
#include "token_rows.h"

namespace operators {
namespace {

enum Input { kIds, kSegments, kWord, kSegment, kPosition, kGamma, kBeta, kMode, kPlaces };

int inputs_of(const Attributes& attributes) { return is_packed(attributes) ? kPlaces + 1 : kPlaces; }

bool is_looked_up(const Attributes& attributes) {
  return attributes.count("looked_up") != 0 && integer(attributes, "looked_up") != 0;
}

MXReturnValue attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_embed", [&] {
    number(attributes, "eps");
    dropout_rate(attributes);
    *inputs = inputs_of(attributes);
    *outputs = 2;
  });
}

MXReturnValue types(const Attributes& attributes, Types* in, Types* out) {
  in->assign(inputs_of(attributes), mxnet::ext::kFloat32);
  if (is_packed(attributes)) in->at(kPlaces) = mxnet::ext::kInt32;
  in->at(kIds) = in->at(kSegments) = mxnet::ext::kInt32;
  out->assign(2, mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

MXReturnValue shapes(const Attributes& attributes, Shapes* in, Shapes* out) {
  return guarded("bert_embed", [&] {
    const Shape ids = in->at(kIds), word = in->at(kWord);
    const Shape segment = in->at(kSegment), position = in->at(kPosition);
    require(ids.size() == 2, "input_ids must have two axes");
    require(position.size() == 2, "position must have two axes");
    const unsigned units = position[1];
    if (position[0] < ids[1])
      throw std::runtime_error("sequences of " + std::to_string(ids[1]) + " tokens and only " +
                               std::to_string(position[0]) + " positions");
    in->at(kSegments) = ids;
    require(segment.size() == 2 && segment[1] == units, "segment must have as many columns as position");
    in->at(kGamma) = in->at(kBeta) = {units};
    in->at(kMode) = {1};
    if (is_packed(attributes)) {
      check_places(in->at(kPlaces));
      out->at(0) = {in->at(kPlaces)[0], units};
    } else {
      out->at(0) = {ids[0], ids[1], units};
    }
    if (is_looked_up(attributes))
      require(word == out->at(0), "word, looked up, must have the shape of the output");
    else
      require(word.size() == 2 && word[1] == units, "word must have as many columns as position");
    out->at(1) = {2};
  });
}

TokenRows rows_of(const Attributes& attributes, const mxnet::ext::MXTensor* in) {
  return TokenRows(in[kIds], is_packed(attributes) ? in + kPlaces : nullptr);
}

// `in` from the operator's first input on.
Embedding embedding(const Attributes& attributes, const mxnet::ext::MXTensor* in, const TokenRows& rows,
                    const Dropout& dropout) {
  return {rows.tokens_or_null(),
          rows.sequences.data(),
          is_looked_up(attributes) ? nullptr : indices(in[kIds]),
          indices(in[kSegments]),
          floats(in[kWord]),
          floats(in[kSegment]),
          floats(in[kPosition]),
          floats(in[kGamma]),
          rows.count,
          static_cast<int64_t>(rows.sequences.size()),
          in[kIds].shape[1],
          in[kPosition].shape[1],
          in[kWord].shape[0],
          in[kSegment].shape[0],
          in[kPosition].shape[0],
          static_cast<float>(number(attributes, "eps")),
          dropout};
}

MXReturnValue forward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource& resource) {
  return guarded("bert_embed", [&] {
    if (!is_looked_up(attributes)) check_indices(in->at(kIds), in->at(kWord).shape[0], "token");
    check_indices(in->at(kSegments), in->at(kSegment).shape[0], "segment");
    const Dropout dropout = choose_dropout(attributes, in->at(kMode), resource, &out->at(1));
    const TokenRows rows = rows_of(attributes, in->data());
    KERNEL(embed)(embedding(attributes, in->data(), rows, dropout), floats(in->at(kBeta)),
                  floats(out->at(0)));
  });
}

// inputs: gradients of output and key, the inputs, output, key; outputs: gradients of the inputs.
MXReturnValue backward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_embed's backward", [&] {
    const mxnet::ext::MXTensor* inputs = in->data() + 2;
    // MXNet runs a backward pass also where the forward pass has failed.
    check_indices(inputs[kSegments], inputs[kSegment].shape[0], "segment");
    const Dropout dropout = chosen_dropout(attributes, inputs[kMode], in->at(2 + inputs_of(attributes) + 1));
    const TokenRows rows = rows_of(attributes, inputs);
    const Embedding embed = embedding(attributes, inputs, rows, dropout);
    const EmbeddingGradients gradients = {floats(out->at(kWord)), floats(out->at(kSegment)),
                                          floats(out->at(kPosition)), floats(out->at(kGamma)),
                                          floats(out->at(kBeta))};
    if (is_looked_up(attributes)) {
      KERNEL(embed_backward)(embed, {nullptr, nullptr}, floats(in->at(0)), gradients);
    } else {
      const WordRows words(inputs[kIds], rows, embed.vocabulary);
      KERNEL(embed_backward)
      (embed, {words.first.data(), words.next.data()}, floats(in->at(0)), gradients);
    }
    std::vector<int> without = {kIds, kSegments, kMode};
    if (is_packed(attributes)) without.push_back(kPlaces);
    for (int input : without)  // 0 has the same bits as int32 and as float32.
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

// bert_words(word (V, U), input_ids (B, L) int32, predicted_ids (any shape, N elements) int32; dtype)
//   -> rows (B, L, U): word[input_ids], for bert_embed with looked_up=1;
//      decoder (1 axis): for bert_decode_loss with deferred=1 and N rows.
//
// The word table where it is the decoder's weight too: it has one gradient, which this operator writes once.
// Two operators that use the table itself write two gradients of its size, most of one of them zeros, and
// MXNet adds them up into a third.
//
// The forward pass does not write `decoder`, and bert_decode_loss does not read it: through its gradient that
// operator hands over the two factors of the decoder's part of the gradient (word_factors.h), and this one
// multiplies them, as it would have done itself, and adds the rows' gradients to the product, for each word
// the sum of its rows. Only one operator may use `decoder`.
//
// With the attribute packed=1 there is one more input, places (T, 2) int32 (sequences.h), and rows is (T, U),
// 0 where a row belongs to no sequence. All but ids and places are float32. Ids outside the table are an
// error.
#include <cstring>

#include "indices.h"
#include "operator.h"
#include "token_rows.h"
#include "word_factors.h"
#include "words_kernels.h"

namespace operators {
namespace {

enum Input { kWord, kIds, kPredicted, kPlaces };
enum Output { kRows, kDecoder };

int inputs_of(const Attributes& attributes) { return is_packed(attributes) ? kPlaces + 1 : kPlaces; }

MXReturnValue attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_words", [&] {
    low_precision(attributes);
    *inputs = inputs_of(attributes);
    *outputs = 2;
  });
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  in->assign(in->size(), mxnet::ext::kInt32);
  in->at(kWord) = mxnet::ext::kFloat32;
  out->assign(2, mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

MXReturnValue shapes(const Attributes& attributes, Shapes* in, Shapes* out) {
  return guarded("bert_words", [&] {
    const Shape &word = in->at(kWord), &ids = in->at(kIds);
    require(word.size() == 2, "word must have two axes");
    require(ids.size() == 2, "input_ids must have two axes");
    int64_t predicted = 1;
    for (const auto size : in->at(kPredicted)) predicted *= size;
    require(predicted > 0, "predicted_ids may not be empty");
    if (is_packed(attributes)) {
      check_places(in->at(kPlaces));
      out->at(kRows) = {in->at(kPlaces)[0], word[1]};
    } else {
      out->at(kRows) = {ids[0], ids[1], word[1]};
    }
    const WordFactors factors(low_precision(attributes), word[0], decoder_width(predicted), word[1]);
    out->at(kDecoder) = {static_cast<unsigned>(factors.array_size())};
  });
}

TokenRows rows_of(const Attributes& attributes, const mxnet::ext::MXTensor* in) {
  return TokenRows(in[kIds], is_packed(attributes) ? in + kPlaces : nullptr);
}

MXReturnValue forward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_words", [&] {
    const auto& word = in->at(kWord);
    check_indices(in->at(kIds), word.shape[0], "token");
    const TokenRows rows = rows_of(attributes, in->data());
    KERNEL(look_up)
    (floats(word), indices(in->at(kIds)), rows.tokens_or_null(), rows.count, word.shape[1],
     floats(out->at(kRows)));
  });
}

// inputs: gradients of rows and decoder, the inputs, the outputs; outputs: gradients of the inputs.
MXReturnValue backward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_words's backward", [&] {
    const mxnet::ext::MXTensor* inputs = in->data() + 2;
    const int64_t vocabulary = inputs[kWord].shape[0], units = inputs[kWord].shape[1];
    const TokenRows rows = rows_of(attributes, inputs);
    const WordRows of_words(inputs[kIds], rows, vocabulary);
    const float* const row_gradients = floats(in->at(kRows));
    float *const array = floats(in->at(kDecoder)), *const gradient = floats(out->at(kWord));
    const int64_t width = WordFactors::width_in(array);
    const WordFactors factors(low_precision(attributes), vocabulary, width, units);
    require(factors.array_size() <= in->at(kDecoder).size(), "the output for the decoder is for another one");
    for_chunks_of_words(vocabulary, [&](int64_t first, int64_t words) {
      float* const chunk = gradient + first * units;
      if (width == 0)
        std::memset(chunk, 0, words * units * sizeof(float));
      else
        factors.multiply(factors.hidden_in(array), factors.gradient_in(array, first), words, chunk);
      KERNEL(add_rows)
      (row_gradients, of_words.first.data() + first, of_words.next.data(), words, units, chunk);
    });
    for (int input = kIds; input < inputs_of(attributes); input++)  // 0 has the same bits as int32
      std::memset(out->at(input).data_ptr, 0, out->at(input).size() * sizeof(int32_t));
  });
}

REGISTER_OP(bert_words)
    .setParseAttrs(attributes)
    .setInferType(types)
    .setInferShape(shapes)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu");

}  // namespace
}  // namespace operators

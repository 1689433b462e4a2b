#pragma once

#include <cstdint>

#include "dropout_choice.h"
#include "isa.h"

namespace operators {

// The sum that is normalised for token t of sequence b is
// dropout(word[ids[b, t]] + segment[segments[b, t]] + position[t]).
struct Embedding {
  const int32_t* ids;       // (batch, length), below vocabulary
  const int32_t* segments;  // (batch, length), below types
  const float* word;        // (vocabulary, units)
  const float* segment;     // (types, units)
  const float* position;    // (positions, units), positions >= length
  const float* gamma;       // (units)
  int64_t batch, length, units, vocabulary, types, positions;
  float epsilon;
  Dropout dropout;
};

// Where the gradients go, in the shapes of the above.
struct EmbeddingGradients {
  float *word, *segment, *position, *gamma, *beta;
};

// The tokens of each word: first[word] is the first one's index in (batch, length) or -1, next[token] the one
// after it or -1, in ascending order.
struct WordTokens {
  const int32_t* first;
  const int32_t* next;
};

}  // namespace operators

DECLARE_KERNELS(
    // output = LayerNorm(the sum), (batch, length, units).
    void embed(const Embedding& inputs, const float* beta, float* output);

    void embed_backward(const Embedding& inputs, const WordTokens& tokens, const float* output_gradient,
                        const EmbeddingGradients& gradients);)

#pragma once

#include <cstdint>

#include "dropout_choice.h"
#include "isa.h"
#include "sequences.h"

namespace operators {

// The sum that is normalised in the row of token t of sequence b is
// dropout(word[ids[b, t]] + segment[segments[b, t]] + position[t]).
struct Embedding {
  // Of each row its token's index in (batch, length), -1 in a row of no sequence; null where row i is token
  // i.
  const int32_t* tokens;
  const Sequence* sequences;  // (batch)
  const int32_t* ids;         // (batch, length), below vocabulary; null: word is (rows, units), looked up
  const int32_t* segments;    // (batch, length), below types
  const float* word;          // (vocabulary, units)
  const float* segment;       // (types, units)
  const float* position;      // (positions, units), positions >= length
  const float* gamma;         // (units)
  int64_t rows, batch, length, units, vocabulary, types, positions;
  float epsilon;
  Dropout dropout;
};

// Where the gradients go, in the shapes of the above.
struct EmbeddingGradients {
  float *word, *segment, *position, *gamma, *beta;
};

// The data of WordRows (token_rows.h); null where words are looked up.
struct RowsOfWords {
  const int32_t* first;
  const int32_t* next;
};

}  // namespace operators

DECLARE_KERNELS(
    // output = LayerNorm(the sum), (rows, units); 0 in rows of no sequence.
    void embed(const Embedding& inputs, const float* beta, float* output);

    void embed_backward(const Embedding& inputs, const RowsOfWords& words, const float* output_gradient,
                        const EmbeddingGradients& gradients);)

#pragma once

#include <cstdint>

#include "dropout_choice.h"
#include "isa.h"
#include "sequences.h"

namespace operators {

// A sequence is cut into parts of at most this many queries.
constexpr int64_t kLargestPart = 32;

// Self-attention's sizes. A row of qkv has 3 * heads * size columns: all heads' queries, then keys, then
// values.
struct Attention {
  int64_t batch, length, heads, size;  // length: rows of the longest sequence
  // (batch): each row has a query; keys are those of tokens.
  const Sequence* sequences;
  // Of the probabilities. In sequence b, whose first row is f and which has n rows, those of head h and query
  // i are the row f * heads + h * n + i, and the keys its columns.
  Dropout dropout;
  // Whether the factors of all products are rounded to bfloat16; sums, softmax and dropout are float32's.
  bool low;
  bool tiled;  // whether those products are of tiles (tile_products() in matmul.h)
  // Each head's queries are cut into this many parts, so that all threads have work; into fewer where the
  // sequence is too short.
  int64_t parts;
};

}  // namespace operators

DECLARE_KERNELS(
    // context (rows, heads * size) = dropout(softmax(query * key^T / sqrt(size))) * value, and log_sum, for
    // each sequence (heads, its rows), = the logarithm of the softmax's denominator. 0 where there are no
    // keys; rows of no sequence are left as they are.
    void attention(const Attention& shape, const float* qkv, float* context, float* log_sum);

    // The gradient of qkv from those of context. `partial` holds attention_partial_size() floats.
    void attention_backward(const Attention& shape, const float* context_gradient, const float* qkv,
                            const float* context, const float* log_sum, float* partial, float* qkv_gradient);

    // Floats that the parts' sums take; none if there is only one part.
    int64_t attention_partial_size(const Attention& shape);)

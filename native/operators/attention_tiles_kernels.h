// Self-attention between products on tiles: queries, keys, values, context and their gradients are
// bfloat16, packed as left factors (tile_matmul.h) of the products before and behind it. Queries are divided
// by the root of a head's size before they are rounded.
#pragma once

#include <cstdint>

#include "attention_kernels.h"
#include "isa.h"

namespace operators {

// Whether a head's columns, so many, are whole steps of a packed factor.
inline bool packs_heads(int64_t size) { return size % 32 == 0; }

// A backward pass's inputs: factors of (rows, heads * size) but for qkv (rows, 3 * heads * size).
struct PackedAttention {
  const uint32_t *context_gradient, *qkv, *context;
  const float* log_sum;
};

}  // namespace operators

DECLARE_KERNELS(
    // attention() of bfloat16 from packed factors to one, for shapes with packs_heads().
    void packed_attention(const Attention& shape, const uint32_t* qkv, uint32_t* context, float* log_sum);

    // attention_backward() likewise. `partial` holds attention_partial_size() floats.
    void packed_attention_backward(const Attention& shape, const PackedAttention& arrays, float* partial,
                                   uint32_t* qkv_gradient);)

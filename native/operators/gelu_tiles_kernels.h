// Products on AMX's tiles with GELU behind them: of what they give, only what goes into GELU meets the memory
// as float32.
#pragma once

#include <cstdint>

#include "isa.h"
#include "tile_product_kernels.h"

namespace operators {

// What is added to a product (columns), and the form of GELU that follows.
struct BiasGelu {
  const float* bias;
  bool tanh;
};

// Floats that it takes to keep a matrix block by block of 32 rows and columns, columns of blocks one after
// the other: what is read together lies together.
inline int64_t kept_size(int64_t rows, int64_t columns) {
  return (rows + 31) / 32 * 32 * ((columns + 31) / 32 * 32);
}

}  // namespace operators

DECLARE_KERNELS(
    // Packs gelu(product + bias), and keeps product + bias. The product's own output and bias are not used.
    void multiply_gelu(const TileProduct& product, const BiasGelu& gelu, float* kept,
                       const PackedForms& forms);

    // The product is the gradient of that: packs the gradient of GELU's input and once more its output, and
    // sums up the former over the rows.
    void multiply_gelu_backward(const TileProduct& product, bool tanh, const float* kept,
                                const PackedForms& input_gradient, const PackedForms& output,
                                float* bias_gradient);)

// Products on tiles with GELU behind them: of what they give, only what goes into GELU is kept, and
// that as bfloat16.
#pragma once

#include <cstdint>

#include "gelu_kernels.h"
#include "isa.h"
#include "tile_product_kernels.h"

namespace operators {

// What is added to a product (columns), and the form of GELU that follows.
struct BiasGelu {
  const float* bias;
  Form form;
};

// Where the gradient of GELU's input goes, as a left factor and transposed as one, and GELU's output as a
// right factor (both as PackedForms has them).
struct GeluGradientForms {
  uint32_t *left, *transposed_left, *output_right;
};

// Numbers of 16 bits that it takes to keep a matrix block by block of 32 rows and columns, columns of blocks
// one after the other: what is read together lies together. Always even.
inline int64_t kept_size(int64_t rows, int64_t columns) {
  return (rows + 31) / 32 * 32 * ((columns + 31) / 32 * 32);
}

}  // namespace operators

DECLARE_KERNELS(
    // Packs gelu(product + bias) as a left factor, and keeps product + bias rounded to bfloat16. The
    // product's own output and bias are not used.
    void multiply_gelu(const TileProduct& product, const BiasGelu& gelu, uint16_t* kept, uint32_t* left);

    // The product is the gradient of that: packs the gradient of GELU's input and once more its output, both
    // at what was kept, and sums up the former over the rows.
    void multiply_gelu_backward(const TileProduct& product, Form form, const uint16_t* kept,
                                const GeluGradientForms& forms, float* bias_gradient);)

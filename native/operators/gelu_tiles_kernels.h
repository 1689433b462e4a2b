// GELU between two products on AMX's tiles: what comes out of the one as float32 goes packed into the other.
#pragma once

#include <cstdint>

#include "isa.h"
#include "tile_product_kernels.h"

namespace operators {

// input (rows, columns), before the bias (columns) is added.
struct GeluInput {
  const float *input, *bias;
  int64_t rows, columns;
  bool tanh;  // the form
};

}  // namespace operators

DECLARE_KERNELS(
    // Packs gelu(input + bias).
    void pack_gelu(const GeluInput& input, const PackedForms& forms);

    // From the gradient of that (rows, columns): packs the gradient of the input and once more gelu(input +
    // bias), and sums up the former over the rows.
    void pack_gelu_backward(const GeluInput& input, const float* gradient, const PackedForms& input_gradient,
                            const PackedForms& output, float* bias_gradient);)

#pragma once

#include <cstdint>

#include "isa.h"

namespace operators {
constexpr int64_t kLeastColumns = 8;  // of multiply_few_rows: a tile's
}

DECLARE_KERNELS(
    // Whether this build has instructions for sums of products of bfloat16 (AVX-512 BF16, AMX).
    bool multiplies_bfloat16();

    // Rounds to the nearest bfloat16, ties to even; what is no number stays none.
    void round_within_float(const float* source, float* target, int64_t size);
    // The same, and what is left of each number rounded in the same way.
    void split_within_float(const float* source, float* rounded, float* rest, int64_t size);

    // y (rows, columns) = x (rows, depth) weight^T (depth, columns) [+ bias (columns)] for few rows: weight
    // (columns, depth) is read once, from where it lies; x, packed, stays in a cache. At least kLeastColumns
    // columns.
    void multiply_few_rows(const float* x, int64_t rows, int64_t depth, const float* weight, int64_t columns,
                           const float* bias, float* y);

    // sums[c] = the sum over rows of matrix[row * columns + c], in an order that depends only on the number
    // of threads.
    void column_sums(const float* matrix, int64_t rows, int64_t columns, float* sums);)

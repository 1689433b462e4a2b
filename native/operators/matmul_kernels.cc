// What goes with matrix products: rounding factors to bfloat16, the gradient of a bias; products of few rows.
#include "matmul_kernels.h"

#include <algorithm>

#include "bfloat16.h"
#include "column_sums.h"
#include "small_matmul.h"

namespace operators {
namespace ISA {

bool multiplies_bfloat16() {
#ifdef __AVX512BF16__
  return true;
#else
  return false;
#endif
}

void round_within_float(const float* source, float* target, int64_t size) {
#pragma omp parallel for simd
  for (int64_t i = 0; i < size; i++) target[i] = round_in_float(source[i]);
}

void split_within_float(const float* source, float* rounded, float* rest, int64_t size) {
#pragma omp parallel for simd
  for (int64_t i = 0; i < size; i++) {
    rounded[i] = round_in_float(source[i]);
    rest[i] = round_in_float(source[i] - rounded[i]);
  }
}

void multiply_few_rows(const float* x, int64_t rows, int64_t depth, const float* weight, int64_t columns,
                       const float* bias, float* y) {
  static_assert(kTileRows <= kLeastColumns, "a tile takes so many rows of the weight");
  const Scratch packed(packed_size(depth, rows));
  pack_transposed(x, depth, depth, rows, packed.data());
  const int64_t tiles = (columns + kTileRows - 1) / kTileRows, stride = round_up(rows, kLanes);
#pragma omp parallel for schedule(static)
  for (int64_t tile = 0; tile < tiles; tile++) {
    // The last tile begins early enough to be a whole one.
    const int64_t begin = std::min(tile * kTileRows, columns - kTileRows);
    float* const product = thread_scratch(product_size(kTileRows, stride));
    multiply<false, false>(weight + begin * depth, depth, kTileRows, packed.data(), depth, rows, product,
                           stride);
    for (int64_t column = tile * kTileRows; column < begin + kTileRows; column++) {
      const float* sums = product + (column - begin) * stride;
      const float added = bias ? bias[column] : 0.f;
      for (int64_t row = 0; row < rows; row++) y[row * columns + column] = sums[row] + added;
    }
  }
}

void column_sums(const float* matrix, int64_t rows, int64_t columns, float* sums) {
  ColumnSums partial(1, columns);
#pragma omp parallel
  {
    float* sum = partial.mine();
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
      const float* values = matrix + row * columns;
#pragma omp simd
      for (int64_t c = 0; c < columns; c++) sum[c] += values[c];
    }
    partial.store(0, sums);
  }
}

}  // namespace ISA
}  // namespace operators

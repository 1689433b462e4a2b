// What goes with matrix products: rounding factors to bfloat16, and the gradient of a bias.
#include "matmul_kernels.h"

#include <algorithm>

#include "bfloat16.h"
#include "column_sums.h"

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

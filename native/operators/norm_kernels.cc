#include "norm_kernels.h"

#include <omp.h>

#include "column_sums.h"
#include "dropout.h"
#include "norm_rows.h"

namespace operators {
namespace ISA {

namespace {

// Starts loading a row, for writing if kWrite. Arrays are long out of the caches when their backward pass
// comes, and the processor does not look far enough ahead: rows are asked for one row early, an array at a
// time between the passes over the row before. Beyond an array's end that is harmless.
template <bool kWrite = false>
void prefetch_row(const float* row, int64_t columns) {
  for (int64_t c = 0; c < columns; c += 16) __builtin_prefetch(row + c, kWrite, 2);
}

}  // namespace

void layer_norm(const float* input, const float* gamma, const float* beta, float* output, int64_t rows,
                int64_t columns, float epsilon) {
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; row++) {
    const float* x = input + row * columns;
    normalise_row(row_statistics(x, columns, epsilon), x, gamma, beta, output + row * columns, columns);
  }
}

void layer_norm_backward(const float* output_gradient, const float* input, const float* gamma,
                         float* input_gradient, float* gamma_gradient, float* beta_gradient, int64_t rows,
                         int64_t columns, float epsilon) {
  ColumnSums sums(2, columns);
#pragma omp parallel
  {
    float* gamma_sum = sums.mine();
    float* beta_sum = gamma_sum + columns;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
      const float* x = input + row * columns;
      normalise_row_backward(row_statistics(x, columns, epsilon), x, gamma, output_gradient + row * columns,
                             input_gradient + row * columns, gamma_sum, beta_sum, columns);
    }
    sums.store(0, gamma_gradient);
    sums.store(1, beta_gradient);
  }
}

void add_norm(const AddNorm& in, const float* beta, float* output) {
  const int64_t columns = in.columns;
  const Dropout dropout = in.dropout;
  DropoutMemory memory(columns);
#pragma omp parallel
  {
    uint32_t* const random = memory.mine();
#pragma omp for schedule(static)
    for (int64_t row = 0; row < in.rows; row++) {
      const float* x = in.input + row * columns;
      const float* r = in.residual + row * columns;
      float* y = output + row * columns;
      const DropoutRow dropped(dropout, row, columns, random);
      if (dropout.threshold == 0) {
#pragma omp simd
        for (int64_t c = 0; c < columns; c++) y[c] = r[c] + (x[c] + in.bias[c]);
      } else {
#pragma omp simd
        for (int64_t c = 0; c < columns; c++)
          y[c] = r[c] + (x[c] + in.bias[c]) * dropped.factor(c, dropout.scale);
      }
      normalise_row(row_statistics(y, columns, in.epsilon), y, in.gamma, beta, y, columns);
    }
  }
}

// The sum that was normalised, its statistics and the dropped elements are worked out again from the inputs,
// which MXNet keeps anyway.
void add_norm_backward(const AddNorm& in, const float* output_gradient, const AddNormGradients& gradients) {
  const int64_t columns = in.columns;
  const Dropout dropout = in.dropout;
  ColumnSums sums(3, columns);
  const int64_t stride = (columns + 15) / 16 * 16;
  Scratch buffers(2 * stride * omp_get_max_threads());
  DropoutMemory memory(columns);
#pragma omp parallel
  {
    uint32_t* const random = memory.mine();
    float* bias_sum = sums.mine();
    float* gamma_sum = bias_sum + columns;
    float* beta_sum = gamma_sum + columns;
    float* z = buffers.data() + 2 * stride * omp_get_thread_num();
    float* factor = z + stride;
#pragma omp simd
    for (int64_t c = 0; c < columns; c++) factor[c] = 1;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < in.rows; row++) {
      const float* x = in.input + row * columns;
      const float* r = in.residual + row * columns;
      float* dx = gradients.input + row * columns;
      float* dr = gradients.residual + row * columns;
      prefetch_row(x + columns, columns);
      if (dropout.threshold != 0) {
        const DropoutRow dropped(dropout, row, columns, random);
#pragma omp simd
        for (int64_t c = 0; c < columns; c++) factor[c] = dropped.factor(c, dropout.scale);
      }
#pragma omp simd
      for (int64_t c = 0; c < columns; c++) z[c] = r[c] + (x[c] + in.bias[c]) * factor[c];
      prefetch_row(r + columns, columns);
      normalise_row_backward(row_statistics(z, columns, in.epsilon), z, in.gamma,
                             output_gradient + row * columns, dr, gamma_sum, beta_sum, columns);
      prefetch_row(output_gradient + (row + 1) * columns, columns);
      prefetch_row<true>(dr + columns, columns);
#pragma omp simd
      for (int64_t c = 0; c < columns; c++) {
        dx[c] = dr[c] * factor[c];
        bias_sum[c] += dx[c];
      }
      prefetch_row<true>(dx + columns, columns);
    }
    sums.store(0, gradients.bias);
    sums.store(1, gradients.gamma);
    sums.store(2, gradients.beta);
  }
}

}  // namespace ISA
}  // namespace operators

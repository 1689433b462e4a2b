// Layer normalisation of one row (Ba, Kiros and Hinton, arXiv:1607.06450) and its gradient. A row stays in
// the first level of cache: to pass over it several times costs little.
#pragma once

#include <cmath>
#include <cstdint>

#include "dropout.h"

namespace operators {
namespace ISA {

struct RowStatistics {
  float mean, correction, inverse_deviation;

  float normalised(float z) const { return ((z - mean) - correction) * inverse_deviation; }
};

// Biased variance, with the corrected two-pass algorithm: the second pass also adds up how far the rounded
// mean is off, which matters where the mean is large and the spread small.
inline RowStatistics row_statistics(const float* z, int64_t columns, float epsilon) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < columns; c++) sum += z[c];
  const float mean = sum / columns;
  float rest = 0, squares = 0;
#pragma omp simd reduction(+ : rest, squares)
  for (int64_t c = 0; c < columns; c++) {
    const float distance = z[c] - mean;
    rest += distance;
    squares += distance * distance;
  }
  const float correction = rest / columns;
  const float variance = squares / columns - correction * correction;
  return {mean, correction, 1.f / std::sqrt((variance < 0.f ? 0.f : variance) + epsilon)};
}

// y = normalised z * gamma + beta. y may be z.
inline void normalise_row(const RowStatistics& row, const float* z, const float* gamma, const float* beta,
                          float* y, int64_t columns) {
#pragma omp simd
  for (int64_t c = 0; c < columns; c++) y[c] = row.normalised(z[c]) * gamma[c] + beta[c];
}

// dz from dy, which it may be; adds the row's share to the gradients of gamma and beta.
inline void normalise_row_backward(const RowStatistics& row, const float* z, const float* gamma,
                                   const float* dy, float* dz, float* gamma_gradient, float* beta_gradient,
                                   int64_t columns) {
  float sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
  for (int64_t c = 0; c < columns; c++) {
    const float n = row.normalised(z[c]);
    const float dn = dy[c] * gamma[c];
    sum += dn;
    product += dn * n;
    gamma_gradient[c] += dy[c] * n;
    beta_gradient[c] += dy[c];
  }
  const float mean = sum / columns, slope = product / columns;
#pragma omp simd
  for (int64_t c = 0; c < columns; c++)
    dz[c] = ((dy[c] * gamma[c] - mean) - row.normalised(z[c]) * slope) * row.inverse_deviation;
}

}  // namespace ISA
}  // namespace operators

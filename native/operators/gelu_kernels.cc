// gelu(x) = x * Phi(x) with Phi the normal distribution (Hendrycks and Gimpel, arXiv:1606.08415), not its
// approximation by tanh.
#include "gelu_kernels.h"

#include "column_sums.h"
#include "vector_math.h"

namespace operators {
namespace ISA {
namespace {

constexpr float kInverseSqrtTwoPi = 0.39894228f;

// Phi(h) within 7.5e-8 (Abramowitz and Stegun, 26.2.17), given e^(-h^2 / 2). The smaller one of Phi(h) and
// Phi(-h) is not computed as a difference, so it fades to 0 without noise.
inline float normal_cdf(float h, float gauss) {
  const float t = 1.f / (1.f + 0.2316419f * std::fabs(h));
  float p = 0.530702714f;
  p = p * t - 0.726576013f;
  p = p * t + 0.710706870f;
  p = p * t - 0.142248368f;
  p = p * t + 0.127414796f;
  const float tail = p * t * gauss;
  return h < 0.f ? tail : 1.f - tail;
}

}  // namespace

void bias_gelu(const float* input, const float* bias, float* output, int64_t rows, int64_t columns) {
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; row++) {
    const float* x = input + row * columns;
    float* y = output + row * columns;
#pragma omp simd
    for (int64_t c = 0; c < columns; c++) {
      const float h = x[c] + bias[c];
      y[c] = h * normal_cdf(h, fast_exp(-0.5f * h * h));
    }
  }
}

void bias_gelu_backward(const float* output_gradient, const float* input, const float* bias,
                        float* input_gradient, float* bias_gradient, int64_t rows, int64_t columns) {
  ColumnSums sums(1, columns);
#pragma omp parallel
  {
    float* bias_sum = sums.mine();
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
      const float* x = input + row * columns;
      const float* dy = output_gradient + row * columns;
      float* dx = input_gradient + row * columns;
#pragma omp simd
      for (int64_t c = 0; c < columns; c++) {
        const float h = x[c] + bias[c];
        const float gauss = fast_exp(-0.5f * h * h);
        dx[c] = dy[c] * (normal_cdf(h, gauss) + h * kInverseSqrtTwoPi * gauss);
        bias_sum[c] += dx[c];
      }
    }
    sums.store(0, bias_gradient);
  }
}

}  // namespace ISA
}  // namespace operators

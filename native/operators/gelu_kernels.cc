#include "gelu_kernels.h"

#include "column_sums.h"
#include "gelu_math.h"

namespace operators {
namespace ISA {
namespace {

template <typename Form>
void forward(const float* input, const float* bias, float* output, int64_t rows, int64_t columns) {
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; row++) {
    const float* x = input + row * columns;
    float* y = output + row * columns;
#pragma omp simd
    for (int64_t c = 0; c < columns; c++) y[c] = Form::value(x[c] + bias[c]);
  }
}

template <typename Form>
void backward(const float* output_gradient, const float* input, const float* bias, float* input_gradient,
              float* bias_gradient, int64_t rows, int64_t columns) {
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
        dx[c] = dy[c] * Form::both(x[c] + bias[c]).slope;
        bias_sum[c] += dx[c];
      }
    }
    sums.store(0, bias_gradient);
  }
}

// As backward, in place, and the output once more.
template <typename Form>
void backward_again(float* gradient, const float* input, const float* bias, float* output,
                    float* bias_gradient, int64_t rows, int64_t columns) {
  ColumnSums sums(1, columns);
#pragma omp parallel
  {
    float* bias_sum = sums.mine();
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
      const float* x = input + row * columns;
      float* d = gradient + row * columns;
      float* y = output + row * columns;
#pragma omp simd
      for (int64_t c = 0; c < columns; c++) {
        const Gelu gelu = Form::both(x[c] + bias[c]);
        y[c] = gelu.value;
        d[c] *= gelu.slope;
        bias_sum[c] += d[c];
      }
    }
    sums.store(0, bias_gradient);
  }
}

}  // namespace

void bias_gelu_backward_again(bool tanh, float* gradient, const float* input, const float* bias,
                              float* output, float* bias_gradient, int64_t rows, int64_t columns) {
  const auto form = tanh ? backward_again<Tanh> : backward_again<Erf>;
  form(gradient, input, bias, output, bias_gradient, rows, columns);
}

void bias_gelu(const float* input, const float* bias, float* output, int64_t rows, int64_t columns) {
  forward<Erf>(input, bias, output, rows, columns);
}

void bias_gelu_backward(const float* output_gradient, const float* input, const float* bias,
                        float* input_gradient, float* bias_gradient, int64_t rows, int64_t columns) {
  backward<Erf>(output_gradient, input, bias, input_gradient, bias_gradient, rows, columns);
}

void bias_gelu_tanh(const float* input, const float* bias, float* output, int64_t rows, int64_t columns) {
  forward<Tanh>(input, bias, output, rows, columns);
}

void bias_gelu_tanh_backward(const float* output_gradient, const float* input, const float* bias,
                             float* input_gradient, float* bias_gradient, int64_t rows, int64_t columns) {
  backward<Tanh>(output_gradient, input, bias, input_gradient, bias_gradient, rows, columns);
}

}  // namespace ISA
}  // namespace operators

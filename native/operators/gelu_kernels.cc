#include "gelu_kernels.h"

#include "column_sums.h"
#include "gelu_math.h"

namespace operators {
namespace ISA {
namespace {

template <typename Activation>
void forward(const float* input, const float* bias, float* output, int64_t rows, int64_t columns) {
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; row++) {
    const float* x = input + row * columns;
    float* y = output + row * columns;
#pragma omp simd
    for (int64_t c = 0; c < columns; c++) y[c] = Activation::value(x[c] + bias[c]);
  }
}

template <typename Activation>
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
        dx[c] = dy[c] * Activation::both(x[c] + bias[c]).slope;
        bias_sum[c] += dx[c];
      }
    }
    sums.store(0, bias_gradient);
  }
}

// As backward, in place, and the output once more.
template <typename Activation>
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
        const Gelu gelu = Activation::both(x[c] + bias[c]);
        y[c] = gelu.value;
        d[c] *= gelu.slope;
        bias_sum[c] += d[c];
      }
    }
    sums.store(0, bias_gradient);
  }
}

}  // namespace

void bias_gelu_backward_again(Form form, float* gradient, const float* input, const float* bias,
                              float* output, float* bias_gradient, int64_t rows, int64_t columns) {
  const auto run = form == Form::relu   ? backward_again<Relu>
                   : form == Form::tanh ? backward_again<Tanh>
                                        : backward_again<Erf>;
  run(gradient, input, bias, output, bias_gradient, rows, columns);
}

void bias_gelu(Form form, const float* input, const float* bias, float* output, int64_t rows,
               int64_t columns) {
  const auto run = form == Form::relu ? forward<Relu> : form == Form::tanh ? forward<Tanh> : forward<Erf>;
  run(input, bias, output, rows, columns);
}

void bias_gelu_backward(Form form, const float* output_gradient, const float* input, const float* bias,
                        float* input_gradient, float* bias_gradient, int64_t rows, int64_t columns) {
  const auto run = form == Form::relu ? backward<Relu> : form == Form::tanh ? backward<Tanh> : backward<Erf>;
  run(output_gradient, input, bias, input_gradient, bias_gradient, rows, columns);
}

}  // namespace ISA
}  // namespace operators

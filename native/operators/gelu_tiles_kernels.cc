#include "gelu_tiles_kernels.h"

#include <cstdlib>

#ifdef __AMX_BF16__
#include "column_sums.h"
#include "gelu_math.h"
#include "tile_packing.h"
#endif

namespace operators {
namespace ISA {

#ifdef __AMX_BF16__
namespace {

template <typename Form>
void pack_value(const GeluInput& given, const PackedForms& forms) {
  const GeluInput in = given;
  const PackedForms to = forms;
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < in.rows; row += kDeep)
    for (int64_t column = 0; column < in.columns; column += kDeep) {
      const MatrixBlock block = {in.rows, in.columns, row, column};
      const int64_t width = block.width();
      alignas(64) float values[kDeep * kDeep];
      for (int64_t r = 0; r < block.height(); r++) {
        const float* x = in.input + (row + r) * in.columns + column;
#pragma omp simd
        for (int64_t c = 0; c < width; c++) values[r * kDeep + c] = Form::value(x[c] + in.bias[column + c]);
      }
      pack_block(values, kDeep, block, to);
    }
}

template <typename Form>
void pack_backward(const GeluInput& given, const float* gradient, const PackedForms& input_gradient,
                   const PackedForms& output, float* bias_gradient) {
  const GeluInput in = given;
  const PackedForms to_gradient = input_gradient, to_output = output;
  ColumnSums sums(1, in.columns);
#pragma omp parallel
  {
    float* bias_sum = sums.mine();
#pragma omp for schedule(static)
    for (int64_t row = 0; row < in.rows; row += kDeep)
      for (int64_t column = 0; column < in.columns; column += kDeep) {
        const MatrixBlock block = {in.rows, in.columns, row, column};
        const int64_t width = block.width();
        alignas(64) float values[kDeep * kDeep], slopes[kDeep * kDeep];
        float* sum = bias_sum + column;
        for (int64_t r = 0; r < block.height(); r++) {
          const float* x = in.input + (row + r) * in.columns + column;
          const float* dy = gradient + (row + r) * in.columns + column;
#pragma omp simd
          for (int64_t c = 0; c < width; c++) {
            const Gelu gelu = Form::both(x[c] + in.bias[column + c]);
            const float dx = dy[c] * gelu.slope;
            values[r * kDeep + c] = gelu.value;
            slopes[r * kDeep + c] = dx;
            sum[c] += dx;
          }
        }
        pack_block(slopes, kDeep, block, to_gradient);
        pack_block(values, kDeep, block, to_output);
      }
    sums.store(0, bias_gradient);
  }
}

}  // namespace

void pack_gelu(const GeluInput& input, const PackedForms& forms) {
  (input.tanh ? pack_value<Tanh> : pack_value<Erf>)(input, forms);
}

void pack_gelu_backward(const GeluInput& input, const float* gradient, const PackedForms& input_gradient,
                        const PackedForms& output, float* bias_gradient) {
  const auto form = input.tanh ? pack_backward<Tanh> : pack_backward<Erf>;
  form(input, gradient, input_gradient, output, bias_gradient);
}

#else

void pack_gelu(const GeluInput&, const PackedForms&) { std::abort(); }
void pack_gelu_backward(const GeluInput&, const float*, const PackedForms&, const PackedForms&, float*) {
  std::abort();
}

#endif

}  // namespace ISA
}  // namespace operators

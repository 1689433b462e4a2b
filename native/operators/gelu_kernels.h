#pragma once

#include <cstdint>

#include "isa.h"
#include "operator.h"

namespace operators {

// The attribute `form`: "erf" (also where it is left out) or "tanh". Throws std::runtime_error for others.
bool gelu_by_tanh(const Attributes& attributes);

}  // namespace operators

DECLARE_KERNELS(
    // output = gelu(input + bias), row by row; input and output (rows, columns), bias (columns).
    void bias_gelu(const float* input, const float* bias, float* output, int64_t rows, int64_t columns);

    // input_gradient = output_gradient * gelu'(input + bias), and bias_gradient its sum over the rows.
    // input_gradient may be output_gradient.
    void bias_gelu_backward(const float* output_gradient, const float* input, const float* bias,
                            float* input_gradient, float* bias_gradient, int64_t rows, int64_t columns);

    // The same for the approximation of gelu by tanh.
    void bias_gelu_tanh(const float* input, const float* bias, float* output, int64_t rows, int64_t columns);
    void bias_gelu_tanh_backward(const float* output_gradient, const float* input, const float* bias,
                                 float* input_gradient, float* bias_gradient, int64_t rows, int64_t columns);

    // Of either form: the gradient of the output becomes the one of the input, and the output, which was not
    // kept, is computed once more.
    void bias_gelu_backward_again(bool tanh, float* gradient, const float* input, const float* bias,
                                  float* output, float* bias_gradient, int64_t rows, int64_t columns);)

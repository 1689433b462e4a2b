#pragma once

#include <cstdint>

#include "isa.h"
#include "operator.h"

namespace operators {

enum class Form { erf, tanh, relu };

// The attribute `form`, "erf" where it is left out. Throws std::runtime_error for others.
Form gelu_form(const Attributes& attributes);

}  // namespace operators

DECLARE_KERNELS(
    // output = gelu(input + bias), row by row; input and output (rows, columns), bias (columns).
    void bias_gelu(Form form, const float* input, const float* bias, float* output, int64_t rows,
                   int64_t columns);

    // input_gradient = output_gradient * gelu'(input + bias), and bias_gradient its sum over the rows.
    // input_gradient may be output_gradient.
    void bias_gelu_backward(Form form, const float* output_gradient, const float* input, const float* bias,
                            float* input_gradient, float* bias_gradient, int64_t rows, int64_t columns);

    // The gradient of the output becomes the one of the input, and the output, which was not
    // kept, is computed once more.
    void bias_gelu_backward_again(Form form, float* gradient, const float* input, const float* bias,
                                  float* output, float* bias_gradient, int64_t rows, int64_t columns);)

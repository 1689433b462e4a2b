#pragma once

#include <cstdint>

#include "isa.h"

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
                                 float* input_gradient, float* bias_gradient, int64_t rows, int64_t columns);)

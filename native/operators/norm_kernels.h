#pragma once

#include <cstdint>

#include "dropout_choice.h"
#include "isa.h"

namespace operators {

// The attribute `eps`. Throws std::runtime_error where it is negative.
float norm_epsilon(const Attributes& attributes);

// What is normalised is residual + dropout(input + bias).
struct AddNorm {
  const float* input;     // (rows, columns)
  const float* bias;      // (columns)
  const float* residual;  // (rows, columns)
  const float* gamma;     // (columns)
  int64_t rows, columns;
  float epsilon;
  Dropout dropout;
};

// Where the gradients go, in the shapes of the above; beta (columns).
struct AddNormGradients {
  float *input, *bias, *residual, *gamma, *beta;
};

}  // namespace operators

// Outputs and gradients of outputs are (rows, columns). An output may lie where an input of its shape does,
// and the gradient of an input or residual where the output's gradient does.
DECLARE_KERNELS(
    // output = normalised input * gamma + beta.
    void layer_norm(const float* input, const float* gamma, const float* beta, float* output, int64_t rows,
                    int64_t columns, float epsilon);

    void layer_norm_backward(const float* output_gradient, const float* input, const float* gamma,
                             float* input_gradient, float* gamma_gradient, float* beta_gradient, int64_t rows,
                             int64_t columns, float epsilon);

    // output = normalised sum * gamma + beta.
    void add_norm(const AddNorm& inputs, const float* beta, float* output);

    void add_norm_backward(const AddNorm& inputs, const float* output_gradient,
                           const AddNormGradients& gradients);)

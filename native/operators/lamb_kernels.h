#pragma once

#include <cstdint>

#include "isa.h"

namespace operators {

// What one update does to every element, with m the mean and v the var:
//   g = rescale * gradient, m = beta1 * m + (1 - beta1) * g, v = beta2 * v + (1 - beta2) * g^2,
//   u = mean_correction * m / (sqrt(var_correction * v) + epsilon) + decay * weight
struct AdamRule {
  float rescale, beta1, beta2, epsilon;
  float mean_correction, var_correction;  // 1, or with bias correction 1 / (1 - beta^t)
};

struct NormSquares {
  double weight, update;
};

}  // namespace operators

// All on `size` elements; the arrays do not overlap.
DECLARE_KERNELS(
    double sum_of_squares(const float* values, int64_t size);

    // Updates the moments and adds up weight^2 and u^2; the weights stay.
    NormSquares update_moments(const AdamRule& rule, float decay, const float* weight, const float* gradient,
                               float* mean, float* var, int64_t size);

    // weight -= step * u, with u from the moments that update_moments has left.
    void update_weights(const AdamRule& rule, float decay, float step, float* weight, const float* mean,
                        const float* var, int64_t size);

    // Both in one pass, where the step is known beforehand.
    void update_at_once(const AdamRule& rule, float decay, float step, float* weight, const float* gradient,
                        float* mean, float* var, int64_t size);)

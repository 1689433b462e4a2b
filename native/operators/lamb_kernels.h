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

// A run of elements of a tensor's moments in float32.
struct FloatMoments {
  float* mean;
  float* var;
};

// The same in bfloat16, stored by stochastic rounding: a number between two of bfloat16 becomes the upper one
// with a probability that is its distance from the lower one, of the distance between them, so that what is
// stored is right in the mean. Rounding to nearest would never see a decay by 1 - beta2 = 0.001. `key` and an
// element's index in its tensor give its random bits; the first of the run has the index `first`.
struct Bfloat16Moments {
  uint16_t* mean;
  uint16_t* var;
  uint64_t key;
  uint32_t first;
};

}  // namespace operators

// All on `size` elements; the arrays do not overlap. u is computed of the moments as they are stored.
DECLARE_KERNELS(double sum_of_squares(const float* values, int64_t size);

                // Updates the moments and adds up weight^2 and u^2; the weights stay.
                NormSquares update_moments(const AdamRule& rule, float decay, const float* weight,
                                           const float* gradient, FloatMoments moments, int64_t size);
                NormSquares update_bfloat16_moments(const AdamRule& rule, float decay, const float* weight,
                                                    const float* gradient, Bfloat16Moments moments,
                                                    int64_t size);

                // weight -= step * u, with u from the moments that update_moments has left.
                void update_weights(const AdamRule& rule, float decay, float step, float* weight,
                                    FloatMoments moments, int64_t size);
                void update_weights_of_bfloat16(const AdamRule& rule, float decay, float step, float* weight,
                                                Bfloat16Moments moments, int64_t size);

                // Both in one pass, where the step is known beforehand.
                void update_at_once(const AdamRule& rule, float decay, float step, float* weight,
                                    const float* gradient, FloatMoments moments, int64_t size);
                void update_bfloat16_at_once(const AdamRule& rule, float decay, float step, float* weight,
                                             const float* gradient, Bfloat16Moments moments, int64_t size);)

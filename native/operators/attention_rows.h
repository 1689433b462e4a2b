// What self-attention does with one row of scores: softmax and dropout, forward and backward.
#pragma once

#include <cmath>
#include <cstdint>

#include "dropout.h"
#include "dropout_choice.h"
#include "vector_math.h"

namespace operators {
namespace ISA {

// Turns a row of scores into numerators of the softmax, dropped ones 0, and gives the logarithm of the
// denominator. What is summed up with the numerators must be multiplied with `factor` and with dropout's
// scale. `padded` scores exist, `keys` count.
template <bool kDropout>
inline float softmax_row(float* scores, int64_t keys, int64_t padded, const DropoutRow& dropout,
                         float* factor) {
  for (int64_t j = keys; j < padded; j++) scores[j] = -INFINITY;
  float largest = scores[0];
#pragma omp simd reduction(max : largest)
  for (int64_t j = 0; j < padded; j++) largest = scores[j] > largest ? scores[j] : largest;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < padded; j++) {
    const float numerator = fast_exp(scores[j] - largest);
    sum += numerator;
    scores[j] = kDropout ? dropout.factor(j, numerator) : numerator;
  }
  *factor = 1.f / sum;
  return largest + std::log(sum);
}

// Turns a row of scores into probabilities after dropout, and the gradients of these into the gradients of
// the scores; `mean` is the sum of probability * gradient over the row.
template <bool kDropout>
inline void softmax_row_backward(float* scores, float* gradients, int64_t padded, float log_sum, float mean,
                                 float scale, const DropoutRow& dropout) {
#pragma omp simd
  for (int64_t j = 0; j < padded; j++) {
    const float probability = fast_exp(scores[j] - log_sum);
    const float kept = kDropout ? dropout.factor(j, scale) : 1.f;
    scores[j] = kept * probability;
    gradients[j] = probability * (kept * gradients[j] - mean);
  }
}

}  // namespace ISA
}  // namespace operators

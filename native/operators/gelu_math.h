// gelu(x) = x * Phi(x) with Phi the normal distribution (Hendrycks and Gimpel, arXiv:1606.08415), and its
// approximation by tanh, x * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (section 2); and ReLU in its
// place.
#pragma once

#include "vector_math.h"

namespace operators {
namespace ISA {

constexpr float kInverseSqrtTwoPi = 0.39894228f;

// Phi(h) within 7.5e-8 (Abramowitz and Stegun, 26.2.17), given e^(-h^2 / 2). The smaller one of Phi(h) and
// Phi(-h) is not computed as a difference, so it fades to 0 without noise.
[[gnu::always_inline]] inline float normal_cdf(float h, float gauss) {
  const float t = 1.f / (1.f + 0.2316419f * std::fabs(h));
  float p = 0.530702714f;
  p = p * t - 0.726576013f;
  p = p * t + 0.710706870f;
  p = p * t - 0.142248368f;
  p = p * t + 0.127414796f;
  const float tail = p * t * gauss;
  return h < 0.f ? tail : 1.f - tail;
}

// (1 + tanh(u)) / 2 is the logistic function of 2 u. `rest` is e^(-|2 u|), with which the smaller one of the
// function and its reflection is not computed as a difference either, nor the product of both, its slope.
struct Logistic {
  float value, slope;
};

[[gnu::always_inline]] inline Logistic logistic(float twice_u) {
  const float rest = fast_exp(-std::fabs(twice_u));
  const float greater = 1.f / (1.f + rest);
  const float smaller = rest * greater;
  return {twice_u < 0.f ? smaller : greater, smaller * greater};
}

// h where the cube matters: beyond 20 the logistic function is 0 or 1 and its slope 0.
[[gnu::always_inline]] inline float near_zero(float h) {
  const float low = h < -20.f ? -20.f : h;
  return low > 20.f ? 20.f : low;
}

constexpr float kTwiceSqrtTwoOverPi = 1.59576912f;
constexpr float kCubic = 0.044715f;

struct Gelu {
  float value, slope;
};

struct Erf {
  [[gnu::always_inline]] static inline float value(float h) {
    return h * normal_cdf(h, fast_exp(-0.5f * h * h));
  }

  [[gnu::always_inline]] static inline Gelu both(float h) {
    const float gauss = fast_exp(-0.5f * h * h);
    const float cdf = normal_cdf(h, gauss);
    return {h * cdf, cdf + h * kInverseSqrtTwoPi * gauss};
  }
};

struct Tanh {
  [[gnu::always_inline]] static inline float value(float h) {
    const float n = near_zero(h);
    return h * logistic(kTwiceSqrtTwoOverPi * (n + kCubic * n * n * n)).value;
  }

  [[gnu::always_inline]] static inline Gelu both(float h) {
    const float n = near_zero(h);
    const float square = kCubic * n * n;
    const Logistic s = logistic(kTwiceSqrtTwoOverPi * (n + square * n));
    return {h * s.value, s.value + h * (s.slope * kTwiceSqrtTwoOverPi * (1.f + 3.f * square))};
  }
};

struct Relu {
  [[gnu::always_inline]] static inline float value(float h) { return h < 0.f ? 0.f : h; }  // keeps a NaN

  [[gnu::always_inline]] static inline Gelu both(float h) { return {value(h), h > 0.f ? 1.f : 0.f}; }
};

}  // namespace ISA
}  // namespace operators

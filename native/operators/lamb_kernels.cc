// The arithmetic of LAMB and Adam on runs of elements. It is bound by memory: arrays are asked for ahead of
// use.
#include "lamb_kernels.h"

#include <cmath>

namespace operators {
namespace ISA {
namespace {

constexpr int64_t kBlock = 64;       // elements between two rounds of prefetching: four cache lines an array
constexpr int64_t kLine = 16;        // elements
constexpr int64_t kDistance = 1024;  // bytes ahead

inline float moment(float beta, float old, float value) { return beta * old + (1.f - beta) * value; }

inline float direction(const AdamRule& rule, float decay, float weight, float mean, float var) {
  return rule.mean_correction * mean / (std::sqrt(rule.var_correction * var) + rule.epsilon) + decay * weight;
}

// body(begin, end) for one block after the other. Hardware prefetchers alone leave a tenth of the memory's
// speed unused, and two thirds of the shared cache's, on virtual machines where some of them seem to be off.
// Prefetching beyond the arrays' end is harmless.
template <typename Body, typename... Arrays>
__attribute__((always_inline)) inline void in_blocks(int64_t size, const Body& body,
                                                      const Arrays*... arrays) {
  int64_t begin = 0;
  for (; begin + kBlock <= size; begin += kBlock) {
    for (int64_t line = begin; line < begin + kBlock; line += kLine)
      (__builtin_prefetch(reinterpret_cast<const char*>(arrays + line) + kDistance), ...);
    body(begin, begin + kBlock);
  }
  body(begin, size);
}

}  // namespace

double sum_of_squares(const float* values, int64_t size) {
  double total = 0;
  const auto body = [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; i++) {
      const double value = values[i];
      sum += value * value;
    }
    total += sum;
  };
  in_blocks(size, body, values);
  return total;
}

NormSquares update_moments(const AdamRule& shared, float decay, const float* weight, const float* gradient,
                           float* mean, float* var, int64_t size) {
  const AdamRule rule = shared;  // a copy: the compiler need not fear that the stores change it
  NormSquares total{0, 0};
  const auto body = [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
    double weight_squares = 0, update_squares = 0;
#pragma omp simd reduction(+ : weight_squares, update_squares)
    for (int64_t i = begin; i < end; i++) {
      const float g = rule.rescale * gradient[i];
      const float m = moment(rule.beta1, mean[i], g);
      const float v = moment(rule.beta2, var[i], g * g);
      mean[i] = m;
      var[i] = v;
      const double w = weight[i];
      const double u = direction(rule, decay, weight[i], m, v);
      weight_squares += w * w;
      update_squares += u * u;
    }
    total.weight += weight_squares;
    total.update += update_squares;
  };
  in_blocks(size, body, weight, gradient, mean, var);
  return total;
}

void update_weights(const AdamRule& shared, float decay, float step, float* weight, const float* mean,
                    const float* var, int64_t size) {
  const AdamRule rule = shared;
  const auto body = [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
#pragma omp simd
    for (int64_t i = begin; i < end; i++)
      weight[i] -= step * direction(rule, decay, weight[i], mean[i], var[i]);
  };
  in_blocks(size, body, weight, mean, var);
}

void update_at_once(const AdamRule& shared, float decay, float step, float* weight, const float* gradient,
                    float* mean, float* var, int64_t size) {
  const AdamRule rule = shared;
  const auto body = [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
      const float g = rule.rescale * gradient[i];
      const float m = moment(rule.beta1, mean[i], g);
      const float v = moment(rule.beta2, var[i], g * g);
      mean[i] = m;
      var[i] = v;
      weight[i] -= step * direction(rule, decay, weight[i], m, v);
    }
  };
  in_blocks(size, body, weight, gradient, mean, var);
}

}  // namespace ISA
}  // namespace operators

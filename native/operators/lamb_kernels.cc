// The arithmetic of LAMB and Adam on runs of elements. It is bound by memory: arrays are asked for ahead of
// use.
#include "lamb_kernels.h"

#include <cmath>

#include "bfloat16.h"
#include "dropout.h"

namespace operators {
namespace ISA {
namespace {

constexpr int64_t kBlock = 64;       // elements between two rounds of prefetching: four cache lines an array
constexpr int64_t kLine = 64;        // bytes
constexpr int64_t kDistance = 1024;  // bytes ahead

inline float moment(float beta, float old, float value) { return beta * old + (1.f - beta) * value; }

inline float direction(const AdamRule& rule, float decay, float weight, float mean, float var) {
  return rule.mean_correction * mean / (std::sqrt(rule.var_correction * var) + rule.epsilon) + decay * weight;
}

// Element i of the moments, in float32.
inline float mean_of(const FloatMoments& moments, int64_t i) { return moments.mean[i]; }
inline float var_of(const FloatMoments& moments, int64_t i) { return moments.var[i]; }
inline float mean_of(const Bfloat16Moments& moments, int64_t i) { return from_bfloat16(moments.mean[i]); }
inline float var_of(const Bfloat16Moments& moments, int64_t i) { return from_bfloat16(moments.var[i]); }

// One of the two numbers of bfloat16 around `value`, in the upper half of the bits. `random` is below 2^16:
// of its 2^16 values as many give the number farther from zero as there are floats from `value` back to the
// nearer one. What is no number stays none.
inline uint32_t rounded_at_random(float value, uint32_t random) {
  const uint32_t bits = as_bits(value);
  return (value == value ? bits + random : bits | 0x400000u) & 0xffff0000u;
}

// The moments of the elements from `begin` to `end`, in one block, take in the gradient. Leaves in `mean` and
// `var` what is stored. Compilers make twice as fast code of loops of their own for the norms' doubles,
// random bits and 16-bit numbers as of one loop for all.
inline void renew(const AdamRule& rule, const float* gradient, const FloatMoments& moments, int64_t begin,
                  int64_t end, float* mean, float* var) {
#pragma omp simd
  for (int64_t i = begin; i < end; i++) {
    const float g = rule.rescale * gradient[i];
    const float m = moment(rule.beta1, moments.mean[i], g);
    const float v = moment(rule.beta2, moments.var[i], g * g);
    mean[i - begin] = moments.mean[i] = m;
    var[i - begin] = moments.var[i] = v;
  }
}

inline void renew(const AdamRule& rule, const float* gradient, const Bfloat16Moments& moments, int64_t begin,
                  int64_t end, float* mean, float* var) {
  const int64_t size = end - begin;
  alignas(64) uint32_t random[kBlock];
  const RowSeed seed(moments.key, 0);
#pragma omp simd
  for (int64_t i = 0; i < size; i++)
    random[i] = random_bits(seed, moments.first + static_cast<uint32_t>(begin + i));
#pragma omp simd
  for (int64_t i = 0; i < size; i++) {
    const float g = rule.rescale * gradient[begin + i];
    const float m = moment(rule.beta1, mean_of(moments, begin + i), g);
    const float v = moment(rule.beta2, var_of(moments, begin + i), g * g);
    mean[i] = as_float(rounded_at_random(m, random[i] & 0xffffu));
    var[i] = as_float(rounded_at_random(v, random[i] >> 16));
  }
#pragma omp simd
  for (int64_t i = 0; i < size; i++) {
    moments.mean[begin + i] = static_cast<uint32_t>(as_bits(mean[i])) >> 16;
    moments.var[begin + i] = static_cast<uint32_t>(as_bits(var[i])) >> 16;
  }
}

template <typename Number>
__attribute__((always_inline)) inline void prefetch_block(const Number* block) {
  for (int64_t line = 0; line < static_cast<int64_t>(kBlock * sizeof(Number)); line += kLine)
    __builtin_prefetch(reinterpret_cast<const char*>(block) + line + kDistance);
}

// body(begin, end) for one block after the other. Hardware prefetchers alone leave a tenth of the memory's
// speed unused, and two thirds of the shared cache's, on virtual machines where some of them seem to be off.
// Prefetching beyond the arrays' end is harmless.
template <typename Body, typename... Arrays>
__attribute__((always_inline)) inline void in_blocks(int64_t size, const Body& body,
                                                     const Arrays*... arrays) {
  int64_t begin = 0;
  for (; begin + kBlock <= size; begin += kBlock) {
    (prefetch_block(arrays + begin), ...);
    body(begin, begin + kBlock);
  }
  body(begin, size);
}

template <typename Moments>
NormSquares first_pass(const AdamRule& shared, float decay, const float* weight, const float* gradient,
                       const Moments moments, int64_t size) {
  const AdamRule rule = shared;  // a copy: the compiler need not fear that the stores change it
  NormSquares total{0, 0};
  const auto body = [&, moments](int64_t begin, int64_t end) __attribute__((always_inline)) {
    alignas(64) float mean[kBlock], var[kBlock];
    renew(rule, gradient, moments, begin, end, mean, var);
    double weight_squares = 0, update_squares = 0;
#pragma omp simd reduction(+ : weight_squares, update_squares)
    for (int64_t i = begin; i < end; i++) {
      const double w = weight[i];
      const double u = direction(rule, decay, weight[i], mean[i - begin], var[i - begin]);
      weight_squares += w * w;
      update_squares += u * u;
    }
    total.weight += weight_squares;
    total.update += update_squares;
  };
  in_blocks(size, body, weight, gradient, moments.mean, moments.var);
  return total;
}

template <typename Moments>
void second_pass(const AdamRule& shared, float decay, float step, float* weight, const Moments moments,
                 int64_t size) {
  const AdamRule rule = shared;
  const auto body = [&, moments](int64_t begin, int64_t end) __attribute__((always_inline)) {
#pragma omp simd
    for (int64_t i = begin; i < end; i++)
      weight[i] -= step * direction(rule, decay, weight[i], mean_of(moments, i), var_of(moments, i));
  };
  in_blocks(size, body, weight, moments.mean, moments.var);
}

template <typename Moments>
void only_pass(const AdamRule& shared, float decay, float step, float* weight, const float* gradient,
               const Moments moments, int64_t size) {
  const AdamRule rule = shared;
  const auto body = [&, moments](int64_t begin, int64_t end) __attribute__((always_inline)) {
    alignas(64) float mean[kBlock], var[kBlock];
    renew(rule, gradient, moments, begin, end, mean, var);
#pragma omp simd
    for (int64_t i = begin; i < end; i++)
      weight[i] -= step * direction(rule, decay, weight[i], mean[i - begin], var[i - begin]);
  };
  in_blocks(size, body, weight, gradient, moments.mean, moments.var);
}

}  // namespace

double sum_of_squares(const float* values, int64_t size) {
  const auto sum = [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
    double squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = begin; i < end; i++) {
      const double value = values[i];
      squares += value * value;
    }
    return squares;
  };
  // One stream through memory waits at each of its pages; four wait at the same time, and take 0.7 of the
  // time where pages are small. The sums of blocks are added in the blocks' order all the same.
  constexpr int64_t kStreams = 4, kMost = 1024;
  double total = 0, sums[kMost];
  int64_t begin = 0;
  while (begin + kBlock <= size) {
    const int64_t left = (size - begin) / kBlock, blocks = left < kMost ? left : kMost;
    const int64_t apart = blocks / kStreams;
    const auto take = [&](int64_t block) __attribute__((always_inline)) {
      const int64_t first = begin + block * kBlock;
      prefetch_block(values + first);
      sums[block] = sum(first, first + kBlock);
    };
    for (int64_t i = 0; i < apart; i++)
      for (int64_t stream = 0; stream < kStreams; stream++) take(stream * apart + i);
    for (int64_t block = kStreams * apart; block < blocks; block++) take(block);
    for (int64_t block = 0; block < blocks; block++) total += sums[block];
    begin += blocks * kBlock;
  }
  return total + sum(begin, size);
}

NormSquares update_moments(const AdamRule& rule, float decay, const float* weight, const float* gradient,
                           FloatMoments moments, int64_t size) {
  return first_pass(rule, decay, weight, gradient, moments, size);
}

NormSquares update_bfloat16_moments(const AdamRule& rule, float decay, const float* weight,
                                    const float* gradient, Bfloat16Moments moments, int64_t size) {
  return first_pass(rule, decay, weight, gradient, moments, size);
}

void update_weights(const AdamRule& rule, float decay, float step, float* weight, FloatMoments moments,
                    int64_t size) {
  second_pass(rule, decay, step, weight, moments, size);
}

void update_weights_of_bfloat16(const AdamRule& rule, float decay, float step, float* weight,
                                Bfloat16Moments moments, int64_t size) {
  second_pass(rule, decay, step, weight, moments, size);
}

void update_at_once(const AdamRule& rule, float decay, float step, float* weight, const float* gradient,
                    FloatMoments moments, int64_t size) {
  only_pass(rule, decay, step, weight, gradient, moments, size);
}

void update_bfloat16_at_once(const AdamRule& rule, float decay, float step, float* weight,
                             const float* gradient, Bfloat16Moments moments, int64_t size) {
  only_pass(rule, decay, step, weight, gradient, moments, size);
}

}  // namespace ISA
}  // namespace operators

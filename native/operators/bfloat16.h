// Rounding float32 to bfloat16, which is its upper half.
#pragma once

#include <cstdint>

#include "vector_math.h"

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace operators {
namespace ISA {

// The bits of the float after rounding to nearest, ties to even, in the upper half. What is no number stays
// none.
[[gnu::always_inline]] inline uint32_t rounded_bits(float value) {
  const uint32_t bits = as_bits(value);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  // Rounding could carry a NaN into infinity or zero.
  return value == value ? rounded : bits | 0x400000u;
}

[[gnu::always_inline]] inline float round_in_float(float value) { return as_float(rounded_bits(value) & 0xffff0000u); }
[[gnu::always_inline]] inline uint16_t to_bfloat16(float value) { return rounded_bits(value) >> 16; }
[[gnu::always_inline]] inline float from_bfloat16(uint16_t value) { return as_float(static_cast<uint32_t>(value) << 16); }

inline void to_bfloat16(const float* source, uint16_t* target, int64_t size) {
  int64_t done = 0;
#ifdef __AVX512BF16__
  // Takes denormal numbers (below 1.2e-38) as zero.
  for (; done + 16 <= size; done += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + done),
                        (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(source + done)));
#endif
#pragma omp simd
  for (int64_t i = done; i < size; i++) target[i] = to_bfloat16(source[i]);
}

}  // namespace ISA
}  // namespace operators

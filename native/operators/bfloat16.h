// Rounding float32 to bfloat16, which is its upper half.
#pragma once

#include <cstdint>

#include "vector_math.h"

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

[[gnu::always_inline]] inline float round_in_float(float value) {
  return as_float(rounded_bits(value) & 0xffff0000u);
}
[[gnu::always_inline]] inline float from_bfloat16(uint16_t value) {
  return as_float(static_cast<uint32_t>(value) << 16);
}

}  // namespace ISA
}  // namespace operators

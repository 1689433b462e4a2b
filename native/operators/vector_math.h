// Elementary functions that compilers turn into vector code: no branches, no calls, no tables. A loop with a
// call in it stays scalar: these are inlined whatever a compiler thinks of their size.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace operators {
namespace ISA {

[[gnu::always_inline]] inline float as_float(int32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

[[gnu::always_inline]] inline int32_t as_bits(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// e^x within 2 units in the last place; 0 below -87.3, where float32 ends, and finite up to 88 and beyond.
[[gnu::always_inline]] inline float fast_exp(float x) {
  const float limited = x > 88.f ? 88.f : x;
  // x = n ln 2 + r with an integer n. Adding 1.5 * 2^23 rounds to an integer and leaves it in the lowest
  // bits; with 127 more it is the exponent field of 2^n.
  const float shifted = limited * 1.44269504f + 12583039.f;
  const float n = shifted - 12583039.f;
  // ln 2 in two parts, so that n * ln 2 loses nothing.
  const float r = (limited - n * 0.693359375f) - n * -2.12194440e-4f;
  // The polynomial 1 + r + ... of degree 6 with the smallest relative error for |r| <= ln(2) / 2: 3e-9.
  float p = 1.3814541e-3f;
  p = p * r + 8.3687454e-3f;
  p = p * r + 4.1668389e-2f;
  p = p * r + 1.6666521e-1f;
  p = p * r + 4.9999994e-1f;
  p = p * r + 1.f;
  p = p * r + 1.f;
  const float result = p * as_float(static_cast<int32_t>(static_cast<uint32_t>(as_bits(shifted)) << 23));
  return x < -87.3f ? 0.f : result;
}

}  // namespace ISA
}  // namespace operators

#include "reduce.h"

#include <cpuid.h>
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

namespace host_runtime {

namespace {

constexpr size_t block = 2048;  // elements summed at a time, in the first-level cache

template <typename T>
void sum_of(const void* const* sources, int number, void* out, size_t count) {
  T* result = static_cast<T*>(out);
  if (number == 2) {
    const T* first = static_cast<const T*>(sources[0]);
    const T* second = static_cast<const T*>(sources[1]);
    for (size_t i = 0; i < count; ++i) result[i] = first[i] + second[i];
    return;
  }
  T total[block];
  for (size_t begin = 0; begin < count; begin += block) {
    const size_t length = count - begin < block ? count - begin : block;
    memcpy(total, static_cast<const T*>(sources[0]) + begin, length * sizeof(T));
    for (int rank = 1; rank < number; ++rank) {
      const T* source = static_cast<const T*>(sources[rank]) + begin;
      for (size_t i = 0; i < length; ++i) total[i] += source[i];
    }
    memcpy(result + begin, total, length * sizeof(T));
  }
}

float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

float widen(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 0x1f;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 31) return from_bits(sign | 0x7f800000 | (mantissa ? 0x400000 | mantissa << 13 : 0));
  if (exponent == 0) {
    const float magnitude = float(mantissa) / 16777216;
    return sign ? -magnitude : magnitude;
  }
  return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t narrow(float value) {
  const uint32_t bits = to_bits(value);
  const uint16_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | (magnitude >> 13 & 0x3ff);
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // from 65520 on: infinity
  if (magnitude < 0x38800000) {
    // Below 2^-14. Added to 0.5, whose last bit is worth 2^-24, the sum is rounded as the result must be.
    return sign | (to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f));
  }
  // The low 13 bits are rounded away, ties to even; a carry runs into the exponent as it should.
  return sign | ((magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13);
}

void sum_halves_portably(const void* const* sources, int number, void* out, size_t count) {
  uint16_t* result = static_cast<uint16_t*>(out);
  for (size_t i = 0; i < count; ++i) {
    float total = widen(static_cast<const uint16_t*>(sources[0])[i]);
    for (int rank = 1; rank < number; ++rank) total += widen(static_cast<const uint16_t*>(sources[rank])[i]);
    result[i] = narrow(total);
  }
}

__attribute__((target("avx,f16c"))) void sum_halves_by_f16c(const void* const* sources, int number, void* out,
                                                            size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    __m256 total = _mm256_setzero_ps();
    for (int rank = 0; rank < number; ++rank) {
      const uint16_t* source = static_cast<const uint16_t*>(sources[rank]) + i;
      const __m256 term = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
      total = rank == 0 ? term : _mm256_add_ps(total, term);
    }
    const __m128i rounded = _mm256_cvtps_ph(total, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<uint16_t*>(out) + i), rounded);
  }
  const void* rest[64];
  for (int rank = 0; rank < number; ++rank) rest[rank] = static_cast<const uint16_t*>(sources[rank]) + i;
  sum_halves_portably(rest, number, static_cast<uint16_t*>(out) + i, count - i);
}

bool has_f16c() {
#ifdef HOST_RUNTIME_PORTABLE
  return false;
#else
  unsigned a, b, c, d;
  return __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
#endif
}

}  // namespace

size_t width(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
  }
  return 0;
}

void sum(ncclDataType_t type, const void* const* sources, int number, void* out, size_t count) {
  static const bool f16c = has_f16c();
  switch (type) {
    // Signed and unsigned integers have the same sums; unsigned ones may wrap around.
    case ncclInt8:
    case ncclUint8:
      return sum_of<uint8_t>(sources, number, out, count);
    case ncclInt32:
    case ncclUint32:
      return sum_of<uint32_t>(sources, number, out, count);
    case ncclInt64:
    case ncclUint64:
      return sum_of<uint64_t>(sources, number, out, count);
    case ncclFloat16:
      return f16c ? sum_halves_by_f16c(sources, number, out, count)
                  : sum_halves_portably(sources, number, out, count);
    case ncclFloat32:
      return sum_of<float>(sources, number, out, count);
    case ncclFloat64:
      return sum_of<double>(sources, number, out, count);
  }
}

}  // namespace host_runtime

// Words of two bfloat16, 16 to a vector: rounding to them, and sums of their products. Where the processor
// has no instructions for that (AVX-512 BF16), others give the same results, for tests of what uses them.
//
// A tile is 16 rows of 16 such words.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace operators {
namespace ISA {

constexpr int64_t kTile = 16, kDeep = 32, kTileWords = kTile * kTile;  // kDeep: elements summed up by a step

inline int64_t tiles(int64_t size) { return (size + kTile - 1) / kTile; }
inline int64_t steps(int64_t depth) { return (depth + kDeep - 1) / kDeep; }

#ifdef __AVX512BF16__

// Rounded to bfloat16, (low0 low1 .. high0 high1 ..).
inline __m512i words_of(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

// Adds the products of both elements of each word.
inline __m512 add_products(__m512 sums, __m512i left, __m512i right) {
  return _mm512_dpbf16_ps(sums, (__m512bh)left, (__m512bh)right);
}

#else

// The numbers rounded to nearest, ties to even, as the upper halves of words; NaN stays one.
inline __m512i rounded_words(__m512 numbers) {
  const __m512i bits = (__m512i)numbers,
                odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i nearest = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  return _mm512_mask_or_epi32(nearest, _mm512_cmp_ps_mask(numbers, numbers, _CMP_UNORD_Q), bits,
                              _mm512_set1_epi32(0x400000));
}

inline __m512i words_of(__m512 low, __m512 high) {
  const auto half = [](__m512 numbers) {
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_words(numbers), 16));
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(half(low)), half(high), 1);
}

inline __m512 add_products(__m512 sums, __m512i left, __m512i right) {
  const auto first = [](__m512i words) { return (__m512)_mm512_slli_epi32(words, 16); };
  const auto second = [](__m512i words) {
    return (__m512)_mm512_and_si512(words, _mm512_set1_epi32(0xffff0000));
  };
  return _mm512_fmadd_ps(first(left), first(right), _mm512_fmadd_ps(second(left), second(right), sums));
}

#endif

// The first `count` of 16 elements, the others 0.
inline __m512 some(const float* from, int64_t count) {
  return _mm512_maskz_loadu_ps(count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1, from);
}

// What rounding to bfloat16 leaves of numbers.
inline __m512 rests(__m512 numbers) {
  const __m512i upper = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(words_of(numbers, numbers)));
  return _mm512_sub_ps(numbers, (__m512)_mm512_slli_epi32(upper, 16));
}

}  // namespace ISA
}  // namespace operators

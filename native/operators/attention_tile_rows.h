// What self-attention on tiles does with rows of scores: softmax, dropout and rounding, in one pass
// from the products' float32 sums to the packed factors of the next products (tile_matmul.h).
#pragma once

#include <cmath>
#include <cstdint>

#include "dropout.h"
#include "tile_matmul.h"

namespace operators {
namespace ISA {

// fast_exp() of 16 numbers up to 88, which those of a softmax are; 0 where `valid` is not set.
inline __m512 exponentials(__m512 x, __mmask16 valid) {
  const __m512 offset = _mm512_set1_ps(12583039.f);
  const __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(1.44269504f), offset);
  const __m512 n = _mm512_sub_ps(shifted, offset);
  const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f),
                                    _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x));
  __m512 p = _mm512_set1_ps(1.3814541e-3f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3687454e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1668389e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666521e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.9999994e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.f));
  const __m512 power = (__m512)_mm512_slli_epi32((__m512i)shifted, 23);
  return _mm512_maskz_mul_ps(_mm512_mask_cmp_ps_mask(valid, x, _mm512_set1_ps(-87.3f), _CMP_NLT_UQ), p,
                             power);
}

// Dropout's decisions for one row (dropout.h has the same, for any processor).
class TileDropout {
 public:
  TileDropout(const Dropout& dropout, uint64_t row)
      : seed_(dropout.key, row), threshold_(_mm512_set1_epi16(static_cast<int16_t>(dropout.threshold))) {}

  // Which of the 32 columns from `column` on, a multiple of 32, are kept: a bit for each.
  __mmask32 kept(int64_t column) const {
    const __m512i counting = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i x =
        _mm512_add_epi32(_mm512_set1_epi32(seed_.first + static_cast<uint32_t>(column / 2)), counting);
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(0x85ebca6bu)));
    x = _mm512_ternarylogic_epi32(x, _mm512_srli_epi32(x, 13), _mm512_set1_epi32(seed_.second), 0x96);
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(0xc2b2ae35u)));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
    return _mm512_cmpge_epu16_mask(x, threshold_);
  }

 private:
  const RowSeed seed_;
  const __m512i threshold_;
};

// The first `count` of 32 columns: a bit for each.
inline __mmask32 first_columns(int64_t count) { return count >= 32 ? ~0u : (1u << count) - 1; }

// Packs the numerators of a row's softmax, dropped ones 0, into a left factor, and gives the logarithm of the
// denominator. What is summed up with the numerators must be multiplied with `factor` and with dropout's
// scale.
//   packed: the row in its first tile.
template <bool kDropout>
inline float pack_softmax_row(const float* scores, int64_t keys, const TileDropout& dropout, uint32_t* packed,
                              float* factor) {
  const __m512 lowest = _mm512_set1_ps(-INFINITY);
  __m512 high[2] = {lowest, lowest};
  for (int64_t column = 0; column < keys; column += kDeep) {
    const __mmask32 valid = first_columns(keys - column);
    for (int half = 0; half < 2; half++)
      high[half] = _mm512_mask_max_ps(high[half], static_cast<__mmask16>(valid >> half * kTile), high[half],
                                      _mm512_loadu_ps(scores + column + half * kTile));
  }
  const float largest = _mm512_reduce_max_ps(_mm512_max_ps(high[0], high[1]));
  const __m512 shift = _mm512_set1_ps(largest);
  __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int64_t column = 0; column < keys; column += kDeep, packed += kTileWords) {
    const __mmask32 valid = first_columns(keys - column), kept = kDropout ? dropout.kept(column) : ~0u;
    __m512 numerators[2];
    for (int half = 0; half < 2; half++) {
      const __m512 x = _mm512_sub_ps(_mm512_loadu_ps(scores + column + half * kTile), shift);
      numerators[half] = exponentials(x, static_cast<__mmask16>(valid >> half * kTile));
      sum[half] = _mm512_add_ps(sum[half], numerators[half]);
      if (kDropout)
        numerators[half] =
            _mm512_maskz_mov_ps(static_cast<__mmask16>(kept >> half * kTile), numerators[half]);
    }
    _mm512_store_si512(packed, words_of(numerators[0], numerators[1]));
  }
  const float total = _mm512_reduce_add_ps(_mm512_add_ps(sum[0], sum[1]));
  *factor = 1.f / total;
  return largest + std::log(total);
}

// What the backward pass knows of a row of scores: the logarithm of the softmax's denominator, infinity for a
// row of zeros; and the sum of probability * gradient.
struct RowFacts {
  float log_sum, mean;
};

// Two neighbouring rows of scores, `keys` columns from `first` on, and of the gradients of what dropout
// leaves of the probabilities; `stride` from row to row.
struct ScoreRows {
  const float *scores, *gradients;
  int64_t stride, first, keys;
};

// Where two rows of probabilities after dropout and of the scores' gradients go: as pairs of rows of right
// factors, the next 16 columns `next` words further, and the gradients of each row in a left factor.
struct PackedRows {
  uint32_t *probability, *gradient_pairs, *gradients[2];
  int64_t next;
};

// Turns rows of scores into probabilities and gradients of the scores.
//   facts, dropout: one for each row; kept_scale: what dropout multiplies with.
template <bool kDropout>
inline void pack_softmax_rows_backward(const ScoreRows& rows, const RowFacts* facts,
                                       const TileDropout* dropout, float kept_scale,
                                       const PackedRows& packed) {
  const __m512 keep = _mm512_set1_ps(kept_scale);
  for (int64_t column = 0, step = 0; column < rows.keys; column += kDeep, step++) {
    const __mmask32 valid = first_columns(rows.keys - column);
    __m512 probability[2][2], gradient[2][2];  // by row and half
    for (int row = 0; row < 2; row++) {
      const __m512 log_sum = _mm512_set1_ps(facts[row].log_sum), mean = _mm512_set1_ps(-facts[row].mean);
      const __mmask32 kept = kDropout ? dropout[row].kept(rows.first + column) : ~0u;
      for (int half = 0; half < 2; half++) {
        const int64_t from = row * rows.stride + column + half * kTile;
        const __m512 x = _mm512_sub_ps(_mm512_loadu_ps(rows.scores + from), log_sum);
        const __m512 p = exponentials(x, static_cast<__mmask16>(valid >> half * kTile));
        const __mmask16 own = static_cast<__mmask16>(kept >> half * kTile);
        const __m512 dp =
            _mm512_maskz_loadu_ps(static_cast<__mmask16>(valid >> half * kTile), rows.gradients + from);
        probability[row][half] = kDropout ? _mm512_maskz_mul_ps(own, p, keep) : p;
        const __m512 difference =
            kDropout ? _mm512_mask3_fmadd_ps(dp, keep, mean, own) : _mm512_add_ps(dp, mean);
        gradient[row][half] = _mm512_mul_ps(p, difference);
      }
      _mm512_store_si512(packed.gradients[row] + step * kTileWords,
                         words_of(gradient[row][0], gradient[row][1]));
    }
    for (int half = 0; half < 2; half++) {
      const int64_t tile = (2 * step + half) * packed.next;
      _mm512_store_si512(packed.probability + tile, paired(probability[0][half], probability[1][half]));
      _mm512_store_si512(packed.gradient_pairs + tile, paired(gradient[0][half], gradient[1][half]));
    }
  }
}

}  // namespace ISA
}  // namespace operators

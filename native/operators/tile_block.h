// One block of kRows x kColumns tiles (1 or 2 each) of a product of packed factors (tile_matmul.h): in the
// registers that AMX has for tiles, or with vectors.
#pragma once

#include "tile_words.h"

namespace operators {
namespace ISA {

#ifdef __AMX_BF16__

// GCC does not know which memory the instructions for tiles read and write: without this it moves other reads
// and writes of that memory across them.
inline void tiles_touch_memory() { asm volatile("" ::: "memory"); }

// Makes all eight tiles whole ones for as long as it lives.
class TileShapes {
 public:
  TileShapes() {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    for (int t = 0; t < 8; t++) {
      shapes.bytes[t] = 64;
      shapes.rows[t] = 16;
    }
    tiles_touch_memory();
    _tile_loadconfig(&shapes);
  }
  ~TileShapes() { _tile_release(); }
  TileShapes(const TileShapes&) = delete;
  TileShapes& operator=(const TileShapes&) = delete;
};

// Adds the product of a tile of each of up to two rows and one of each of up to two columns. Factors that it
// does not load are those of the call before.
template <int kRows, int kColumns, bool kLoadLeft, bool kLoadRight>
[[gnu::always_inline]] inline void multiply_step(const uint32_t* left, int64_t left_next,
                                                 const uint32_t* right, int64_t right_next) {
  if (kLoadLeft) _tile_loadd(4, left, 64);
  if (kLoadRight) _tile_loadd(6, right, 64);
  _tile_dpbf16ps(0, 4, 6);
  if (kColumns == 2) {
    if (kLoadRight) _tile_loadd(7, right + right_next, 64);
    _tile_dpbf16ps(1, 4, 7);
  }
  if (kRows == 2) {
    if (kLoadLeft) _tile_loadd(5, left + left_next, 64);
    _tile_dpbf16ps(2, 5, 6);
    if (kColumns == 2) _tile_dpbf16ps(3, 5, 7);
  }
}

// product (kRows x kColumns tiles, `stride` from row to row) = left right, or += if kAccumulate: `deep`
// steps. `left_next` and `right_next`: words from the first to the second tile of a factor. Calls aside(k)
// once for each step: other work while the tiles multiply. kSplit: each second tile of the factors has the
// rests of the one before, so that two steps are three products.
template <int kRows, int kColumns, bool kAccumulate, bool kSplit, typename Aside>
inline void multiply_tiles(const uint32_t* left, int64_t left_next, const uint32_t* right, int64_t right_next,
                           int64_t deep, float* product, int64_t stride, const Aside& aside) {
  const int64_t bytes = stride * sizeof(float);
  float *below = product + kTile * stride, *beside = product + kTile;
  tiles_touch_memory();
  if (kAccumulate) {
    _tile_loadd(0, product, bytes);
    if (kColumns == 2) _tile_loadd(1, beside, bytes);
    if (kRows == 2) _tile_loadd(2, below, bytes);
    if (kRows == 2 && kColumns == 2) _tile_loadd(3, below + kTile, bytes);
  } else {
    _tile_zero(0);
    if (kColumns == 2) _tile_zero(1);
    if (kRows == 2) _tile_zero(2);
    if (kRows == 2 && kColumns == 2) _tile_zero(3);
  }
  if (kSplit) {
    for (int64_t k = 0; k < deep; k += 2, left += 2 * kTileWords, right += 2 * kTileWords) {
      multiply_step<kRows, kColumns, true, true>(left, left_next, right + kTileWords, right_next);
      aside(k);
      multiply_step<kRows, kColumns, false, true>(left, left_next, right, right_next);
      multiply_step<kRows, kColumns, true, false>(left + kTileWords, left_next, right, right_next);
      aside(k + 1);
    }
  } else {
    for (int64_t k = 0; k < deep; k++, left += kTileWords, right += kTileWords) {
      multiply_step<kRows, kColumns, true, true>(left, left_next, right, right_next);
      aside(k);
    }
  }
  _tile_stored(0, product, bytes);
  if (kColumns == 2) _tile_stored(1, beside, bytes);
  if (kRows == 2) _tile_stored(2, below, bytes);
  if (kRows == 2 && kColumns == 2) _tile_stored(3, below + kTile, bytes);
  tiles_touch_memory();
}

#else

class TileShapes {
 public:
  TileShapes() {}  // nothing to prepare
};

// Adds the product of 16 / kColumns rows of a left factor's tile and one or two tiles of a right one. It has to be
// inlined, or the sums are in memory, not in registers; GCC by itself does not where a file has many users of it.
template <int kColumns>
[[gnu::always_inline]] inline void multiply_step(const uint32_t* left, const uint32_t* right,
                                                 int64_t right_next,
                                                 __m512 (&sums)[kTile / kColumns][kColumns]) {
  for (int64_t pair = 0; pair < kTile; pair++) {
    __m512i factors[kColumns];
#pragma GCC unroll 2
    for (int c = 0; c < kColumns; c++) factors[c] = _mm512_load_si512(right + c * right_next + pair * kTile);
#pragma GCC unroll 16
    for (int r = 0; r < kTile / kColumns; r++) {
      const __m512i both = _mm512_set1_epi32(left[r * kTile + pair]);
#pragma GCC unroll 2
      for (int c = 0; c < kColumns; c++) sums[r][c] = add_products(sums[r][c], both, factors[c]);
    }
  }
}

// 16 sums in registers at a time hide the instructions' latency and leave room for the factors.
template <int kRows, int kColumns, bool kAccumulate, bool kSplit, typename Aside>
inline void multiply_tiles(const uint32_t* left, int64_t left_next, const uint32_t* right, int64_t right_next,
                           int64_t deep, float* product, int64_t stride, const Aside& aside) {
  constexpr int64_t kTaken = kTile / kColumns, kParts = kRows * kColumns;
  for (int64_t part = 0; part < kParts; part++, product += kTaken * stride) {
    const uint32_t* rows = left + part / kColumns * left_next + part % kColumns * kTaken * kTile;
    __m512 sums[kTaken][kColumns];
#pragma GCC unroll 16
    for (int r = 0; r < kTaken; r++)
#pragma GCC unroll 2
      for (int c = 0; c < kColumns; c++)
        sums[r][c] = kAccumulate ? _mm512_loadu_ps(product + r * stride + c * kTile) : _mm512_setzero_ps();
    for (int64_t k = 0; k < deep; k++) {
      const uint32_t *a = rows + k * kTileWords, *b = right + k * kTileWords;
      if (kSplit && k % 2 == 0) {
        multiply_step<kColumns>(a, b + kTileWords, right_next, sums);
        multiply_step<kColumns>(a, b, right_next, sums);
      } else {
        multiply_step<kColumns>(a, kSplit ? b - kTileWords : b, right_next, sums);
      }
      if (k % kParts == part) aside(k);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kTaken; r++)
#pragma GCC unroll 2
      for (int c = 0; c < kColumns; c++) _mm512_storeu_ps(product + r * stride + c * kTile, sums[r][c]);
  }
}

#endif

}  // namespace ISA
}  // namespace operators

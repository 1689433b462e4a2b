// Products of bfloat16 matrices in tiles, summed in float32, on one thread. What small_matmul.h is for
// float32: both factors are packed once and used several times.
//
// A tile is 16 rows of 16 words, a word two bfloat16. A left factor is packed by rows: word (r, c) of a tile
// has the elements (r, 2 c) and (r, 2 c + 1). A right one is packed by pairs of rows: word (r, c) has the
// elements (2 r, c) and (2 r + 1, c). The transposed words of the one packing of a matrix are the other one
// of the transposed matrix. The tiles that one sum needs lie one after the other.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "small_matmul.h"
#include "tile_block.h"

namespace operators {
namespace ISA {

// Words of a packed factor with `size` rows (left) or columns (right).
inline int64_t tiles_size(int64_t size, int64_t depth) { return tiles(size) * steps(depth) * kTileWords; }

// Packs the left factor factor * matrix (rows, columns), or its rests: zeros beyond its columns and rows.
// Tile by tile: from tile to tile rows lie so that they would share a few sets of the first-level cache.
template <bool kRests = false>
inline void pack_rows(const float* matrix, int64_t stride, int64_t rows, int64_t columns, float factor,
                      uint32_t* packed) {
  const __m512 scale = _mm512_set1_ps(factor);
  for (int64_t row = 0; row < rows; row += kTile)
    for (int64_t column = 0; column < columns; column += kDeep, packed += kTileWords) {
      const float* from = matrix + row * stride + column;
      const bool whole = rows - row >= kTile && columns - column >= kDeep;
      for (int64_t r = 0; r < kTile; r++, from += stride) {
        const int64_t left = row + r < rows ? columns - column : 0;
        const __m512 low = whole ? _mm512_loadu_ps(from) : some(from, left);
        const __m512 high = whole ? _mm512_loadu_ps(from + kTile) : some(from + kTile, left - kTile);
        const __m512 first = _mm512_mul_ps(low, scale), second = _mm512_mul_ps(high, scale);
        _mm512_store_si512(packed + r * kTile,
                           kRests ? words_of(rests(first), rests(second)) : words_of(first, second));
      }
    }
}

// (a0 b0 a1 b1 ...) as bfloat16.
inline __m512i paired(__m512 a, __m512 b) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), words_of(a, b));
}

// Packs the right factor factor * matrix (depth, columns), or its rests: zeros beyond its columns and rows.
template <bool kRests = false>
inline void pack_pairs(const float* matrix, int64_t stride, int64_t depth, int64_t columns, float factor,
                       uint32_t* packed) {
  const __m512 scale = _mm512_set1_ps(factor);
  for (int64_t column = 0; column < columns; column += kTile)
    for (int64_t row = 0; row < depth; row += kDeep, packed += kTileWords) {
      const float* from = matrix + row * stride + column;
      const bool whole = depth - row >= kDeep && columns - column >= kTile;
      for (int64_t pair = 0; pair < kTile; pair++, from += 2 * stride) {
        const int64_t left = columns - column, rows = depth - row - 2 * pair;
        const __m512 even = whole ? _mm512_loadu_ps(from) : some(from, rows > 0 ? left : 0);
        const __m512 odd = whole ? _mm512_loadu_ps(from + stride) : some(from + stride, rows > 1 ? left : 0);
        const __m512 first = _mm512_mul_ps(even, scale), second = _mm512_mul_ps(odd, scale);
        _mm512_store_si512(packed + pair * kTile,
                           kRests ? paired(rests(first), rests(second)) : paired(first, second));
      }
    }
}

// Packs a block of tiles of a left factor, `high` (1 or 2) below each other, `next` words apart, and 16
// columns of each or 32 (`wide` 1 or 2), as so many tiles of a right factor, one after the other. With one,
// zeros take the place of the lower one.
inline void pack_pairs_of_tiles(const uint32_t* left, int64_t next, int64_t high, int64_t wide,
                                uint32_t* packed) {
  alignas(64) static constexpr uint16_t kFirst[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                      37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                      11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i first = _mm512_load_si512(kFirst), last = _mm512_add_epi16(first, _mm512_set1_epi16(16));
  for (int64_t row = 0; row < kDeep; row += 2, packed += kTile) {
    const uint32_t* from = left + row / kTile * next + row % kTile * kTile;
    const bool there = row < high * kTile;
    const __m512i even = there ? _mm512_load_si512(from) : _mm512_setzero_si512();
    const __m512i odd = there ? _mm512_load_si512(from + kTile) : _mm512_setzero_si512();
    _mm512_store_si512(packed, _mm512_permutex2var_epi16(even, first, odd));
    if (wide == 2) _mm512_store_si512(packed + kTileWords, _mm512_permutex2var_epi16(even, last, odd));
  }
}

// Packs a matrix (rows, columns) that is packed as a left factor as a right one.
inline void pack_pairs_of_rows(const uint32_t* left, int64_t rows, int64_t columns, uint32_t* packed) {
  const int64_t across = steps(columns), down = tiles(rows);
  alignas(64) uint32_t pairs[2 * kTileWords];
  for (int64_t step = 0; step < across; step++) {
    const int64_t wide = tiles(columns) - 2 * step > 1 ? 2 : 1;
    for (int64_t row = 0; row < down; row += 2) {
      pack_pairs_of_tiles(left + (row * across + step) * kTileWords, across * kTileWords,
                          down - row > 1 ? 2 : 1, wide, pairs);
      for (int64_t tile = 0; tile < wide; tile++)
        std::memcpy(packed + ((2 * step + tile) * steps(rows) + row / 2) * kTileWords,
                    pairs + tile * kTileWords, kTileWords * sizeof(uint32_t));
    }
  }
}

// Transposes the words of each of `count` tiles: the other packing of the transposed matrix.
inline void transpose_tiles(const uint32_t* from, int64_t count, uint32_t* to) {
  for (int64_t t = 0; t < count * kTileWords; t += kTileWords)
    transpose_block(reinterpret_cast<const float*>(from + t), kTile, reinterpret_cast<float*>(to + t), kTile);
}

// The same for any number of tiles up to two by two.
template <bool kAccumulate, bool kSplit = false, typename Aside>
inline void multiply_block(bool high, bool wide, const uint32_t* left, int64_t left_next,
                           const uint32_t* right, int64_t right_next, int64_t deep, float* product,
                           int64_t stride, const Aside& aside) {
  const auto part = high   ? wide ? multiply_tiles<2, 2, kAccumulate, kSplit, Aside>
                                  : multiply_tiles<2, 1, kAccumulate, kSplit, Aside>
                      : wide ? multiply_tiles<1, 2, kAccumulate, kSplit, Aside>
                           : multiply_tiles<1, 1, kAccumulate, kSplit, Aside>;
  part(left, left_next, right, right_next, deep, product, stride, aside);
}

// A packed factor, or some steps of one: where it begins, its rows (left) or columns (right), and how many
// steps each of its sums has in memory.
struct Factor {
  const uint32_t* tiles;
  int64_t size, deep;
};

// product (rows, columns) = left * right, or += if kAccumulate; written up to whole tiles. `deep` steps are
// summed up.
template <bool kAccumulate>
void multiply_packed(const Factor& left, const Factor& right, int64_t deep, float* product, int64_t stride) {
  const int64_t below = left.deep * kTileWords, beside = right.deep * kTileWords;
  for (int64_t c = 0; c < tiles(right.size); c += 2)
    for (int64_t r = 0; r < tiles(left.size); r += 2)
      multiply_block<kAccumulate>(r + 1 < tiles(left.size), c + 1 < tiles(right.size), left.tiles + r * below,
                                  below, right.tiles + c * beside, beside, deep,
                                  product + r * kTile * stride + c * kTile, stride, [](int64_t) {});
}

}  // namespace ISA
}  // namespace operators

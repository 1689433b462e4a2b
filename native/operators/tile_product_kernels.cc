#include "tile_product_kernels.h"

#include <cstdlib>

#ifdef __AVX512F__
#include "tile_product.h"
#endif

namespace operators {
namespace ISA {

#ifdef __AVX512F__
namespace {

// A block of sums that is being written to the output while the tiles multiply: the stores, which wait for
// memory, cost a fifth of the product otherwise.
class Writer {
 public:
  static constexpr bool kSplits = true;
  static constexpr int64_t kRows = 2, kPieces = kBlock / kRows;

  explicit Writer(const TileProduct& product)
      : product_(product),
        // Whole vectors at aligned addresses go past the caches: nothing reads them soon.
        streams_(!product.accumulate && product.stride % kTile == 0 &&
                 reinterpret_cast<uintptr_t>(product.output) % 64 == 0),
        block_rows_((product.rows + kBlock - 1) / kBlock) {}

  void begin(const float* sums, int64_t row, int64_t column) {
    sums_ = sums;
    output_ = product_.output + row * product_.stride + column;
    rows_ = std::min(kBlock, product_.rows - row);
    columns_ = std::min(kBlock, product_.columns - column);
    bias_ = product_.bias ? product_.bias + column : nullptr;
    square_ = product_.squares ? product_.squares + column / kBlock * block_rows_ + row / kBlock : nullptr;
    squares_ = _mm512_setzero_ps();
  }

  void piece(int64_t index) {
    for (int64_t row = index * kRows; row < std::min((index + 1) * kRows, rows_); row++) {
      const float* sums = sums_ + row * kBlock;
      float* output = output_ + row * product_.stride;
      // What the block below is added to, which comes from memory.
      if (product_.accumulate)
        for (int64_t c = 0; c < columns_; c += kTile)
          __builtin_prefetch(output + kBlock * product_.stride + c, 0, 3);
      for (int64_t c = 0; c < columns_; c += kTile) put(sums + c, c, output + c);
    }
    if (square_ && index + 1 == kPieces) *square_ = _mm512_reduce_add_ps(squares_);
  }

  void end() {}

 private:
  // Up to 16 sums from column c of the block on.
  void put(const float* sums, int64_t c, float* output) {
    const bool whole = columns_ - c >= kTile;
    const __mmask16 mask = whole ? 0xffff : (1u << (columns_ - c)) - 1;
    __m512 sum = _mm512_load_ps(sums);
    if (bias_) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, bias_ + c));
    if (product_.accumulate) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, output));
    squares_ = _mm512_mask3_fmadd_ps(sum, sum, squares_, mask);
    if (whole && streams_)
      _mm512_stream_ps(output, sum);
    else
      _mm512_mask_storeu_ps(output, mask, sum);
  }

  const TileProduct& product_;
  const bool streams_;
  const int64_t block_rows_;
  const float *sums_ = nullptr, *bias_ = nullptr;
  float *output_ = nullptr, *square_ = nullptr;
  __m512 squares_;
  int64_t rows_ = 0, columns_ = 0;
};

// Rounds a block into a left factor.
class FactorWriter {
 public:
  static constexpr bool kSplits = false;
  static constexpr int64_t kRows = 2, kPieces = kBlock / kRows;

  FactorWriter(const TileProduct& product, const ScaledColumns& scaled, uint32_t* left)
      : product_(product), scaled_(scaled), left_(left) {}

  void begin(const float* sums, int64_t row, int64_t column) {
    sums_ = sums;
    rows_ = std::min(kBlock, product_.rows - row);
    to_ = left_ + (row / kTile * steps(product_.columns) + column / kDeep) * kTileWords;
    const int64_t columns = product_.columns - column;
    for (int64_t half = 0; half < kPair; half++)
      bias_[half] = product_.bias ? some(product_.bias + column + half * kTile, columns - half * kTile)
                                  : _mm512_setzero_ps();
    factor_ = _mm512_set1_ps(column < scaled_.count ? scaled_.factor : 1.f);
  }

  void piece(int64_t index) {
    const int64_t next = steps(product_.columns) * kTileWords;
    for (int64_t row = index * kRows; row < (index + 1) * kRows; row++) {
      const float* sums = sums_ + row * kBlock;
      uint32_t* const to = to_ + row / kTile * next + row % kTile * kTile;
      if (row < rows_)
        _mm512_store_si512(to, words_of(number(sums, 0), number(sums, 1)));
      else if (row < (rows_ + kTile - 1) / kTile * kTile)
        _mm512_store_si512(to, _mm512_setzero_si512());
    }
  }

  void end() {}

 private:
  __m512 number(const float* sums, int64_t half) const {
    return _mm512_mul_ps(factor_, _mm512_add_ps(_mm512_load_ps(sums + half * kTile), bias_[half]));
  }

  const TileProduct& product_;
  const ScaledColumns scaled_;
  uint32_t* const left_;
  const float* sums_ = nullptr;
  uint32_t* to_ = nullptr;
  int64_t rows_ = 0;
  __m512 bias_[kPair], factor_;
};

// Adds the rows of `count` tiles below each other to sums of their columns.
void add_rows(const uint32_t* tile, int64_t next, int64_t count, float* sums) {
  __m512 low = _mm512_setzero_ps(), high = low;
  for (int64_t t = 0; t < count; t++, tile += next)
    for (int64_t r = 0; r < kTileWords; r += kTile) {
      // The first of a word's two elements is its lower half.
      const __m512i words = _mm512_load_si512(tile + r);
      low = _mm512_add_ps(low, (__m512)_mm512_slli_epi32(words, 16));
      high = _mm512_add_ps(high, (__m512)_mm512_and_si512(words, _mm512_set1_epi32(0xffff0000)));
    }
  alignas(64) float even[kTile], odd[kTile];
  _mm512_store_ps(even, low);
  _mm512_store_ps(odd, high);
  for (int64_t c = 0; c < kTile; c++) {
    sums[2 * c] += even[c];
    sums[2 * c + 1] += odd[c];
  }
}

// Asks for the block on the right of the one that begins at `from`: its rows lie in different pages, where
// the processor does not look ahead by itself.
void prefetch_next(const float* from, int64_t stride, int64_t rows) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < kDeep; c += kTile) __builtin_prefetch(from + r * stride + kDeep + c, 0, 2);
}

}  // namespace

void pack_factor(const float* matrix, int64_t rows, int64_t columns, const PackedForms& forms) {
  pack_part(matrix, rows, columns, 0, rows, forms);
}

void pack_part(const float* matrix, int64_t rows, int64_t columns, int64_t first, int64_t total,
               const PackedForms& forms) {
  const PackedForms to = forms;
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < rows; begin += kSquare) {
    for_blocks(begin, std::min(begin + kSquare, rows), columns, [&](int64_t row, int64_t column) {
      const float* from = matrix + row * columns + column;
      prefetch_next(from, columns, std::min(kDeep, rows - row));
      pack_block(from, columns, {total, columns, first + row, column}, to);
    });
    _mm_sfence();
  }
}

void multiply_packed_factors(const TileProduct& product) {
  multiply_blocks(product, [&] { return Writer(product); });
}

void multiply_into_factor(const TileProduct& product, const ScaledColumns& scaled, uint32_t* left) {
  multiply_blocks(product, [&] { return FactorWriter(product, scaled, left); });
}

void repack_factor(const uint32_t* left, int64_t rows, int64_t columns, const PackedForms& forms,
                   float* column_sums) {
  const PackedForms to = forms;
  const int64_t across = steps(columns), next = across * kTileWords, down = tiles(rows);
#pragma omp parallel for schedule(static)
  for (int64_t step = 0; step < across; step++) {
    const int64_t wide = std::min<int64_t>(2, tiles(columns) - 2 * step);
    alignas(64) uint32_t pairs[2 * kTileWords];
    float sums[kDeep] = {};
    for (int64_t row = 0; row < down; row += 2) {
      const uint32_t* from = left + row * next + step * kTileWords;
      const int64_t high = std::min<int64_t>(2, down - row);
      for (int64_t word = 0; word < kTileWords; word += kTile)
        for (int64_t tile = 2; tile < 4; tile++) __builtin_prefetch(from + tile * next + word, 0, 2);
      pack_pairs_of_tiles(from, next, high, wide, pairs);
      for (int64_t tile = 0; tile < wide; tile++) {
        const int64_t place = ((2 * step + tile) * steps(rows) + row / 2) * kTileWords;
        if (to.right) copy_tile(pairs + tile * kTileWords, false, to.right + place);
        if (to.transposed_left) transpose_tiles(pairs + tile * kTileWords, 1, to.transposed_left + place);
      }
      if (column_sums) add_rows(from, next, high, sums);
    }
    if (column_sums) std::copy_n(sums, std::min(kDeep, columns - step * kDeep), column_sums + step * kDeep);
  }
}

void zero_factor_rows(uint32_t* left, int64_t first, int64_t rows, int64_t columns) {
  const int64_t across = steps(columns);
  for (int64_t row = first; row < tiles(rows) * kTile; row++)
    for (int64_t step = 0; step < across; step++)
      _mm512_store_si512(left + (row / kTile * across + step) * kTileWords + row % kTile * kTile,
                         _mm512_setzero_si512());
}

#else

void pack_factor(const float*, int64_t, int64_t, const PackedForms&) { std::abort(); }
void pack_part(const float*, int64_t, int64_t, int64_t, int64_t, const PackedForms&) { std::abort(); }
void multiply_packed_factors(const TileProduct&) { std::abort(); }
void multiply_into_factor(const TileProduct&, const ScaledColumns&, uint32_t*) { std::abort(); }
void repack_factor(const uint32_t*, int64_t, int64_t, const PackedForms&, float*) { std::abort(); }
void zero_factor_rows(uint32_t*, int64_t, int64_t, int64_t) { std::abort(); }

#endif

}  // namespace ISA
}  // namespace operators

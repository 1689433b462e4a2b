#include "tile_product_kernels.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>

#ifdef __AMX_BF16__
#include "attention_kernels.h"
#include "tile_packing.h"
#endif

namespace operators {
namespace ISA {

#ifdef __AMX_BF16__
namespace {

// Tiles side by side that are computed together.
constexpr int64_t kPair = 2, kBlock = kPair * kTile;
// Steps summed up at a time: a right factor's two tiles (16 KiB) then stay in the first-level cache while
// the left factor's rows pass by, and leave room for those.
constexpr int64_t kSteps = 8;
// Rows of the left factor that stay in the second-level cache while the right factor's columns pass by.
constexpr int64_t kLeftBytes = 800 << 10;

// A block of sums that is being written to the output while the tiles multiply: the stores, which wait for
// memory, cost a fifth of the product otherwise.
class Writer {
 public:
  explicit Writer(const TileProduct& product)
      : product_(product),
        // Whole vectors at aligned addresses go past the caches: nothing reads them soon.
        streams_(!product.accumulate && product.stride % kTile == 0 &&
                 reinterpret_cast<uintptr_t>(product.output) % 64 == 0) {}

  void begin(const float* sums, int64_t row, int64_t column) {
    sums_ = sums;
    output_ = product_.output + row * product_.stride + column;
    rows_ = std::min(kBlock, product_.rows - row);
    columns_ = std::min(kBlock, product_.columns - column);
    bias_ = product_.bias ? product_.bias + column : nullptr;
    written_ = 0;
  }

  // The next four rows.
  void advance() {
    for (const int64_t end = std::min(written_ + 4, rows_); written_ < end; written_++) {
      const float* sums = sums_ + written_ * kBlock;
      float* output = output_ + written_ * product_.stride;
      for (int64_t c = 0; c < columns_; c += kTile) put(sums + c, c, output + c);
    }
  }

  void finish() {
    while (written_ < rows_) advance();
  }

 private:
  // Up to 16 sums from column c of the block on.
  void put(const float* sums, int64_t c, float* output) const {
    const bool whole = columns_ - c >= kTile;
    const __mmask16 mask = whole ? 0xffff : (1u << (columns_ - c)) - 1;
    __m512 sum = _mm512_load_ps(sums);
    if (bias_) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, bias_ + c));
    if (product_.accumulate) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, output));
    if (whole && streams_)
      _mm512_stream_ps(output, sum);
    else
      _mm512_mask_storeu_ps(output, mask, sum);
  }

  const TileProduct& product_;
  const bool streams_;
  const float *sums_ = nullptr, *bias_ = nullptr;
  float* output_ = nullptr;
  int64_t rows_ = 0, columns_ = 0, written_ = 0;
};

// The blocks [first_row, last_row) x [first_column, last_column) of the product. sums: scratch memory for a
// column of blocks, at least two.
void multiply_part(const TileProduct& product, int64_t first_row, int64_t last_row, int64_t first_column,
                   int64_t last_column, float* sums) {
  const int64_t deep = steps(product.depth), next = deep * kTileWords;
  const int64_t tile_rows = tiles(product.rows), tile_columns = tiles(product.columns);
  Writer writer(product);
  const uint32_t* ahead = nullptr;  // in the right factor's next tiles, which come from memory
  const int64_t ahead_words = (kPair * kTileWords + last_row - first_row - 1) / (last_row - first_row);
  const uint32_t* below = nullptr;  // in the left factor's next tiles, where they are read for the first time
  const auto aside = [&](int64_t step) {
    writer.advance();
    for (int64_t word = 0; word < ahead_words; word += kTile) __builtin_prefetch(ahead + word, 0, 2);
    ahead += ahead_words;
    if (!below) return;
    for (int64_t word = step * kTileWords; word < (step + 1) * kTileWords; word += kTile) {
      __builtin_prefetch(below + word, 0, 2);
      __builtin_prefetch(below + next + word, 0, 2);
    }
  };
  for (int64_t column = first_column; column < last_column; column++) {
    const bool wide = kPair * column + 1 < tile_columns;
    const uint32_t* right = product.right + kPair * column * next;
    ahead = right + kPair * next;
    for (int64_t step = 0; step < deep; step += kSteps) {
      const int64_t count = std::min(kSteps, deep - step);
      for (int64_t row = first_row; row < last_row; row++) {
        const bool high = kPair * row + 1 < tile_rows;
        const uint32_t* left = product.left + kPair * row * next;
        // While one block is written the next is computed: it must not be the same memory.
        const int64_t slot = last_row - first_row > 1 ? row - first_row : column % 2;
        float* sum = sums + slot * kBlock * kBlock;
        below = column == first_column ? left + kPair * next + step * kTileWords : nullptr;
        const auto multiply =
            step ? multiply_block<true, decltype(aside)> : multiply_block<false, decltype(aside)>;
        multiply(high, wide, left + step * kTileWords, next, right + step * kTileWords, next, count, sum,
                 kBlock, aside);
        writer.finish();
        if (step + count == deep) writer.begin(sum, row * kBlock, column * kBlock);
      }
    }
  }
  writer.finish();
  _mm_sfence();
}

}  // namespace

void pack_factor(const float* matrix, int64_t rows, int64_t columns, const PackedForms& forms) {
  pack_part(matrix, rows, columns, 0, rows, forms);
}

void pack_part(const float* matrix, int64_t rows, int64_t columns, int64_t first, int64_t total,
               const PackedForms& forms) {
  const PackedForms to = forms;
  constexpr int64_t kRows = 4 * kDeep;
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < rows; begin += kRows) {
    for_blocks(begin, std::min(begin + kRows, rows), columns, [&](int64_t row, int64_t column) {
      const float* from = matrix + row * columns + column;
      for (int64_t r = 0; r < std::min(kDeep, rows - row); r++)
        for (int64_t line = 0; line < kDeep; line += 16)
          __builtin_prefetch(from + r * columns + kDeep + line, 0, 2);
      pack_block(from, columns, {total, columns, first + row, column}, to);
    });
    _mm_sfence();
  }
}

void multiply_packed_factors(const TileProduct& given) {
  const TileProduct product = given;
  const int64_t block_rows = (product.rows + kBlock - 1) / kBlock;
  const int64_t block_columns = (product.columns + kBlock - 1) / kBlock;
  const int64_t most = std::max<int64_t>(1, kLeftBytes / (kBlock * product.depth * 2));
  const int64_t threads = omp_get_max_threads();
  // Rows are cut into equal groups, columns only as far as it takes to give every thread the same work.
  const int64_t row_groups = std::min(block_rows, std::max((block_rows + most - 1) / most, int64_t{1}));
  int64_t common = threads, rest = row_groups;
  while (rest) std::swap(common %= rest, rest);
  const int64_t column_groups = std::min(block_columns, threads / common);
#pragma omp parallel
  {
    const TileShapes shapes;
    const int64_t slots = std::max<int64_t>(2, (block_rows + row_groups - 1) / row_groups);
    float* sums = thread_scratch(slots * kBlock * kBlock);
#pragma omp for schedule(static)
    for (int64_t group = 0; group < row_groups * column_groups; group++) {
      const int64_t r = group / column_groups, c = group % column_groups;
      multiply_part(product, block_rows * r / row_groups, block_rows * (r + 1) / row_groups,
                    block_columns * c / column_groups, block_columns * (c + 1) / column_groups, sums);
    }
  }
}

#else

void pack_factor(const float*, int64_t, int64_t, const PackedForms&) { std::abort(); }
void pack_part(const float*, int64_t, int64_t, int64_t, int64_t, const PackedForms&) { std::abort(); }
void multiply_packed_factors(const TileProduct&) { std::abort(); }

#endif

}  // namespace ISA
}  // namespace operators

// The loops of a large product on AMX's tiles, and what is done with each block of sums while the tiles go
// on.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "attention_kernels.h"
#include "tile_packing.h"

namespace operators {
namespace ISA {

// Tiles side by side that are computed together.
constexpr int64_t kPair = 2, kBlock = kPair * kTile;
// Steps summed up at a time: a right factor's two tiles (16 KiB) then stay in the first-level cache while
// the left factor's rows pass by, and leave room for those.
constexpr int64_t kSteps = 8;
// Rows of the left factor that stay in the second-level cache while the right factor's columns pass by.
constexpr int64_t kLeftBytes = 800 << 10;

// Blocks [first_row, last_row) x [first_column, last_column) of a product, summed over the steps [first_step,
// last_step).
struct ProductPart {
  int64_t first_row, last_row, first_column, last_column, first_step, last_step;

  int64_t height() const { return last_row - first_row; }
  int64_t steps() const { return last_step - first_step; }
  // Whether a block's sums are complete after one visit: they need not wait for their column then.
  bool shallow() const { return steps() <= kSteps; }
  // Blocks of sums in memory: while some are written the next are computed, which must not be the same.
  int64_t slots() const { return shallow() ? 2 : 2 * height(); }
};

// Hands complete blocks to a writer, piece by piece, as many in a step of the tiles as it takes to be done
// when the next ones are: all in the last steps would keep the tiles waiting there.
template <typename Writer>
class Behind {
 public:
  Behind(Writer& writer, int64_t steps) : writer_(writer), steps_(steps) {}

  // Blocks of sums of a column, one row after the other.
  void begin(const float* sums, int64_t first_row, int64_t last_row, int64_t column) {
    sums_ = sums;
    row_ = first_row;
    last_row_ = last_row;
    column_ = column;
    due_ = 0;
  }

  void advance() {
    for (due_ += Writer::kPieces; due_ >= steps_; due_ -= steps_) piece();
  }

  void finish() {
    while (row_ < last_row_) piece();
  }

 private:
  void piece() {
    if (row_ == last_row_) return;
    if (piece_ == 0) writer_.begin(sums_, row_ * kBlock, column_ * kBlock);
    writer_.piece(piece_);
    if (++piece_ < Writer::kPieces) return;
    piece_ = 0;
    row_++;
    sums_ += kBlock * kBlock;
  }

  Writer& writer_;
  const int64_t steps_;
  const float* sums_ = nullptr;
  int64_t row_ = 0, last_row_ = 0, column_ = 0, piece_ = 0, due_ = 0;
};

// sums: scratch memory for part.slots() blocks.
template <typename Writer>
void multiply_part(const TileProduct& product, const ProductPart& part, Writer& writer, float* sums) {
  const int64_t next = steps(product.depth) * kTileWords, height = part.height();
  const int64_t tile_rows = tiles(product.rows), tile_columns = tiles(product.columns);
  Behind<Writer> behind(writer, part.steps());
  const uint32_t* ahead = nullptr;  // in the right factor's next tiles, which come from memory
  const int64_t ahead_words = (kPair * kTileWords + height - 1) / height;
  const uint32_t* below = nullptr;  // in the left factor's next tiles, where they are read for the first time
  const auto aside = [&](int64_t step) {
    behind.advance();
    for (int64_t word = 0; word < ahead_words; word += kTile) __builtin_prefetch(ahead + word, 0, 2);
    ahead += ahead_words;
    if (!below) return;
    for (int64_t word = step * kTileWords; word < (step + 1) * kTileWords; word += kTile) {
      __builtin_prefetch(below + word, 0, 2);
      __builtin_prefetch(below + next + word, 0, 2);
    }
  };
  int64_t turn = 0;  // which half of the sums the tiles write to
  for (int64_t column = part.first_column; column < part.last_column; column++) {
    const bool wide = kPair * column + 1 < tile_columns;
    const uint32_t* right = product.right + kPair * column * next;
    ahead = right + kPair * next + part.first_step * kTileWords;
    for (int64_t step = part.first_step; step < part.last_step; step += kSteps) {
      const int64_t count = std::min(kSteps, part.last_step - step);
      const auto multiply = step > part.first_step ? multiply_block<true, decltype(aside)>
                                                   : multiply_block<false, decltype(aside)>;
      for (int64_t row = part.first_row; row < part.last_row; row++) {
        const bool high = kPair * row + 1 < tile_rows;
        const uint32_t* left = product.left + kPair * row * next;
        const int64_t slot = part.shallow() ? turn : turn * height + row - part.first_row;
        float* sum = sums + slot * kBlock * kBlock;
        below = column == part.first_column ? left + kPair * next + step * kTileWords : nullptr;
        multiply(high, wide, left + step * kTileWords, next, right + step * kTileWords, next, count, sum,
                 kBlock, aside);
        if (!part.shallow()) continue;
        behind.finish();
        behind.begin(sum, row, row + 1, column);
        turn = 1 - turn;
      }
    }
    if (part.shallow()) continue;
    behind.finish();
    behind.begin(sums + turn * height * kBlock * kBlock, part.first_row, part.last_row, column);
    turn = 1 - turn;
  }
  behind.finish();
  _mm_sfence();
}

// Computes the product block by block. make() gives each thread its writer: its begin(sums, row, column)
// takes a block of kBlock rows of kBlock sums, piece(i), for i from 0 to kPieces - 1, does a part of the work
// with them; end(), called by all threads when all blocks are done, what is left.
template <typename MakeWriter>
void multiply_blocks(const TileProduct& given, const MakeWriter& make) {
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
    auto writer = make();
#pragma omp for schedule(static)
    for (int64_t group = 0; group < row_groups * column_groups; group++) {
      const int64_t r = group / column_groups, c = group % column_groups;
      const ProductPart part = {block_rows * r / row_groups,
                                block_rows * (r + 1) / row_groups,
                                block_columns * c / column_groups,
                                block_columns * (c + 1) / column_groups,
                                0,
                                steps(product.depth)};
      multiply_part(product, part, writer, thread_scratch(part.slots() * kBlock * kBlock));
    }
    writer.end();
  }
}

}  // namespace ISA
}  // namespace operators

// The loops of a large product on tiles, and what is done with each block of sums while these go on.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "scratch.h"
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

// Steps of a deep product that are summed up over a strip of columns before the next ones: so many rows of
// the left factor as then stay in the second-level cache have the right factor pass by less often.
constexpr int64_t kDeepSteps = 24;
// Blocks side by side in such a strip: their sums lie in a cache until the next steps.
constexpr int64_t kStrip = 32;

// Tiles of a factor that one sum needs, a step for each.
inline int64_t tiles_deep(const TileProduct& product) {
  return steps(product.depth) * (product.split ? 2 : 1);
}

// Into how many parts a depth of so many steps is cut.
inline int64_t depth_parts(int64_t deep) {
  return deep > 2 * kDeepSteps ? (deep + kDeepSteps - 1) / kDeepSteps : 1;
}

// Blocks [first_row, last_row) x [first_column, last_column) of a product.
struct ProductPart {
  int64_t first_row, last_row, first_column, last_column;
  int64_t height() const { return last_row - first_row; }
};

// Where the sums of a part's blocks lie: those of a shallow product in turn in two places, as each is
// complete after one visit; those of a column at a time in turn in two columns; of a product in several parts
// all. What is being written is not the memory that the tiles write to.
class Places {
 public:
  Places(const ProductPart& part, int64_t deep)
      : part_(part), shallow_(deep <= kSteps), whole_(depth_parts(deep) > 1) {}

  int64_t count() const {
    const int64_t columns = part_.last_column - part_.first_column;
    return shallow_ ? 2 : part_.height() * (whole_ ? columns : 2);
  }
  bool shallow() const { return shallow_; }

  int64_t operator()(int64_t row, int64_t column) const {
    const int64_t r = row - part_.first_row, c = column - part_.first_column;
    if (shallow_) return (c * part_.height() + r) % 2;
    return (whole_ ? c : c % 2) * part_.height() + r;
  }

 private:
  const ProductPart part_;
  const bool shallow_, whole_;
};

// Hands complete blocks to a writer, piece by piece, as many in a step of the tiles as it takes to be done
// when the next ones are: all in the last steps would keep the tiles waiting there.
template <typename Writer>
class Behind {
 public:
  Behind(Writer& writer, int64_t steps) : writer_(writer), steps_(steps) {}

  // Blocks of sums of a column, one row after the other. Finishes those that it has.
  void take(const float* sums, int64_t first_row, int64_t last_row, int64_t column) {
    finish();
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

// sums: scratch memory for as many blocks as `places` counts.
template <typename Writer>
void multiply_part(const TileProduct& product, const ProductPart& part, const Places& places, Writer& writer,
                   float* sums) {
  const int64_t deep = tiles_deep(product), next = deep * kTileWords, height = part.height();
  // A part does not end between numbers and their rests.
  const int64_t together = product.split ? 2 : 1, parts = depth_parts(deep);
  const auto cut = [&](int64_t part) { return deep / together * part / parts * together; };
  const int64_t least = cut(1);  // steps of the shortest part
  const int64_t tile_rows = tiles(product.rows), tile_columns = tiles(product.columns);
  Behind<Writer> behind(writer, least);
  const auto sums_of = [&](int64_t row, int64_t column) {
    return sums + places(row, column) * kBlock * kBlock;
  };
  const uint32_t* ahead = nullptr;  // in the right factor's next tiles, which come from memory
  const int64_t ahead_words = (kPair * kTileWords + height - 1) / height;
  const uint32_t* below = nullptr;  // in the left factor's next tiles, where they are read for the first time
  const float* beside = nullptr;    // in the next column's sums of the steps before
  const int64_t beside_words = (kBlock * kBlock + least - 1) / least;
  const auto aside = [&](int64_t step) {
    behind.advance();
    for (int64_t word = 0; word < ahead_words; word += kTile) __builtin_prefetch(ahead + word, 0, 2);
    ahead += ahead_words;
    if (beside) {
      for (int64_t word = 0; word < beside_words; word += kTile) __builtin_prefetch(beside + word, 0, 2);
      beside += beside_words;
    }
    if (!below) return;
    for (int64_t word = step * kTileWords; word < (step + 1) * kTileWords; word += kTile) {
      __builtin_prefetch(below + word, 0, 2);
      __builtin_prefetch(below + next + word, 0, 2);
    }
  };
  for (int64_t p = 0; p < parts; p++) {
    const int64_t first_step = cut(p), last_step = cut(p + 1);
    for (int64_t column = part.first_column; column < part.last_column; column++) {
      const bool wide = kPair * column + 1 < tile_columns;
      const uint32_t* right = product.right + kPair * column * next;
      ahead = right + kPair * next + first_step * kTileWords;
      beside = p > 0 ? sums_of(part.first_row, column + 1) : nullptr;
      for (int64_t step = first_step; step < last_step; step += kSteps) {
        const int64_t count = std::min(kSteps, last_step - step);
        using Aside = decltype(aside);
        const bool split = Writer::kSplits && product.split;
        const auto multiply = split ? step ? multiply_block<true, true, Aside> : multiply_block<false, true, Aside>
                              : step ? multiply_block<true, false, Aside>
                                     : multiply_block<false, false, Aside>;
        for (int64_t row = part.first_row; row < part.last_row; row++) {
          const bool high = kPair * row + 1 < tile_rows;
          const uint32_t* left = product.left + kPair * row * next;
          below = column == part.first_column ? left + kPair * next + step * kTileWords : nullptr;
          multiply(high, wide, left + step * kTileWords, next, right + step * kTileWords, next, count,
                   sums_of(row, column), kBlock, aside);
          if (places.shallow()) behind.take(sums_of(row, column), row, row + 1, column);
        }
      }
      if (p + 1 == parts && !places.shallow())
        behind.take(sums_of(part.first_row, column), part.first_row, part.last_row, column);
    }
  }
  behind.finish();
  _mm_sfence();
}

// Computes the product block by block. make() gives each thread its writer: its begin(sums, row, column)
// takes a block of kBlock rows of kBlock sums (of split numbers only if kSplits), piece(i), for i from 0 to
// kPieces - 1, does a part of the work with them; end(), called by all threads when all blocks are done, what
// is left.
template <typename MakeWriter>
void multiply_blocks(const TileProduct& given, const MakeWriter& make) {
  const TileProduct product = given;
  const int64_t block_rows = (product.rows + kBlock - 1) / kBlock;
  const int64_t block_columns = (product.columns + kBlock - 1) / kBlock;
  const int64_t deep = tiles_deep(product), parts = depth_parts(deep);
  const int64_t most =
      std::max<int64_t>(1, kLeftBytes / (kPair * kTileWords * 4 * ((deep + parts - 1) / parts)));
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
      const int64_t last = block_columns * (c + 1) / column_groups, strip = parts > 1 ? kStrip : last;
      for (int64_t first = block_columns * c / column_groups; first < last; first += strip) {
        const ProductPart part = {block_rows * r / row_groups, block_rows * (r + 1) / row_groups, first,
                                  std::min(first + strip, last)};
        const Places places(part, deep);
        multiply_part(product, part, places, writer, thread_scratch(places.count() * kBlock * kBlock));
      }
    }
    writer.end();
  }
}

}  // namespace ISA
}  // namespace operators

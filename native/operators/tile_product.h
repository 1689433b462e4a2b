// The loops of a large product on AMX's tiles, and what is done with each block of sums while the tiles go
// on.
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

// Blocks [first_row, last_row) x [first_column, last_column) of a product.
struct ProductPart {
  int64_t first_row, last_row, first_column, last_column;
};

// sums: scratch memory for a column of blocks, at least two.
template <typename Writer>
void multiply_part(const TileProduct& product, const ProductPart& part, Writer& writer, float* sums) {
  const auto [first_row, last_row, first_column, last_column] = part;
  const int64_t deep = steps(product.depth), next = deep * kTileWords;
  const int64_t tile_rows = tiles(product.rows), tile_columns = tiles(product.columns);
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

// Computes the product block by block. make() gives each thread its writer: begin(sums, row, column) has it
// take a block of kBlock rows of kBlock sums, advance() do an eighth of its work with them, finish() the
// rest; end(), called by all threads when all blocks are done, what is left.
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
    const int64_t slots = std::max<int64_t>(2, (block_rows + row_groups - 1) / row_groups);
    float* sums = thread_scratch(slots * kBlock * kBlock);
#pragma omp for schedule(static)
    for (int64_t group = 0; group < row_groups * column_groups; group++) {
      const int64_t r = group / column_groups, c = group % column_groups;
      const ProductPart part = {block_rows * r / row_groups, block_rows * (r + 1) / row_groups,
                                block_columns * c / column_groups, block_columns * (c + 1) / column_groups};
      multiply_part(product, part, writer, sums);
    }
    writer.end();
  }
}

}  // namespace ISA
}  // namespace operators

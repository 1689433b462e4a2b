// Packing a block of a float32 matrix into the forms that products on tiles take (tile_matmul.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "tile_matmul.h"
#include "tile_product_kernels.h"

namespace operators {
namespace ISA {

// A block of kDeep rows and columns, fewer at the edges, of a matrix (rows, columns).
struct MatrixBlock {
  int64_t rows, columns, row, column;  // `row` and `column` begin it
  int64_t height() const { return std::min(kDeep, rows - row); }
  int64_t width() const { return std::min(kDeep, columns - column); }
};

// Rows and columns of a square of blocks: what is packed of it fills whole pages.
constexpr int64_t kSquare = 4 * kDeep;

// Calls body(row, column) for the blocks with the rows [begin, end), square after square: with one row of
// blocks after the other, each would meet another page.
template <typename Body>
void for_blocks(int64_t begin, int64_t end, int64_t columns, const Body& body) {
  for (int64_t top = begin; top < end; top += kSquare)
    for (int64_t side = 0; side < columns; side += kSquare)
      for (int64_t row = top; row < std::min(top + kSquare, end); row += kDeep)
        for (int64_t column = side; column < std::min(side + kSquare, columns); column += kDeep)
          body(row, column);
}

inline void copy_tile(const uint32_t* tile, bool streams, uint32_t* to) {
  for (int64_t word = 0; word < kTileWords; word += kTile)
    if (streams)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + word), _mm512_load_si512(tile + word));
    else
      _mm512_store_si512(to + word, _mm512_load_si512(tile + word));
}

// Packs one block, whose elements begin at `from`, `stride` from row to row, into its place in each form.
inline void pack_block(const float* from, int64_t stride, const MatrixBlock& block,
                       const PackedForms& forms) {
  alignas(64) uint32_t tile[kTileWords], turned[kTileWords];
  const int64_t height = block.height(), width = block.width(), parts = forms.split ? 2 : 1;
  const auto put = [&](int64_t index, uint32_t* plain, uint32_t* transposed) {
    if (plain) copy_tile(tile, forms.streams, plain + index * kTileWords);
    if (!transposed) return;
    transpose_tiles(tile, 1, turned);
    copy_tile(turned, forms.streams, transposed + index * kTileWords);
  };
  if (forms.left || forms.transposed_right)
    for (int64_t r = 0; r < height; r += kTile)
      for (int64_t part = 0; part < parts; part++) {
        const auto pack = part ? pack_rows<true> : pack_rows<false>;
        pack(from + r * stride, stride, std::min(kTile, height - r), width, 1.f, tile);
        put(((block.row + r) / kTile * steps(block.columns) + block.column / kDeep) * parts + part,
            forms.left, forms.transposed_right);
      }
  if (forms.right || forms.transposed_left)
    for (int64_t c = 0; c < width; c += kTile)
      for (int64_t part = 0; part < parts; part++) {
        const auto pack = part ? pack_pairs<true> : pack_pairs<false>;
        pack(from + c, stride, height, std::min(kTile, width - c), 1.f, tile);
        put(((block.column + c) / kTile * steps(block.rows) + block.row / kDeep) * parts + part, forms.right,
            forms.transposed_left);
      }
}

}  // namespace ISA
}  // namespace operators

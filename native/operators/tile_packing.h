// Packing a block of a float32 matrix into the forms that products on AMX's tiles take (tile_matmul.h).
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

// Packs one block, whose elements begin at `from`, `stride` from row to row, into its place in each form.
inline void pack_block(const float* from, int64_t stride, const MatrixBlock& block, const PackedForms& forms) {
  alignas(64) uint32_t spare[kTileWords];
  const int64_t height = block.height(), width = block.width();
  if (forms.left || forms.transposed_right)
    for (int64_t r = 0; r < height; r += kTile) {
      const int64_t tile = (block.row + r) / kTile * steps(block.columns) + block.column / kDeep;
      uint32_t* to = forms.left ? forms.left + tile * kTileWords : spare;
      pack_rows(from + r * stride, stride, std::min(kTile, height - r), width, 1.f, to);
      if (forms.transposed_right) transpose_tiles(to, 1, forms.transposed_right + tile * kTileWords);
    }
  if (forms.right || forms.transposed_left)
    for (int64_t c = 0; c < width; c += kTile) {
      const int64_t tile = (block.column + c) / kTile * steps(block.rows) + block.row / kDeep;
      uint32_t* to = forms.right ? forms.right + tile * kTileWords : spare;
      pack_pairs(from + c, stride, height, std::min(kTile, width - c), 1.f, to);
      if (forms.transposed_left) transpose_tiles(to, 1, forms.transposed_left + tile * kTileWords);
    }
}

}  // namespace ISA
}  // namespace operators

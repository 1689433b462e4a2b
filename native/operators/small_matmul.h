// Products of matrices that fit in the second-level cache, on one thread: a register tile of kTileRows rows
// and one panel of columns is summed up over the whole depth. The left matrix is plain, the right one packed
// in panels. As fast as dnnl_sgemm at attention's sizes (docs/notebook/products.md), which would pack each matrix
// again for each call.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace operators {
namespace ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kTileRows = 8;
#elif defined(__AVX__)
constexpr int kLanes = 8, kTileRows = 6;
#else
constexpr int kLanes = 4, kTileRows = 6;
#endif
constexpr int kPanel = 2 * kLanes;  // columns of a panel; the last one may have kLanes

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Indices __attribute__((vector_size(kLanes * sizeof(int32_t))));

inline Vector load(const float* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
inline void store(float* to, Vector value) { std::memcpy(to, &value, sizeof value); }

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Floats that a packed matrix takes.
inline int64_t packed_size(int64_t depth, int64_t columns) { return depth * round_up(columns, kLanes); }

// What a product writes for `rows` rows: whole tiles, whole vectors.
inline int64_t product_size(int64_t rows, int64_t stride) { return round_up(rows, kTileRows) * stride; }

template <int kVectors, bool kTransposed, bool kAccumulate>
inline void multiply_tile(const float* left, int64_t left_stride, const float* right, int64_t depth,
                          float* product, int64_t stride) {
  Vector sum[kTileRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; r++)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; v++)
      sum[r][v] = kAccumulate ? load(product + r * stride + v * kLanes) : Vector{};
  for (int64_t k = 0; k < depth; k++) {
    Vector factor[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; v++) factor[v] = load(right + (k * kVectors + v) * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; r++) {
      const float x = kTransposed ? left[k * left_stride + r] : left[r * left_stride + k];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; v++) sum[r][v] += x * factor[v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; r++)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; v++) store(product + r * stride + v * kLanes, sum[r][v]);
}

// product (rows, columns) = left * right, or += if kAccumulate. left is (rows, depth), or (depth, rows) if
// kTransposed; right is packed (depth, columns). Reads left and writes product up to whole tiles: rows up to
// a multiple of kTileRows, columns up to a multiple of kLanes; nothing that matters depends on what is read
// there.
template <bool kTransposed, bool kAccumulate>
void multiply(const float* left, int64_t left_stride, int64_t rows, const float* right, int64_t depth,
              int64_t columns, float* product, int64_t stride) {
  for (int64_t column = 0; column < columns; column += kPanel) {
    const float* panel = right + column * depth;
    for (int64_t row = 0; row < rows; row += kTileRows) {
      const float* from = left + (kTransposed ? row : row * left_stride);
      float* to = product + row * stride + column;
      if (columns - column > kLanes)
        multiply_tile<2, kTransposed, kAccumulate>(from, left_stride, panel, depth, to, stride);
      else
        multiply_tile<1, kTransposed, kAccumulate>(from, left_stride, panel, depth, to, stride);
    }
  }
}

// Columns of the panel that begins at `column`.
inline int64_t panel_width(int64_t column, int64_t columns) {
  return columns - column > kLanes ? kPanel : kLanes;
}

// Packs a (depth, columns) matrix, zeros beyond its columns.
inline void pack(const float* matrix, int64_t stride, int64_t depth, int64_t columns, float* packed) {
  for (int64_t column = 0; column < columns; column += kPanel) {
    const int64_t width = panel_width(column, columns);
    const int64_t filled = columns - column < width ? columns - column : width;
    for (int64_t k = 0; k < depth; k++, packed += width) {
      const float* row = matrix + k * stride + column;
      if (filled == kPanel) {
        store(packed, load(row));
        store(packed + kLanes, load(row + kLanes));
      } else {
        for (int64_t c = 0; c < filled; c++) packed[c] = row[c];
        for (int64_t c = filled; c < width; c++) packed[c] = 0.f;
      }
    }
  }
}

// From (a0 a1 .. ) and (b0 b1 ..): (a0 b0 a1 b1 ..), the first or the second half of it.
template <int... kIndex>
inline void interleave(Vector a, Vector b, Vector* halves, std::integer_sequence<int, kIndex...>) {
  halves[0] = __builtin_shuffle(a, b, Indices{(kIndex / 2 + kIndex % 2 * kLanes)...});
  halves[1] = __builtin_shuffle(a, b, Indices{(kIndex / 2 + kIndex % 2 * kLanes + kLanes / 2)...});
}

// Transposes kLanes rows of kLanes columns. Interleaving row i with row i + kLanes / 2 moves each element's
// index (row, column), read as one binary number, round by one bit; after log2(kLanes) times row and column
// have changed places.
inline void transpose_block(const float* matrix, int64_t stride, float* transposed,
                            int64_t transposed_stride) {
  Vector rows[kLanes], next[kLanes];
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; r++) rows[r] = load(matrix + r * stride);
#pragma GCC unroll 4
  for (int step = 1; step < kLanes; step *= 2) {
#pragma GCC unroll 16
    for (int r = 0; r < kLanes / 2; r++)
      interleave(rows[r], rows[r + kLanes / 2], next + 2 * r, std::make_integer_sequence<int, kLanes>());
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; r++) rows[r] = next[r];
  }
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; r++) store(transposed + r * transposed_stride, rows[r]);
}

// Packs the transpose of a (columns, depth) matrix as a (depth, columns) one, zeros beyond its columns.
inline void pack_transposed(const float* matrix, int64_t stride, int64_t depth, int64_t columns,
                            float* packed) {
  float edge[kLanes * kLanes], edge_transposed[kLanes * kLanes];
  for (int64_t column = 0; column < columns; column += kLanes) {
    const int64_t first = column / kPanel * kPanel;
    const int64_t width = panel_width(first, columns);
    float* to = packed + first * depth + (column - first);
    const int64_t filled = columns - column < kLanes ? columns - column : kLanes;
    for (int64_t k = 0; k < depth; k += kLanes, to += kLanes * width) {
      const float* from = matrix + column * stride + k;
      const int64_t deep = depth - k < kLanes ? depth - k : kLanes;
      if (filled == kLanes && deep == kLanes) {
        transpose_block(from, stride, to, width);
        continue;
      }
      std::memset(edge, 0, sizeof edge);
      for (int64_t c = 0; c < filled; c++)
        std::memcpy(edge + c * kLanes, from + c * stride, deep * sizeof *from);
      transpose_block(edge, kLanes, edge_transposed, kLanes);
      for (int64_t d = 0; d < deep; d++)
        std::memcpy(to + d * width, edge_transposed + d * kLanes, sizeof(Vector));
    }
  }
}

}  // namespace ISA
}  // namespace operators

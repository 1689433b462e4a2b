// Large products of bfloat16 matrices on tiles: float32 matrices rounded into packed factors, and the
// products of those. Builds without AVX-512 have none; see tile_products() in matmul.h.
#pragma once

#include <cstdint>

#include "isa.h"

namespace operators {

// Where the packed forms of a matrix (rows, columns) go; each is wanted or null. tile_matmul.h describes
// them.
struct PackedForms {
  uint32_t* left = nullptr;             // a left factor (rows, columns)
  uint32_t* right = nullptr;            // a right factor: `rows` are summed over
  uint32_t* transposed_left = nullptr;  // the same of the transposed matrix
  uint32_t* transposed_right = nullptr;
  bool streams = false;  // past the caches: what is packed is not used soon
  bool split = false;    // each tile of rounded numbers is followed by one of the rounded rests
};

// output (rows, columns) = left (rows, depth) right (depth, columns) [+ bias (columns)] [+ output], summed in
// float32 in an order that does not depend on the number of threads.
struct TileProduct {
  const uint32_t *left, *right;
  int64_t rows, columns, depth;
  float* output;
  int64_t stride;  // from row to row of the output
  const float* bias = nullptr;
  bool accumulate = false;
  bool split = false;  // the factors are; a product is then Precision::bfloat16x3's
  // The sum of the squares of each block of 32 rows and columns of the output, columns of blocks one after
  // the other; null where it is not wanted. Not with `accumulate`.
  float* squares = nullptr;
};

// How many blocks a product has.
inline int64_t blocks_of(int64_t rows, int64_t columns) { return (rows + 31) / 32 * ((columns + 31) / 32); }

// Columns [0, count), a multiple of 32, and what they are multiplied with.
struct ScaledColumns {
  int64_t count = 0;
  float factor = 1;
};

// Words of four bytes of a packed factor with so many rows (left) or columns (right).
inline int64_t packed_words(int64_t size, int64_t depth, bool split = false) {
  return (size + 15) / 16 * ((depth + 31) / 32) * (split ? 512 : 256);
}

}  // namespace operators

DECLARE_KERNELS(
    // Rounds a float32 matrix without gaps to bfloat16 (ties to even) and packs it.
    void pack_factor(const float* matrix, int64_t rows, int64_t columns, const PackedForms& forms);
    // The same for rows [first, first + rows) of a matrix with `total` rows; all but the last such part of it
    // begin and end at a multiple of 32.
    void pack_part(const float* matrix, int64_t rows, int64_t columns, int64_t first, int64_t total,
                   const PackedForms& forms);
    void multiply_packed_factors(const TileProduct& product);
    // The same without an output, rounded to bfloat16 and packed as a left factor (rows, columns), whose last
    // tiles are filled up with zeros. The first columns are scaled before they are rounded.
    void multiply_into_factor(const TileProduct& product, const ScaledColumns& scaled, uint32_t* left);
    // Packs a matrix (rows, columns) that is packed as a left factor in other forms, `right` and
    // `transposed_left`. column_sums (columns), unless null: the sums over its rows.
    void repack_factor(const uint32_t* left, int64_t rows, int64_t columns, const PackedForms& forms,
                       float* column_sums);
    // Sets the rows [first, rows) of such a matrix to 0, and those that fill up its last tiles.
    void zero_factor_rows(uint32_t* left, int64_t first, int64_t rows, int64_t columns);)

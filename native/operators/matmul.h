// Products of matrices by oneDNN: primitives made once for each shape, memory layouts, reused scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "operator.h"

namespace operators {

// How float32 matrices are multiplied. bfloat16: rounded to it. bfloat16x3: each number a is the sum of two
// of bfloat16, the rounded a1 and a2, the rounded rest a - a1, and a product is a1 b1 + a1 b2 + a2 b1, three
// products of bfloat16 for one: of a b at most 3 x 2^-16 is lost (Henry, Tang, Heinecke, arXiv:1904.06376).
// All are summed in float32.
enum class Precision : int { float32, bfloat16, bfloat16x3 };

// What the attribute dtype names. Throws std::runtime_error for anything else.
Precision precision(const Attributes& attributes);
Precision precision_named(const std::string& dtype);

// Whether that is bfloat16: for operators that multiply float32 itself where dtype is "bfloat16x3".
bool low_precision(const Attributes& attributes);

// How a float32 matrix lies in memory.
struct Layout {
  enum Order : int {
    row_major,     // `step` elements from row to row
    column_major,  // `step` elements from column to column
    blocked,       // what oneDNN likes best for the right factor of a product; `step` is 0
  };
  Order order;
  int64_t rows, columns, step;

  size_t bytes() const;
  Layout transposed() const;  // the same memory, seen as the transposed matrix; not for `blocked`
};

Layout row_major(int64_t rows, int64_t columns);
Layout row_major_step(int64_t rows, int64_t columns, int64_t step);
Layout blocked(int64_t rows, int64_t columns);

// output (M, N) = left (M, K) right (K, N) [+ bias (N)] [+ output]; the output is row-major. Where one factor
// is `blocked`, rows should have no gaps: for some others oneDNN 3.2 has reference code only, 1000 times
// slower. Throws dnnl::error or std::runtime_error.
void multiply(const Layout& left, const float* left_data, const Layout& right, const float* right_data,
              const Layout& output, float* output_data, const float* bias = nullptr, bool accumulate = false);

// Copies a matrix into another layout.
void reorder(const Layout& from, const float* source, const Layout& to, float* target);

// Whether products of bfloat16 are those of tile_product_kernels.h: where the processor multiplies bfloat16
// (AMX, AVX-512 BF16). Elsewhere factors are rounded and multiplied as float32, in which the products of two
// bfloat16 are exact: nothing else differs. BERT_OPERATORS_BF16=native (with AVX-512; emulated where the
// processor has no instructions for it) or rounded overrides it. Throws std::runtime_error for other values.
bool tile_products();

// Memory of this thread, aligned for vectors and huge pages, that keeps its contents until the next call with
// the same slot.
enum Slot : int {
  kOneDnnSlot,
  kLeftSlot,
  kRightSlot,
  kBlockedSlot,
  kBiasSlot,
  kRowsSlot,
  kSumSlot,
  kGeluSlot,
  kGradientSlot,
  kOuterSlot,
  kAgainSlot,  // what is computed again
  kSlots
};
void* scratch(Slot slot, size_t bytes);

}  // namespace operators

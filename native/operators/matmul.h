// Products of matrices by oneDNN: primitives made once for each shape, memory layouts, reused scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "operator.h"

namespace operators {

enum class Element : int { float32, bfloat16 };

inline size_t bytes_of(Element element) { return element == Element::float32 ? 4 : 2; }

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

// How a matrix lies in memory.
struct Layout {
  enum Order : int {
    row_major,     // `step` elements from row to row
    column_major,  // `step` elements from column to column
    blocked,       // what oneDNN likes best for the right factor of a product; `step` is 0
  };
  Element element;
  Order order;
  int64_t rows, columns, step;

  size_t bytes() const;
  Layout transposed() const;  // the same memory, seen as the transposed matrix; not for `blocked`
};

Layout row_major(int64_t rows, int64_t columns, Element element = Element::float32);
Layout row_major_step(int64_t rows, int64_t columns, int64_t step, Element element = Element::float32);
Layout blocked(int64_t rows, int64_t columns, Element element = Element::float32);

// output (M, N) = left (M, K) right (K, N) [+ bias (N)] [+ output], summed in float32. Output and bias are
// float32, the output is row-major. The factors have the same element type. For bfloat16, and where one
// factor is `blocked`, rows should have no gaps: for some others oneDNN 3.2 has reference code only, 1000
// times slower. Throws dnnl::error or std::runtime_error.
void multiply(const Layout& left, const void* left_data, const Layout& right, const void* right_data,
              const Layout& output, float* output_data, const float* bias = nullptr, bool accumulate = false);

// Copies a matrix into another layout, and rounds to the nearest (even) where the elements become bfloat16.
void reorder(const Layout& from, const void* source, const Layout& to, void* target);

// What bfloat16 factors are stored as: bfloat16 where the processor multiplies that, otherwise float32 (the
// values are rounded all the same; the products of two bfloat16 are exact in float32, so nothing else
// differs). BERT_OPERATORS_BF16=native or rounded overrides it. Throws std::runtime_error for other values.
Element bfloat16_storage();

// Whether products of bfloat16 are those of tile_product_kernels.h: where the processor has AMX's tiles,
// unless a variable says otherwise. They are faster than oneDNN's, which copies its factors.
bool tile_products();

// Rounds float32 to bfloat16 and stores it as bfloat16_storage() says.
void round_factor(const float* source, int64_t size, void* target);

// The two parts of Precision::bfloat16x3, each stored in that way.
void split_factor(const float* source, int64_t size, void* rounded, void* rest);

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
  kSlots
};
void* scratch(Slot slot, size_t bytes);

}  // namespace operators

// The work of self-attention, one part of one head at a time: sizes, memory, rows that are copied.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention_kernels.h"
#include "small_matmul.h"

namespace operators {
namespace ISA {

// Queries taken at a time. Forward, their scores shall stay in the first-level cache; backward, the sums over
// the queries are loaded and stored once for each block.
constexpr int64_t kForwardBlock = 32;
constexpr int64_t kBackwardBlock = 64;

inline int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }

// One part of one head: queries [begin, end) and all keys that exist.
struct Task {
  int64_t sequence, head, begin, end, keys;

  // The row of log_sum for a query, and of all probabilities as one matrix.
  int64_t row(const Attention& shape, int64_t query) const {
    return (sequence * shape.heads + head) * shape.length + query;
  }
};

inline Task task(const Attention& shape, int64_t index) {
  const int64_t part = index % shape.parts;
  const int64_t head = index / shape.parts;
  const int64_t sequence = head / shape.heads;
  const int64_t valid = shape.lengths[sequence];
  return {sequence, head % shape.heads, shape.length * part / shape.parts,
          shape.length * (part + 1) / shape.parts, valid < 0 ? 0 : minimum(valid, shape.length)};
}

// A pointer and how many elements of four bytes are to lie there.
struct Piece {
  void* pointer;
  int64_t elements;
  template <typename Element>
  Piece(Element** pointer, int64_t elements) : pointer(pointer), elements(elements) {
    static_assert(sizeof(Element) == sizeof(float), "scratch memory is counted in floats");
  }
};

// Sets each pointer to its piece of this thread's scratch memory.
template <int kPieces>
void lay_out(const Piece (&pieces)[kPieces]) {
  int64_t total = 0;
  for (const Piece& piece : pieces) total += round_up(piece.elements, 16);
  float* memory = thread_scratch(total);
  for (const Piece& piece : pieces) {
    std::memcpy(piece.pointer, &memory, sizeof memory);
    memory += round_up(piece.elements, 16);
  }
}

// Rows of matrices on the left of a product, scaled, in consecutive memory.
inline void copy_rows(const float* matrix, int64_t stride, int64_t rows, int64_t columns, float factor,
                      float* copy, int64_t copy_stride) {
  for (int64_t r = 0; r < rows; r++)
#pragma omp simd
    for (int64_t c = 0; c < columns; c++) copy[r * copy_stride + c] = factor * matrix[r * stride + c];
}

inline void zero_rows(float* matrix, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; r++) std::memset(matrix + r * stride, 0, columns * sizeof *matrix);
}

// Starts loading a row (for writing, if kWrite) into the second-level cache. The next head's rows lie beside
// this one's: too far apart for the processor to foresee, so that half the time would go into waiting for
// them.
template <bool kWrite>
void prefetch(const float* row, int64_t columns) {
  for (int64_t c = 0; c < columns; c += 16) __builtin_prefetch(row + c, kWrite, 2);
}

// Where one head lies in qkv, and its sizes.
struct Head {
  int64_t units, stride, padded_keys, score_stride, size_stride;
  float root;              // 1 / sqrt(size)
  int64_t query, context;  // offsets of the sequence's first row in qkv and in context
  Head(const Attention& shape, const Task& work)
      : units(shape.heads * shape.size),
        stride(3 * units),
        padded_keys(round_up(work.keys, kLanes)),
        // An odd number of vectors: rows 2048 bytes apart would share a few sets of the first-level cache.
        score_stride(round_up(padded_keys, 2 * kLanes) + kLanes),
        size_stride(round_up(shape.size, kLanes)),
        root(1.f / std::sqrt(static_cast<float>(shape.size))),
        query(work.sequence * shape.length * stride + work.head * shape.size),
        context(work.sequence * shape.length * units + work.head * shape.size) {}
};

inline float dot(const float* a, const float* b, int64_t size) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < size; c++) sum += a[c] * b[c];
  return sum;
}

}  // namespace ISA
}  // namespace operators

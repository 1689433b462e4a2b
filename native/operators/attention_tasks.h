// The work of self-attention, one part of one head at a time: sizes, memory, rows that are copied.
#pragma once

#include <omp.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention_kernels.h"
#include "attention_rows.h"
#include "scratch.h"
#include "small_matmul.h"

namespace operators {
namespace ISA {

// Queries taken at a time. Forward, their scores shall stay in the first-level cache; backward, the sums over
// the queries are loaded and stored once for each block.
constexpr int64_t kForwardBlock = 32;
constexpr int64_t kBackwardBlock = 64;

inline int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }

// One part of one head: queries [begin, end) and all keys that exist. A sequence that is too short for all of
// shape.parts has `parts` of them; the others have no queries.
struct Task {
  Sequence sequence;
  int64_t head, parts, begin, end, keys;

  // The row of log_sum for a query, and of all probabilities as one matrix.
  int64_t row(const Attention& shape, int64_t query) const {
    return sequence.first * shape.heads + head * sequence.rows + query;
  }
};

inline Task task(const Attention& shape, int64_t index) {
  const int64_t part = index % shape.parts;
  const int64_t head = index / shape.parts;
  const Sequence& sequence = shape.sequences[head / shape.heads];
  const int64_t rows = sequence.rows;
  const int64_t parts = minimum(shape.parts, (rows + kLargestPart - 1) / kLargestPart);
  return {sequence,
          head % shape.heads,
          parts,
          minimum(rows, rows * part / parts),
          minimum(rows, rows * (part + 1) / parts),
          sequence.tokens};
}

// Neighbouring heads for one thread, because of what it loads ahead for the next one.
inline int64_t chunk_size(int64_t tasks) {
  const int64_t chunks = 8 * omp_get_max_threads();
  return tasks < 2 * chunks ? 1 : tasks / chunks;
}

// Calls body(work, index) for each task that has queries, in parallel. Which thread takes which task does not
// change the result.
template <typename Body>
void for_tasks(const Attention& shape, const Body& body) {
  const int64_t tasks = shape.batch * shape.heads * shape.parts, chunk = chunk_size(tasks);
#pragma omp parallel for schedule(dynamic, chunk)
  for (int64_t t = 0; t < tasks; t++) {
    const Task work = task(shape, t);
    if (work.begin < work.end) body(work, t);
  }
}

// Calls body(work, index) in parallel for the first task of each head that is cut into parts.
template <typename Body>
void for_heads_in_parts(const Attention& shape, const Body& body) {
  if (shape.parts == 1) return;
#pragma omp parallel for schedule(dynamic)
  for (int64_t h = 0; h < shape.batch * shape.heads; h++) body(task(shape, h * shape.parts), h * shape.parts);
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
        query(work.sequence.first * stride + work.head * shape.size),
        context(work.sequence.first * units + work.head * shape.size) {}
};

// A task's forward pass but for the products.
struct Forward {
  const Attention& shape;
  const Task& work;
  const Head head;
  const float* queries;  // those of the sequence's first row; keys lie head.units behind, values twice that
  float *context, *log_sum;

  Forward(const Attention& shape, const Task& work, const float* qkv, float* context, float* log_sum)
      : shape(shape),
        work(work),
        head(shape, work),
        queries(qkv + head.query),
        context(context + head.context),
        log_sum(log_sum + work.row(shape, 0)) {}

  // Whether there are no keys; then the results are written.
  bool without_keys() const {
    if (work.keys != 0) return false;
    zero_rows(context + work.begin * head.units, head.units, work.end - work.begin, shape.size);
    for (int64_t i = work.begin; i < work.end; i++) log_sum[i] = 0.f;
    return true;
  }

  // softmax_row() of query i. `random`: memory for dropout's words.
  void softmax(int64_t i, float* scores, int64_t padded, float* factor, uint32_t* random) const {
    const DropoutRow dropout(shape.dropout, work.row(shape, i), work.keys, random);
    for (int64_t part = 0; part < 3; part++)
      prefetch<false>(queries + i * head.stride + part * head.units + shape.size, shape.size);
    prefetch<true>(context + i * head.units, shape.size);
    log_sum[i] = shape.dropout.threshold == 0 ? softmax_row<false>(scores, work.keys, padded, dropout, factor)
                                              : softmax_row<true>(scores, work.keys, padded, dropout, factor);
  }

  // Writes the contexts of queries begin, begin + 1, ... from rows of numerators times values.
  void write(const float* product, int64_t stride, int64_t begin, int64_t rows, const float* factors) const {
    for (int64_t r = 0; r < rows; r++)
      copy_rows(product + r * stride, 0, 1, shape.size, shape.dropout.scale * factors[r],
                context + (begin + r) * head.units, 0);
  }
};

// The arrays of a backward pass; `sums` only where heads are cut into parts.
struct BackwardArrays {
  const float *context_gradient, *qkv, *context, *log_sum;
  float *sums, *qkv_gradient;
};

// A task's backward pass but for the products and the gradients of keys and values.
struct Backward {
  const Attention& shape;
  const Task& work;
  const Head head;
  const float *queries, *context, *context_gradient, *log_sum;  // as in Forward
  float* query_gradients;

  Backward(const Attention& shape, const Task& work, const BackwardArrays& arrays)
      : shape(shape),
        work(work),
        head(shape, work),
        queries(arrays.qkv + head.query),
        context(arrays.context + head.context),
        context_gradient(arrays.context_gradient + head.context),
        log_sum(arrays.log_sum + work.row(shape, 0)),
        query_gradients(arrays.qkv_gradient + head.query) {}

  // Whether there are no keys; then the queries' gradients are written.
  bool without_keys() const {
    if (work.keys != 0) return false;
    zero_rows(query_gradients + work.begin * head.stride, head.stride, work.end - work.begin, shape.size);
    return true;
  }

  // softmax_row_backward() of query i; `mean` is the product of its context and the context's gradient,
  // `random` as in Forward.
  void softmax(int64_t i, float* scores, float* gradients, float mean, uint32_t* random) const {
    const DropoutRow dropout(shape.dropout, work.row(shape, i), work.keys, random);
    for (int64_t part = 0; part < 3; part++) {
      prefetch<false>(queries + i * head.stride + part * head.units + shape.size, shape.size);
      prefetch<true>(query_gradients + i * head.stride + part * head.units, shape.size);
    }
    prefetch<false>(context + i * head.units + shape.size, shape.size);
    prefetch<false>(context_gradient + i * head.units + shape.size, shape.size);
    const auto row_backward =
        shape.dropout.threshold == 0 ? softmax_row_backward<false> : softmax_row_backward<true>;
    row_backward(scores, gradients, work.keys, log_sum[i], mean, shape.dropout.scale, dropout);
  }

  // Writes the gradients of queries begin, begin + 1, ... from rows of the scores' gradients times keys.
  void write(const float* product, int64_t stride, int64_t begin, int64_t rows) const {
    for (int64_t r = 0; r < rows; r++)
      copy_rows(product + r * stride, 0, 1, shape.size, head.root,
                query_gradients + (begin + r) * head.stride, 0);
  }
};

inline float dot(const float* a, const float* b, int64_t size) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < size; c++) sum += a[c] * b[c];
  return sum;
}

}  // namespace ISA
}  // namespace operators

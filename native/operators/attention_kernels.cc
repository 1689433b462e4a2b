// Self-attention without storing the probabilities (batch, heads, length, length): the backward pass computes
// them again from qkv and the logarithm of the softmax's denominator, as in FlashAttention (Dao et al.,
// arXiv:2205.14135). One head's keys and values fit in the second-level cache, so that a whole row of scores
// is there at once and the softmax needs no running maximum.
#include "attention_kernels.h"

#include <omp.h>

#include <cmath>
#include <cstring>

#include "attention_rows.h"
#include "small_matmul.h"

namespace operators {
namespace ISA {
namespace {

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

Task task(const Attention& shape, int64_t index) {
  const int64_t part = index % shape.parts;
  const int64_t head = index / shape.parts;
  const int64_t sequence = head / shape.heads;
  const int64_t valid = shape.lengths[sequence];
  return {sequence, head % shape.heads, shape.length * part / shape.parts,
          shape.length * (part + 1) / shape.parts, valid < 0 ? 0 : minimum(valid, shape.length)};
}

// Sets each pointer to its piece of this thread's scratch memory.
struct Piece {
  float** pointer;
  int64_t floats;
};

template <int kPieces>
void lay_out(const Piece (&pieces)[kPieces]) {
  int64_t total = 0;
  for (const Piece& piece : pieces) total += round_up(piece.floats, 16);
  float* memory = thread_scratch(total);
  for (const Piece& piece : pieces) {
    *piece.pointer = memory;
    memory += round_up(piece.floats, 16);
  }
}

// Rows of matrices on the left of a product, scaled, in consecutive memory.
void copy_rows(const float* matrix, int64_t stride, int64_t rows, int64_t columns, float factor, float* copy,
               int64_t copy_stride) {
  for (int64_t r = 0; r < rows; r++)
#pragma omp simd
    for (int64_t c = 0; c < columns; c++) copy[r * copy_stride + c] = factor * matrix[r * stride + c];
}

void zero_rows(float* matrix, int64_t stride, int64_t rows, int64_t columns) {
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

void attend(const Attention& shape, const Task& work, const float* qkv, float* context, float* log_sum) {
  const Head head(shape, work);
  const int64_t size = shape.size, keys = work.keys;
  context += head.context;
  log_sum += work.row(shape, 0);
  if (keys == 0) {
    zero_rows(context + work.begin * head.units, head.units, work.end - work.begin, size);
    for (int64_t i = work.begin; i < work.end; i++) log_sum[i] = 0.f;
    return;
  }
  const int64_t block = round_up(kForwardBlock, kTileRows);
  float *query, *key, *value, *scores, *product;
  lay_out({{&query, product_size(block, size)},
           {&key, packed_size(size, keys)},
           {&value, packed_size(keys, size)},
           {&scores, product_size(block, head.score_stride)},
           {&product, product_size(block, head.size_stride)}});

  const float* queries = qkv + head.query;
  pack_transposed(queries + head.units, head.stride, size, keys, key);
  pack(queries + 2 * head.units, head.stride, keys, size, value);
  for (int64_t begin = work.begin; begin < work.end; begin += block) {
    const int64_t rows = minimum(block, work.end - begin);
    copy_rows(queries + begin * head.stride, head.stride, rows, size, head.root, query, size);
    multiply<false, false>(query, size, rows, key, size, keys, scores, head.score_stride);
    float factors[kForwardBlock + kTileRows];
    for (int64_t r = 0; r < rows; r++) {
      float* row = scores + r * head.score_stride;
      const RowDropout dropout(shape.dropout, work.row(shape, begin + r) * shape.length);
      for (int64_t part = 0; part < 3; part++)
        prefetch<false>(queries + (begin + r) * head.stride + part * head.units + size, size);
      prefetch<true>(context + (begin + r) * head.units, size);
      log_sum[begin + r] = shape.dropout.threshold == 0
                               ? softmax_row<false>(row, keys, head.padded_keys, dropout, factors + r)
                               : softmax_row<true>(row, keys, head.padded_keys, dropout, factors + r);
    }
    multiply<false, false>(scores, head.score_stride, rows, value, keys, size, product, head.size_stride);
    for (int64_t r = 0; r < rows; r++)
      copy_rows(product + r * head.size_stride, 0, 1, size, shape.dropout.scale * factors[r],
                context + (begin + r) * head.units, 0);
  }
}

float dot(const float* a, const float* b, int64_t size) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < size; c++) sum += a[c] * b[c];
  return sum;
}

// Floats for the gradients of one head's keys and values, (2, length, size) in whole tiles.
int64_t sums_size(const Attention& shape) {
  return 2 * product_size(shape.length, round_up(shape.size, kLanes));
}

// Writes the gradients of one head's keys and values: the sum over its parts, each sums_size() floats.
void add_parts(const Attention& shape, const Task& work, const float* sums, float* qkv_gradient) {
  const Head head(shape, work);
  const int64_t all = sums_size(shape);
  for (int64_t which = 0; which < 2; which++) {
    float* gradient = qkv_gradient + head.query + (1 + which) * head.units;
    const float* first = sums + which * (all / 2);
    for (int64_t j = 0; j < work.keys; j++) {
      float* row = gradient + j * head.stride;
      const float* sum = first + j * head.size_stride;
      copy_rows(sum, 0, 1, shape.size, 1.f, row, 0);
      for (int64_t part = 1; part < shape.parts; part++)
#pragma omp simd
        for (int64_t c = 0; c < shape.size; c++) row[c] += sum[part * all + c];
    }
    zero_rows(gradient + work.keys * head.stride, head.stride, shape.length - work.keys, shape.size);
  }
}

// Writes the gradient of the part's queries into qkv_gradient, and what its queries add to the gradients of
// keys and values into `sums`, sums_size() floats.
void attend_backward(const Attention& shape, const Task& work, const float* context_gradient,
                     const float* qkv, const float* context, const float* log_sum, float* sums,
                     float* qkv_gradient) {
  const Head head(shape, work);
  const int64_t size = shape.size, keys = work.keys;
  const float* queries = qkv + head.query;
  float* query_gradients = qkv_gradient + head.query;
  if (keys == 0) {
    zero_rows(query_gradients + work.begin * head.stride, head.stride, work.end - work.begin, size);
    if (shape.parts == 1) add_parts(shape, work, nullptr, qkv_gradient);
    return;
  }
  context += head.context;
  context_gradient += head.context;
  log_sum += work.row(shape, 0);
  const int64_t block = round_up(kBackwardBlock, kTileRows);
  float *query, *query_packed, *key, *key_transposed, *value_transposed, *gradient, *gradient_packed, *scores,
      *score_gradients, *product, *own_sums;
  lay_out({{&query, product_size(block, size)},
           {&query_packed, packed_size(block, size)},
           {&key, packed_size(keys, size)},
           {&key_transposed, packed_size(size, keys)},
           {&value_transposed, packed_size(size, keys)},
           {&gradient, product_size(block, size)},
           {&gradient_packed, packed_size(block, size)},
           {&scores, product_size(block, head.score_stride)},
           {&score_gradients, product_size(block, head.score_stride)},
           {&product, product_size(block, head.size_stride)},
           {&own_sums, shape.parts == 1 ? sums_size(shape) : 0}});
  if (shape.parts == 1) sums = own_sums;
  float* key_sum = sums;
  float* value_sum = sums + sums_size(shape) / 2;

  pack(queries + head.units, head.stride, keys, size, key);
  pack_transposed(queries + head.units, head.stride, size, keys, key_transposed);
  pack_transposed(queries + 2 * head.units, head.stride, size, keys, value_transposed);
  for (int64_t begin = work.begin; begin < work.end; begin += block) {
    const int64_t rows = minimum(block, work.end - begin);
    copy_rows(queries + begin * head.stride, head.stride, rows, size, head.root, query, size);
    pack(query, size, rows, size, query_packed);
    copy_rows(context_gradient + begin * head.units, head.units, rows, size, 1.f, gradient, size);
    pack(gradient, size, rows, size, gradient_packed);
    multiply<false, false>(query, size, rows, key_transposed, size, keys, scores, head.score_stride);
    multiply<false, false>(gradient, size, rows, value_transposed, size, keys, score_gradients,
                           head.score_stride);
    for (int64_t r = 0; r < rows; r++) {
      const int64_t i = begin + r;
      const RowDropout dropout(shape.dropout, work.row(shape, i) * shape.length);
      for (int64_t part = 0; part < 3; part++) {
        prefetch<false>(queries + i * head.stride + part * head.units + size, size);
        prefetch<true>(query_gradients + i * head.stride + part * head.units, size);
      }
      prefetch<false>(context + i * head.units + size, size);
      prefetch<false>(context_gradient + i * head.units + size, size);
      const float mean = dot(gradient + r * size, context + i * head.units, size);
      (shape.dropout.threshold == 0 ? softmax_row_backward<false>
                                    : softmax_row_backward<true>)(scores + r * head.score_stride,
                                                                  score_gradients + r * head.score_stride,
                                                                  keys, log_sum[i], mean, shape.dropout.scale,
                                                                  dropout);
    }
    multiply<false, false>(score_gradients, head.score_stride, rows, key, keys, size, product,
                           head.size_stride);
    for (int64_t r = 0; r < rows; r++)
      copy_rows(product + r * head.size_stride, 0, 1, size, head.root,
                query_gradients + (begin + r) * head.stride, 0);
    const auto add = begin == work.begin ? multiply<true, false> : multiply<true, true>;
    add(scores, head.score_stride, keys, gradient_packed, rows, size, value_sum, head.size_stride);
    add(score_gradients, head.score_stride, keys, query_packed, rows, size, key_sum, head.size_stride);
  }
  if (shape.parts == 1) add_parts(shape, work, sums, qkv_gradient);
}

// Neighbouring heads for one thread, because of prefetch().
int64_t chunk_size(int64_t tasks) {
  const int64_t chunks = 8 * omp_get_max_threads();
  return tasks < 2 * chunks ? 1 : tasks / chunks;
}

}  // namespace

int64_t attention_partial_size(const Attention& shape) {
  return shape.parts == 1 ? 0 : shape.batch * shape.heads * shape.parts * sums_size(shape);
}

void attention(const Attention& shape, const float* qkv, float* context, float* log_sum) {
  const int64_t tasks = shape.batch * shape.heads * shape.parts, chunk = chunk_size(tasks);
  // Which thread takes which task does not change the result.
#pragma omp parallel for schedule(dynamic, chunk)
  for (int64_t t = 0; t < tasks; t++) attend(shape, task(shape, t), qkv, context, log_sum);
}

void attention_backward(const Attention& shape, const float* context_gradient, const float* qkv,
                        const float* context, const float* log_sum, float* partial, float* qkv_gradient) {
  const int64_t heads = shape.batch * shape.heads, tasks = heads * shape.parts, size = sums_size(shape),
                chunk = chunk_size(tasks);
#pragma omp parallel for schedule(dynamic, chunk)
  for (int64_t t = 0; t < tasks; t++)
    attend_backward(shape, task(shape, t), context_gradient, qkv, context, log_sum,
                    shape.parts == 1 ? nullptr : partial + t * size, qkv_gradient);
  if (shape.parts == 1) return;
#pragma omp parallel for schedule(dynamic)
  for (int64_t h = 0; h < heads; h++)
    add_parts(shape, task(shape, h * shape.parts), partial + h * shape.parts * size, qkv_gradient);
}

}  // namespace ISA
}  // namespace operators

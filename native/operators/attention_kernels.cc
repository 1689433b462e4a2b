// Self-attention without storing the probabilities (batch, heads, length, length): the backward pass computes
// them again from qkv and the logarithm of the softmax's denominator, as in FlashAttention (Dao et al.,
// arXiv:2205.14135). One head's keys and values fit in the second-level cache, so that a whole row of scores
// is there at once and the softmax needs no running maximum.
#include "attention_kernels.h"

#include <omp.h>

#include <cmath>
#include <cstring>

#include "attention_rows.h"
#include "attention_tasks.h"
#include "bfloat16.h"
#ifdef __AMX_BF16__
#include "attention_tiles.h"
#endif

namespace operators {
namespace ISA {
namespace {

// Rounds a row in place to bfloat16 where the factors of products are to be (kLow).
template <bool kLow>
void round_row(float* row, int64_t size) {
  if (!kLow) return;
#pragma omp simd
  for (int64_t c = 0; c < size; c++) row[c] = round_in_float(row[c]);
}

// Queries, or the context's gradient, as left factors in consecutive memory.
template <bool kLow>
void copy_factor(const float* matrix, int64_t stride, int64_t rows, int64_t columns, float factor,
                 float* copy) {
  copy_rows(matrix, stride, rows, columns, factor, copy, columns);
  round_row<kLow>(copy, rows * columns);
}

// A matrix and the distance of its rows.
struct Rows {
  const float* first;
  int64_t stride;
};

// Keys or values, rounded into `copy` if they are to be.
template <bool kLow>
Rows right_factor(const float* matrix, int64_t stride, int64_t rows, int64_t columns, float* copy) {
  if (!kLow) return {matrix, stride};
  copy_factor<kLow>(matrix, stride, rows, columns, 1.f, copy);
  return {copy, columns};
}

template <bool kLow>
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
  float *query, *key, *value, *scores, *product, *rounded;
  lay_out({{&query, product_size(block, size)},
           {&key, packed_size(size, keys)},
           {&value, packed_size(keys, size)},
           {&scores, product_size(block, head.score_stride)},
           {&product, product_size(block, head.size_stride)},
           {&rounded, kLow ? keys * size : 0}});

  const float* queries = qkv + head.query;
  Rows factor = right_factor<kLow>(queries + head.units, head.stride, keys, size, rounded);
  pack_transposed(factor.first, factor.stride, size, keys, key);
  factor = right_factor<kLow>(queries + 2 * head.units, head.stride, keys, size, rounded);
  pack(factor.first, factor.stride, keys, size, value);
  for (int64_t begin = work.begin; begin < work.end; begin += block) {
    const int64_t rows = minimum(block, work.end - begin);
    copy_factor<kLow>(queries + begin * head.stride, head.stride, rows, size, head.root, query);
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
      round_row<kLow>(row, head.padded_keys);
    }
    multiply<false, false>(scores, head.score_stride, rows, value, keys, size, product, head.size_stride);
    for (int64_t r = 0; r < rows; r++)
      copy_rows(product + r * head.size_stride, 0, 1, size, shape.dropout.scale * factors[r],
                context + (begin + r) * head.units, 0);
  }
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
template <bool kLow>
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
      *score_gradients, *product, *rounded, *own_sums;
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
           {&rounded, kLow ? keys * size : 0},
           {&own_sums, shape.parts == 1 ? sums_size(shape) : 0}});
  if (shape.parts == 1) sums = own_sums;
  float* key_sum = sums;
  float* value_sum = sums + sums_size(shape) / 2;

  Rows factor = right_factor<kLow>(queries + head.units, head.stride, keys, size, rounded);
  pack(factor.first, factor.stride, keys, size, key);
  pack_transposed(factor.first, factor.stride, size, keys, key_transposed);
  factor = right_factor<kLow>(queries + 2 * head.units, head.stride, keys, size, rounded);
  pack_transposed(factor.first, factor.stride, size, keys, value_transposed);
  for (int64_t begin = work.begin; begin < work.end; begin += block) {
    const int64_t rows = minimum(block, work.end - begin);
    copy_factor<kLow>(queries + begin * head.stride, head.stride, rows, size, head.root, query);
    pack(query, size, rows, size, query_packed);
    copy_factor<kLow>(context_gradient + begin * head.units, head.units, rows, size, 1.f, gradient);
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
      round_row<kLow>(scores + r * head.score_stride, keys);
      round_row<kLow>(score_gradients + r * head.score_stride, keys);
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

// Functions with one kind of products.
struct Kind {
  decltype(&attend<false>) forward;
  decltype(&attend_backward<false>) backward;
  decltype(&add_parts) add;
  decltype(&sums_size) size;
};

Kind kind(const Attention& shape) {
  if (!shape.low) return {attend<false>, attend_backward<false>, add_parts, sums_size};
#ifdef __AMX_BF16__
  return {attend_on_tiles, attend_backward_on_tiles, add_parts_of_tiles, sums_size_of_tiles};
#else
  return {attend<true>, attend_backward<true>, add_parts, sums_size};
#endif
}

}  // namespace

int64_t attention_partial_size(const Attention& shape) {
  return shape.parts == 1 ? 0 : shape.batch * shape.heads * shape.parts * kind(shape).size(shape);
}

void attention(const Attention& shape, const float* qkv, float* context, float* log_sum) {
  const int64_t tasks = shape.batch * shape.heads * shape.parts, chunk = chunk_size(tasks);
  const auto attend = kind(shape).forward;
  // Which thread takes which task does not change the result.
#pragma omp parallel for schedule(dynamic, chunk)
  for (int64_t t = 0; t < tasks; t++) attend(shape, task(shape, t), qkv, context, log_sum);
}

void attention_backward(const Attention& shape, const float* context_gradient, const float* qkv,
                        const float* context, const float* log_sum, float* partial, float* qkv_gradient) {
  const Kind of = kind(shape);
  const int64_t heads = shape.batch * shape.heads, tasks = heads * shape.parts, size = of.size(shape),
                chunk = chunk_size(tasks);
#pragma omp parallel for schedule(dynamic, chunk)
  for (int64_t t = 0; t < tasks; t++)
    of.backward(shape, task(shape, t), context_gradient, qkv, context, log_sum,
                shape.parts == 1 ? nullptr : partial + t * size, qkv_gradient);
  if (shape.parts == 1) return;
#pragma omp parallel for schedule(dynamic)
  for (int64_t h = 0; h < heads; h++)
    of.add(shape, task(shape, h * shape.parts), partial + h * shape.parts * size, qkv_gradient);
}

}  // namespace ISA
}  // namespace operators

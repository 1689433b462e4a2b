// Self-attention without storing the probabilities (batch, heads, length, length): the backward pass computes
// them again from qkv and the logarithm of the softmax's denominator, as in FlashAttention (Dao et al.,
// arXiv:2205.14135). One head's keys and values fit in the second-level cache, so that a whole row of scores
// is there at once and the softmax needs no running maximum.
#include "attention_kernels.h"

#include <cmath>
#include <cstring>

#include "attention_rows.h"
#include "attention_tasks.h"
#include "bfloat16.h"
#ifdef __AVX512F__
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
  const Forward pass(shape, work, qkv, context, log_sum);
  if (pass.without_keys()) return;
  const Head& head = pass.head;
  const int64_t size = shape.size, keys = work.keys;
  const int64_t block = round_up(kForwardBlock, kTileRows);
  float *query, *key, *value, *scores, *product, *rounded;
  uint32_t* random;
  lay_out({{&query, product_size(block, size)},
           {&key, packed_size(size, keys)},
           {&value, packed_size(keys, size)},
           {&scores, product_size(block, head.score_stride)},
           {&product, product_size(block, head.size_stride)},
           {&rounded, kLow ? keys * size : 0},
           {&random, DropoutRow::words(keys)}});

  const float* queries = pass.queries;
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
      pass.softmax(begin + r, row, head.padded_keys, factors + r, random);
      round_row<kLow>(row, head.padded_keys);
    }
    multiply<false, false>(scores, head.score_stride, rows, value, keys, size, product, head.size_stride);
    pass.write(product, head.size_stride, begin, rows, factors);
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
      for (int64_t part = 1; part < work.parts; part++)
#pragma omp simd
        for (int64_t c = 0; c < shape.size; c++) row[c] += sum[part * all + c];
    }
    zero_rows(gradient + work.keys * head.stride, head.stride, work.sequence.rows - work.keys, shape.size);
  }
}

// Writes the gradient of the part's queries, and what its queries add to the gradients of keys and values
// into `arrays.sums`, sums_size() floats.
template <bool kLow>
void attend_backward(const Attention& shape, const Task& work, const BackwardArrays& arrays) {
  const Backward pass(shape, work, arrays);
  if (pass.without_keys()) {
    if (shape.parts == 1) add_parts(shape, work, nullptr, arrays.qkv_gradient);
    return;
  }
  const Head& head = pass.head;
  const int64_t size = shape.size, keys = work.keys;
  const int64_t block = round_up(kBackwardBlock, kTileRows);
  float *query, *query_packed, *key, *key_transposed, *value_transposed, *gradient, *gradient_packed, *scores,
      *score_gradients, *product, *rounded, *own_sums;
  uint32_t* random;
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
           {&random, DropoutRow::words(keys)},
           {&own_sums, shape.parts == 1 ? sums_size(shape) : 0}});
  float* sums = shape.parts == 1 ? own_sums : arrays.sums;
  float* key_sum = sums;
  float* value_sum = sums + sums_size(shape) / 2;

  const float* queries = pass.queries;
  Rows factor = right_factor<kLow>(queries + head.units, head.stride, keys, size, rounded);
  pack(factor.first, factor.stride, keys, size, key);
  pack_transposed(factor.first, factor.stride, size, keys, key_transposed);
  factor = right_factor<kLow>(queries + 2 * head.units, head.stride, keys, size, rounded);
  pack_transposed(factor.first, factor.stride, size, keys, value_transposed);
  for (int64_t begin = work.begin; begin < work.end; begin += block) {
    const int64_t rows = minimum(block, work.end - begin);
    copy_factor<kLow>(queries + begin * head.stride, head.stride, rows, size, head.root, query);
    pack(query, size, rows, size, query_packed);
    copy_factor<kLow>(pass.context_gradient + begin * head.units, head.units, rows, size, 1.f, gradient);
    pack(gradient, size, rows, size, gradient_packed);
    multiply<false, false>(query, size, rows, key_transposed, size, keys, scores, head.score_stride);
    multiply<false, false>(gradient, size, rows, value_transposed, size, keys, score_gradients,
                           head.score_stride);
    for (int64_t r = 0; r < rows; r++) {
      float *row = scores + r * head.score_stride, *row_gradients = score_gradients + r * head.score_stride;
      const float mean = dot(gradient + r * size, pass.context + (begin + r) * head.units, size);
      pass.softmax(begin + r, row, row_gradients, mean, random);
      round_row<kLow>(row, keys);
      round_row<kLow>(row_gradients, keys);
    }
    multiply<false, false>(score_gradients, head.score_stride, rows, key, keys, size, product,
                           head.size_stride);
    pass.write(product, head.size_stride, begin, rows);
    const auto add = begin == work.begin ? multiply<true, false> : multiply<true, true>;
    add(scores, head.score_stride, keys, gradient_packed, rows, size, value_sum, head.size_stride);
    add(score_gradients, head.score_stride, keys, query_packed, rows, size, key_sum, head.size_stride);
  }
  if (shape.parts == 1) add_parts(shape, work, sums, arrays.qkv_gradient);
}

#ifdef __AVX512F__

// The columns of a task's head in arrays of float32. Those of inputs are only packed.
struct OnTiles {
  const Attention& shape;
  const Task& work;
  const Head head;

  OnTiles(const Attention& shape, const Task& work) : shape(shape), work(work), head(shape, work) {}

  FloatColumns context(const float* matrix) const {
    return {const_cast<float*>(matrix) + head.context, head.units, shape.size};
  }
  HeadColumns<FloatColumns> qkv(const float* matrix) const {
    float* const query = const_cast<float*>(matrix) + head.query;
    const auto part = [&](int64_t which, float factor) {
      return FloatColumns(query + which * head.units, head.stride, shape.size, factor);
    };
    return {part(0, head.root), part(1, 1.f), part(2, 1.f)};
  }
};

void attend_in_tiles(const Attention& shape, const Task& work, const float* qkv, float* context,
                     float* log_sum) {
  const OnTiles on(shape, work);
  attend_on_tiles(shape, work, on.qkv(qkv), on.context(context), log_sum);
}

void attend_backward_in_tiles(const Attention& shape, const Task& work, const BackwardArrays& arrays) {
  const OnTiles on(shape, work);
  attend_backward_on_tiles<FloatColumns>(shape, work,
                                         {on.qkv(arrays.qkv), on.context(arrays.context),
                                          on.context(arrays.context_gradient), on.qkv(arrays.qkv_gradient)},
                                         arrays.log_sum, arrays.sums);
}

void add_parts_in_tiles(const Attention& shape, const Task& work, const float* sums, float* qkv_gradient) {
  add_parts_of_tiles(shape, work, sums, OnTiles(shape, work).qkv(qkv_gradient));
}

#endif

// One of the ways to compute it.
struct Way {
  void (*attend)(const Attention& shape, const Task& work, const float* qkv, float* context, float* log_sum);
  void (*attend_backward)(const Attention& shape, const Task& work, const BackwardArrays& arrays);
  void (*add_parts)(const Attention& shape, const Task& work, const float* sums, float* qkv_gradient);
  int64_t (*sums_size)(const Attention& shape);
};

Way way(const Attention& shape) {
#ifdef __AVX512F__
  if (shape.tiled) return {attend_in_tiles, attend_backward_in_tiles, add_parts_in_tiles, sums_size_of_tiles};
#endif
  if (shape.low) return {attend<true>, attend_backward<true>, add_parts, sums_size};
  return {attend<false>, attend_backward<false>, add_parts, sums_size};
}

}  // namespace

int64_t attention_partial_size(const Attention& shape) {
  if (shape.parts == 1) return 0;
  return shape.batch * shape.heads * shape.parts * way(shape).sums_size(shape);
}

void attention(const Attention& shape, const float* qkv, float* context, float* log_sum) {
  const Way by = way(shape);
  for_tasks(shape, [&](const Task& work, int64_t) { by.attend(shape, work, qkv, context, log_sum); });
}

void attention_backward(const Attention& shape, const float* context_gradient, const float* qkv,
                        const float* context, const float* log_sum, float* partial, float* qkv_gradient) {
  const Way by = way(shape);
  const int64_t size = shape.parts == 1 ? 0 : by.sums_size(shape);
  for_tasks(shape, [&](const Task& work, int64_t t) {
    by.attend_backward(shape, work,
                       {context_gradient, qkv, context, log_sum, partial + t * size, qkv_gradient});
  });
  for_heads_in_parts(shape, [&](const Task& work, int64_t t) {
    by.add_parts(shape, work, partial + t * size, qkv_gradient);
  });
}

}  // namespace ISA
}  // namespace operators

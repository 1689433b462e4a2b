// Self-attention with products on AMX's tiles. The sums for keys' and values' gradients are transposed: then
// probabilities and the gradients of scores, which are many, are right factors and are not transposed.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention_rows.h"
#include "attention_tasks.h"
#include "bfloat16.h"
#include "tile_matmul.h"

namespace operators {
namespace ISA {

constexpr int64_t kTilesForward = 32, kTilesBackward = 64;  // queries taken at a time

// From row to row of the products with one head's keys in the columns, an odd number of vectors.
inline int64_t stride_of_keys(int64_t keys) { return round_up(keys, 2 * kTile) + kTile; }

inline void attend_on_tiles(const Attention& shape, const Task& work, const float* qkv, float* context,
                            float* log_sum) {
  const Forward pass(shape, work, qkv, context, log_sum);
  if (pass.without_keys()) return;
  const Head& head = pass.head;
  const int64_t size = shape.size, keys = work.keys;
  constexpr int64_t kBlock = kTilesForward;
  const int64_t stride = stride_of_keys(keys), size_stride = round_up(size, kTile);
  uint32_t *query, *key, *key_transposed, *value, *probability, *random;
  float *scores, *product;
  lay_out({{&query, tiles_size(kBlock, size)},
           {&key, tiles_size(keys, size)},
           {&key_transposed, tiles_size(keys, size)},
           {&value, tiles_size(size, keys)},
           {&probability, tiles_size(kBlock, keys)},
           {&random, DropoutRow::words(keys)},
           {&scores, kBlock * stride},
           {&product, kBlock * size_stride}});

  const TileShapes shapes;
  const float* queries = pass.queries;
  pack_rows(queries + head.units, head.stride, keys, size, 1.f, key);
  transpose_tiles(key, tiles(keys) * steps(size), key_transposed);
  pack_pairs(queries + 2 * head.units, head.stride, keys, size, 1.f, value);
  for (int64_t begin = work.begin; begin < work.end; begin += kBlock) {
    const int64_t rows = minimum(kBlock, work.end - begin);
    pack_rows(queries + begin * head.stride, head.stride, rows, size, head.root, query);
    multiply_packed<false>(query, rows, key_transposed, keys, steps(size), scores, stride);
    float factors[kBlock];
    for (int64_t r = 0; r < rows; r++)
      pass.softmax(begin + r, scores + r * stride, round_up(keys, kTile), factors + r, random);
    pack_rows(scores, stride, rows, keys, 1.f, probability);
    multiply_packed<false>(probability, rows, value, size, steps(keys), product, size_stride);
    pass.write(product, size_stride, begin, rows, factors);
  }
}

// Floats for the transposed gradients of one head's keys and values, (2, size, length) in whole tiles.
inline int64_t sums_size_of_tiles(const Attention& shape) {
  return 2 * round_up(shape.size, kTile) * stride_of_keys(shape.length);
}

// Writes the gradients of one head's keys and values: the sum over its parts, each sums_size_of_tiles()
// floats.
inline void add_parts_of_tiles(const Attention& shape, const Task& work, const float* sums,
                               float* qkv_gradient) {
  const Head head(shape, work);
  const int64_t all = sums_size_of_tiles(shape), stride = stride_of_keys(shape.length);
  alignas(64) float sum[kTileWords], rows[kTileWords];
  for (int64_t which = 0; which < 2; which++) {
    float* gradient = qkv_gradient + head.query + (1 + which) * head.units;
    for (int64_t j = 0; j < work.keys; j += kTile)
      for (int64_t c = 0; c < shape.size; c += kTile) {
        const float* first = sums + which * (all / 2) + c * stride + j;
        copy_rows(first, stride, kTile, kTile, 1.f, sum, kTile);
        for (int64_t part = 1; part < work.parts; part++)
          for (int64_t r = 0; r < kTile; r++)
#pragma omp simd
            for (int64_t k = 0; k < kTile; k++) sum[r * kTile + k] += first[part * all + r * stride + k];
        transpose_block(sum, kTile, rows, kTile);
        copy_rows(rows, kTile, minimum(kTile, work.keys - j), minimum(kTile, shape.size - c), 1.f,
                  gradient + j * head.stride + c, head.stride);
      }
    zero_rows(gradient + work.keys * head.stride, head.stride, work.sequence.rows - work.keys, shape.size);
  }
}

// The dot product of a, rounded to bfloat16, and b.
inline float dot_rounded(const float* a, const float* b, int64_t size) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < size; c++) sum += round_in_float(a[c]) * b[c];
  return sum;
}

// As attend_backward(), with sums_size_of_tiles() floats of sums.
inline void attend_backward_on_tiles(const Attention& shape, const Task& work, const BackwardArrays& arrays) {
  const Backward pass(shape, work, arrays);
  if (pass.without_keys()) {
    if (shape.parts == 1) add_parts_of_tiles(shape, work, nullptr, arrays.qkv_gradient);
    return;
  }
  const Head& head = pass.head;
  const int64_t size = shape.size, keys = work.keys;
  constexpr int64_t kBlock = kTilesBackward;
  const int64_t stride = stride_of_keys(keys), size_stride = round_up(size, kTile),
                sum_stride = stride_of_keys(shape.length);
  uint32_t *query, *query_transposed, *key, *key_transposed, *value_transposed, *gradient,
      *gradient_transposed, *probability, *score_gradient, *score_gradient_pairs, *pairs, *random;
  float *scores, *score_gradients, *product, *own_sums;
  const int64_t most =
      tiles_size(keys, size) > tiles_size(size, kBlock) ? tiles_size(keys, size) : tiles_size(size, kBlock);
  lay_out({{&query, tiles_size(kBlock, size)},
           {&query_transposed, tiles_size(size, kBlock)},
           {&key, tiles_size(size, keys)},
           {&key_transposed, tiles_size(keys, size)},
           {&value_transposed, tiles_size(keys, size)},
           {&gradient, tiles_size(kBlock, size)},
           {&gradient_transposed, tiles_size(size, kBlock)},
           {&probability, tiles_size(keys, kBlock)},
           {&score_gradient, tiles_size(kBlock, keys)},
           {&score_gradient_pairs, tiles_size(keys, kBlock)},
           {&pairs, most},
           {&random, DropoutRow::words(keys)},
           {&scores, kBlock * stride},
           {&score_gradients, kBlock * stride},
           {&product, kBlock * size_stride},
           {&own_sums, shape.parts == 1 ? sums_size_of_tiles(shape) : 0}});
  float* sums = shape.parts == 1 ? own_sums : arrays.sums;
  float* key_sum = sums;
  float* value_sum = sums + sums_size_of_tiles(shape) / 2;

  const TileShapes shapes;
  const float* queries = pass.queries;
  const int64_t of_keys = tiles(keys) * steps(size);
  pack_rows(queries + head.units, head.stride, keys, size, 1.f, pairs);
  transpose_tiles(pairs, of_keys, key_transposed);
  pack_rows(queries + 2 * head.units, head.stride, keys, size, 1.f, pairs);
  transpose_tiles(pairs, of_keys, value_transposed);
  pack_pairs(queries + head.units, head.stride, keys, size, 1.f, key);
  for (int64_t begin = work.begin; begin < work.end; begin += kBlock) {
    const int64_t rows = minimum(kBlock, work.end - begin), deep = steps(rows);
    const float* own_queries = queries + begin * head.stride;
    const float* own_gradients = pass.context_gradient + begin * head.units;
    pack_rows(own_queries, head.stride, rows, size, head.root, query);
    pack_rows(own_gradients, head.units, rows, size, 1.f, gradient);
    multiply_packed<false>(query, rows, key_transposed, keys, steps(size), scores, stride);
    multiply_packed<false>(gradient, rows, value_transposed, keys, steps(size), score_gradients, stride);
    for (int64_t r = 0; r < rows; r++) {
      const float mean =
          dot_rounded(own_gradients + r * head.units, pass.context + (begin + r) * head.units, size);
      pass.softmax(begin + r, scores + r * stride, score_gradients + r * stride, mean, random);
    }
    pack_rows(score_gradients, stride, rows, keys, 1.f, score_gradient);
    multiply_packed<false>(score_gradient, rows, key, size, steps(keys), product, size_stride);
    pass.write(product, size_stride, begin, rows);
    pack_pairs(own_queries, head.stride, rows, size, head.root, pairs);
    transpose_tiles(pairs, tiles(size) * deep, query_transposed);
    pack_pairs(own_gradients, head.units, rows, size, 1.f, pairs);
    transpose_tiles(pairs, tiles(size) * deep, gradient_transposed);
    pack_pairs(scores, stride, rows, keys, 1.f, probability);
    pack_pairs(score_gradients, stride, rows, keys, 1.f, score_gradient_pairs);
    const auto add = begin == work.begin ? multiply_packed<false> : multiply_packed<true>;
    add(gradient_transposed, size, probability, keys, deep, value_sum, sum_stride);
    add(query_transposed, size, score_gradient_pairs, keys, deep, key_sum, sum_stride);
  }
  if (shape.parts == 1) add_parts_of_tiles(shape, work, sums, arrays.qkv_gradient);
}

}  // namespace ISA
}  // namespace operators

// Self-attention with products on tiles. The sums for keys' and values' gradients are transposed: then
// probabilities and the gradients of scores, which are many, are right factors and are not transposed.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention_tasks.h"
#include "attention_tile_rows.h"
#include "tile_matmul.h"

namespace operators {
namespace ISA {

// Queries taken at a time, and keys backward: what is computed of these is in the first-level cache.
// Multiples of kDeep.
constexpr int64_t kTilesForward = 32, kTilesBackward = 64, kKeysBackward = 64;

// From row to row of the products with one head's keys in the columns, an odd number of vectors: rows 2048
// bytes apart would share a few sets of the first-level cache.
inline int64_t stride_of_keys(int64_t keys) { return round_up(keys, 2 * kTile) + kTile; }

// Has what a task has written past the caches seen by all threads. A task's lines would each be read before
// they are written otherwise, and the next head's are far from them.
struct Fence {
  ~Fence() { _mm_sfence(); }
};

// A head's columns of a float32 matrix, from the first row of a sequence on.
class FloatColumns {
 public:
  // factor: what numbers are multiplied with before they are rounded.
  FloatColumns(float* first, int64_t stride, int64_t size, float factor = 1.f)
      : first_(first), stride_(stride), size_(size), factor_(factor) {}

  // Packs rows as a left factor, and starts loading the next head's beside them.
  void pack(int64_t row, int64_t rows, uint32_t* packed) const {
    const float* from = first_ + row * stride_;
    for (int64_t r = 0; r < rows; r++) prefetch<false>(from + r * stride_ + size_, size_);
    pack_rows(from, stride_, rows, size_, factor_, packed);
  }

  // The product of a row and one of a packed left factor.
  float dot(int64_t row, const uint32_t* packed) const {
    const float* own = first_ + row * stride_;
    __m512 sum = _mm512_setzero_ps();
    for (int64_t column = 0; column < size_; column += kDeep, packed += kTileWords)
      for (int64_t half = 0; half < 2; half++) {
        const __m256i numbers = _mm256_load_si256(reinterpret_cast<const __m256i*>(packed) + half);
        const __m512 other = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16);
        const int64_t first = column + half * kTile;
        sum = _mm512_fmadd_ps(some(own + first, size_ - first), other, sum);
      }
    return _mm512_reduce_add_ps(sum);
  }

  // Writes factor * values past the caches.
  void put(int64_t row, const float* values, float factor) const {
    float* const to = first_ + row * stride_;
    const __m512 scale = _mm512_set1_ps(factor);
    for (int64_t column = 0; column < size_; column += kTile) {
      const __m512 numbers = _mm512_mul_ps(_mm512_loadu_ps(values + column), scale);
      if (size_ - column >= kTile && reinterpret_cast<uintptr_t>(to + column) % 64 == 0)
        _mm512_stream_ps(to + column, numbers);
      else
        _mm512_mask_storeu_ps(to + column, size_ - column >= kTile ? 0xffff : (1u << (size_ - column)) - 1,
                              numbers);
    }
  }

 private:
  float* const first_;
  const int64_t stride_, size_;
  const float factor_;
};

// A head's columns of a matrix that is packed as a left factor; heads have a multiple of kDeep columns.
class PackedColumns {
 public:
  // matrix: of so many columns; first_row: the sequence's.
  PackedColumns(uint32_t* matrix, int64_t columns, int64_t first_row, int64_t first_column, int64_t size)
      : first_(matrix + first_column / kDeep * kTileWords),
        next_(steps(columns) * kTileWords),
        row_(first_row),
        deep_(steps(size)) {}

  void pack(int64_t row, int64_t rows, uint32_t* packed) const {
    const int64_t ahead = deep_ * kTileWords;
    for (int64_t r = 0; r < round_up(rows, kTile); r++) {
      const uint32_t* from = line(row + r);
      uint32_t* to = packed + (r / kTile * deep_ * kTile + r % kTile) * kTile;
      for (int64_t step = 0; step < deep_; step++, from += kTileWords, to += kTileWords) {
        if (r < rows) __builtin_prefetch(from + ahead, 0, 2);
        _mm512_store_si512(to, r < rows ? _mm512_load_si512(from) : _mm512_setzero_si512());
      }
    }
  }

  float dot(int64_t row, const uint32_t* packed) const {
    const uint32_t* own = line(row);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t step = 0; step < deep_; step++, own += kTileWords, packed += kTileWords)
      sum = add_products(sum, _mm512_load_si512(own), _mm512_load_si512(packed));
    return _mm512_reduce_add_ps(sum);
  }

  void put(int64_t row, const float* values, float factor) const {
    const __m512 scale = _mm512_set1_ps(factor);
    uint32_t* to = line(row);
    for (int64_t step = 0; step < deep_; step++, to += kTileWords, values += kDeep)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to),
                          words_of(_mm512_mul_ps(_mm512_loadu_ps(values), scale),
                                   _mm512_mul_ps(_mm512_loadu_ps(values + kTile), scale)));
  }

 private:
  uint32_t* line(int64_t row) const {
    const int64_t at = row_ + row;
    return first_ + at / kTile * next_ + at % kTile * kTile;
  }

  uint32_t* const first_;
  const int64_t next_, row_, deep_;
};

// Queries, once packed, are divided by the root of their size.
template <typename Columns>
struct HeadColumns {
  Columns query, key, value;
};

// Writes the part's context, and log_sum, of the whole batch.
template <typename Columns>
void attend_on_tiles(const Attention& shape, const Task& work, const HeadColumns<Columns>& head,
                     const Columns& context, float* log_sum) {
  const Fence fence;
  const int64_t size = shape.size, keys = work.keys, deep = steps(size);
  constexpr int64_t kBlock = kTilesForward;
  const int64_t stride = stride_of_keys(keys), size_stride = round_up(size, kDeep);
  float* const own_log_sum = log_sum + work.row(shape, 0);
  uint32_t *query, *rows_of_keys, *key_transposed, *value, *probability;
  float *scores, *product;
  lay_out({{&query, tiles_size(kBlock, size)},
           {&rows_of_keys, tiles_size(keys, size)},
           {&key_transposed, tiles_size(keys, size)},
           {&value, tiles_size(size, keys)},
           {&probability, tiles_size(kBlock, keys)},
           {&scores, kBlock * stride},
           {&product, kBlock * size_stride}});
  if (keys == 0) {
    std::memset(product, 0, size_stride * sizeof *product);
    for (int64_t i = work.begin; i < work.end; i++) {
      context.put(i, product, 1.f);
      own_log_sum[i] = 0.f;
    }
    return;
  }

  const TileShapes shapes;
  head.key.pack(0, keys, rows_of_keys);
  transpose_tiles(rows_of_keys, tiles(keys) * deep, key_transposed);
  head.value.pack(0, keys, rows_of_keys);
  pack_pairs_of_rows(rows_of_keys, keys, size, value);
  const auto pack_row = shape.dropout.threshold == 0 ? pack_softmax_row<false> : pack_softmax_row<true>;
  for (int64_t begin = work.begin; begin < work.end; begin += kBlock) {
    const int64_t rows = minimum(kBlock, work.end - begin);
    head.query.pack(begin, rows, query);
    multiply_packed<false>({query, rows, deep}, {key_transposed, keys, deep}, deep, scores, stride);
    float factors[kBlock];
    for (int64_t r = 0; r < rows; r++)
      own_log_sum[begin + r] =
          pack_row(scores + r * stride, keys, TileDropout(shape.dropout, work.row(shape, begin + r)),
                   probability + (r / kTile * steps(keys) * kTile + r % kTile) * kTile, factors + r);
    multiply_packed<false>({probability, rows, steps(keys)}, {value, size, steps(keys)}, steps(keys), product,
                           size_stride);
    for (int64_t r = 0; r < rows; r++)
      context.put(begin + r, product + r * size_stride, shape.dropout.scale * factors[r]);
  }
}

// Floats for the transposed gradients of one head's keys and values, (2, size, length) in whole tiles.
inline int64_t sums_size_of_tiles(const Attention& shape) {
  return 2 * round_up(shape.size, kTile) * stride_of_keys(shape.length);
}

// Floats of a row of one head's gradients.
inline int64_t row_size(const Attention& shape) { return round_up(shape.size, kDeep); }

// Writes the gradients of one head's keys and values: the sum over its parts, each sums_size_of_tiles()
// floats. rows: memory for kTile.
template <typename Columns>
void add_parts_of_tiles(const Attention& shape, const Task& work, const float* sums,
                        const HeadColumns<Columns>& gradients, float* rows) {
  const Fence fence;
  const int64_t all = sums_size_of_tiles(shape), stride = stride_of_keys(shape.length),
                width = row_size(shape);
  alignas(64) float sum[kTileWords];
  for (int64_t which = 0; which < 2; which++) {
    const Columns& gradient = which ? gradients.value : gradients.key;
    for (int64_t j = 0; j < work.keys; j += kTile) {
      for (int64_t c = 0; c < shape.size; c += kTile) {
        const float* first = sums + which * (all / 2) + c * stride + j;
        copy_rows(first, stride, kTile, kTile, 1.f, sum, kTile);
        for (int64_t part = 1; part < work.parts; part++)
          for (int64_t r = 0; r < kTile; r++)
#pragma omp simd
            for (int64_t k = 0; k < kTile; k++) sum[r * kTile + k] += first[part * all + r * stride + k];
        transpose_block(sum, kTile, rows + c, width);
      }
      for (int64_t r = 0; r < minimum(kTile, work.keys - j); r++) gradient.put(j + r, rows + r * width, 1.f);
    }
    std::memset(rows, 0, width * sizeof *rows);
    for (int64_t j = work.keys; j < work.sequence.rows; j++) gradient.put(j, rows, 1.f);
  }
}

template <typename Columns>
void add_parts_of_tiles(const Attention& shape, const Task& work, const float* sums,
                        const HeadColumns<Columns>& gradients) {
  float* rows;
  lay_out({{&rows, kTile * row_size(shape)}});
  add_parts_of_tiles(shape, work, sums, gradients, rows);
}

// What a backward pass reads and writes of one head.
template <typename Columns>
struct BackwardColumns {
  HeadColumns<Columns> head;
  Columns context, context_gradient;
  HeadColumns<Columns> gradients;
};

// Scores of some neighbouring queries and keys, kKeysBackward from row to row.
struct ScoreBlock {
  const Dropout& dropout;
  int64_t row, rows;    // the first query's among all probabilities, and how many queries
  int64_t first, keys;  // the first key, and how many
  const RowFacts* facts;
};

// Packs a block's probabilities and the gradients of its scores: as right factors, of which the queries are
// summed over, and the gradients as a left factor, too.
inline void pack_scores_backward(const ScoreBlock& block, const float* scores, const float* gradients,
                                 uint32_t* probability, uint32_t* gradient, uint32_t* gradient_pairs) {
  constexpr int64_t stride = kKeysBackward;
  const auto pack_rows =
      block.dropout.threshold == 0 ? pack_softmax_rows_backward<false> : pack_softmax_rows_backward<true>;
  const int64_t down = steps(block.rows), across = steps(block.keys);
  const auto pair_of = [](int64_t row) { return (row / kDeep * kTile + row % kDeep / 2) * kTile; };
  for (int64_t r = 0; r < block.rows; r += 2) {
    const uint64_t row = block.row + r;
    const TileDropout dropout[2] = {{block.dropout, row}, {block.dropout, row + 1}};
    uint32_t* const line = gradient + (r / kTile * across * kTile + r % kTile) * kTile;
    pack_rows(
        {scores + r * stride, gradients + r * stride, stride, block.first, block.keys}, block.facts + r,
        dropout, block.dropout.scale,
        {probability + pair_of(r), gradient_pairs + pair_of(r), {line, line + kTile}, down * kTileWords});
  }
  for (int64_t r = round_up(block.rows, 2); r < down * kDeep; r += 2)
    for (int64_t tile = 0; tile < 2 * across; tile++)
      for (uint32_t* const pairs : {probability, gradient_pairs})
        _mm512_store_si512(pairs + tile * down * kTileWords + pair_of(r), _mm512_setzero_si512());
}

// Writes the gradient of the part's queries, and what its queries add to the gradients of keys and values
// into `part_sums`, sums_size_of_tiles() floats; where there is one part, those gradients themselves.
template <typename Columns>
void attend_backward_on_tiles(const Attention& shape, const Task& work,
                              const BackwardColumns<Columns>& arrays, const float* log_sum,
                              float* part_sums) {
  const Fence fence;
  const int64_t size = shape.size, keys = work.keys, deep = steps(size), width = row_size(shape);
  const float root = 1.f / std::sqrt(static_cast<float>(size));
  constexpr int64_t kBlock = kTilesBackward, kKeys = kKeysBackward;
  const int64_t sum_stride = stride_of_keys(shape.length);
  log_sum += work.row(shape, 0);
  uint32_t *query, *query_transposed, *key, *key_transposed, *value_transposed, *gradient,
      *gradient_transposed, *probability, *score_gradient, *score_gradient_pairs, *packed;
  float *scores, *score_gradients, *product, *rows_of_sums, *own_sums;
  const int64_t most = tiles_size(round_up(keys, kBlock), round_up(size, kDeep));
  lay_out({{&query, tiles_size(kBlock, size)},
           {&query_transposed, tiles_size(size, kBlock)},
           {&key, tiles_size(size, keys)},
           {&key_transposed, tiles_size(keys, size)},
           {&value_transposed, tiles_size(keys, size)},
           {&gradient, tiles_size(kBlock, size)},
           {&gradient_transposed, tiles_size(size, kBlock)},
           {&probability, tiles_size(kKeys, kBlock)},
           {&score_gradient, tiles_size(kBlock, kKeys)},
           {&score_gradient_pairs, tiles_size(kKeys, kBlock)},
           {&packed, most},
           {&scores, kBlock * kKeys},
           {&score_gradients, kBlock * kKeys},
           {&product, kBlock * width},
           {&rows_of_sums, kTile * width},
           {&own_sums, shape.parts == 1 ? sums_size_of_tiles(shape) : 0}});
  if (keys == 0) {
    std::memset(product, 0, width * sizeof *product);
    for (int64_t i = work.begin; i < work.end; i++) arrays.gradients.query.put(i, product, 1.f);
    if (shape.parts == 1) add_parts_of_tiles(shape, work, nullptr, arrays.gradients, rows_of_sums);
    return;
  }
  float* const key_sum = shape.parts == 1 ? own_sums : part_sums;
  float* const value_sum = key_sum + sums_size_of_tiles(shape) / 2;

  const TileShapes shapes;
  const int64_t deep_keys = steps(keys);
  arrays.head.value.pack(0, keys, packed);
  transpose_tiles(packed, tiles(keys) * deep, value_transposed);
  arrays.head.key.pack(0, keys, packed);
  transpose_tiles(packed, tiles(keys) * deep, key_transposed);
  pack_pairs_of_rows(packed, keys, size, key);
  for (int64_t begin = work.begin; begin < work.end; begin += kBlock) {
    const int64_t rows = minimum(kBlock, work.end - begin), deep_rows = steps(rows);
    arrays.head.query.pack(begin, rows, query);
    arrays.context_gradient.pack(begin, rows, gradient);
    pack_pairs_of_rows(query, rows, size, packed);
    transpose_tiles(packed, tiles(size) * deep_rows, query_transposed);
    pack_pairs_of_rows(gradient, rows, size, packed);
    transpose_tiles(packed, tiles(size) * deep_rows, gradient_transposed);
    RowFacts facts[kBlock];  // the last pair may have one row; the other has zeros
    for (int64_t r = 0; r < rows; r++) {
      const int64_t line = (r / kTile * deep * kTile + r % kTile) * kTile;
      facts[r] = {log_sum[begin + r], arrays.context.dot(begin + r, gradient + line)};
    }
    if (rows % 2) facts[rows] = {INFINITY, 0.f};
    for (int64_t first = 0; first < keys; first += kKeys) {
      const int64_t taken = minimum(kKeys, keys - first), deep_taken = steps(taken);
      const int64_t of_keys = tiles(first) * deep * kTileWords;
      multiply_packed<false>({query, rows, deep}, {key_transposed + of_keys, taken, deep}, deep, scores,
                             kKeys);
      multiply_packed<false>({gradient, rows, deep}, {value_transposed + of_keys, taken, deep}, deep,
                             score_gradients, kKeys);
      pack_scores_backward({shape.dropout, work.row(shape, begin), rows, first, taken, facts}, scores,
                           score_gradients, probability, score_gradient, score_gradient_pairs);
      const Factor of_gradient = {score_gradient, rows, deep_taken};
      const Factor of_key = {key + steps(first) * kTileWords, size, deep_keys};
      (first == 0 ? multiply_packed<false> : multiply_packed<true>)(of_gradient, of_key, deep_taken, product,
                                                                    width);
      const auto add = begin == work.begin ? multiply_packed<false> : multiply_packed<true>;
      add({gradient_transposed, size, deep_rows}, {probability, taken, deep_rows}, deep_rows,
          value_sum + first, sum_stride);
      add({query_transposed, size, deep_rows}, {score_gradient_pairs, taken, deep_rows}, deep_rows,
          key_sum + first, sum_stride);
    }
    for (int64_t r = 0; r < rows; r++) arrays.gradients.query.put(begin + r, product + r * width, root);
  }
  if (shape.parts == 1) add_parts_of_tiles(shape, work, key_sum, arrays.gradients, rows_of_sums);
}

}  // namespace ISA
}  // namespace operators

#include "embed_kernels.h"

#include <immintrin.h>
#include <omp.h>

#include "column_sums.h"
#include "dropout.h"
#include "norm_rows.h"

namespace operators {
namespace ISA {
namespace {

inline int64_t token_of(const Embedding& in, int64_t row) {
  return in.tokens == nullptr ? row : in.tokens[row];
}

// A thread's memory for the factors that dropout multiplies a row with, and for the words that they come
// from.
struct Factors {
  float* factor;
  uint32_t* random;
};

// z = the sum for one row, of this token, which is normalised next; leaves its factors, all 1 without
// dropout.
inline void sum_row(const Embedding& in, int64_t row, int64_t token, const Factors& factors, float* z) {
  const float* word = in.word + (in.ids == nullptr ? row : in.ids[token]) * in.units;
  const float* segment = in.segment + in.segments[token] * in.units;
  const float* position = in.position + token % in.length * in.units;
  const DropoutRow dropped(in.dropout, token, in.units, factors.random);
  float* const factor = factors.factor;
#pragma omp simd
  for (int64_t c = 0; c < in.units; c++)
    factor[c] = in.dropout.threshold == 0 ? 1.f : dropped.factor(c, in.dropout.scale);
#pragma omp simd
  for (int64_t c = 0; c < in.units; c++) z[c] = (word[c] + segment[c] + position[c]) * factor[c];
}

inline void fill(float* to, float value, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) to[i] = value;
}

inline void add(const float* from, float* to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) to[i] += from[i];
}

// Zeros past the cache: they are far more than it holds and nobody reads them soon. Compilers do not do this
// by themselves. A thread that is done must call _mm_sfence.
inline void stream_zeros(float* to, int64_t count) {
  float* const end = to + count;
  while (to < end && reinterpret_cast<uintptr_t>(to) % sizeof(__m128) != 0) *to++ = 0;
  for (; to + 4 <= end; to += 4) _mm_stream_ps(to, _mm_setzero_ps());
  while (to < end) *to++ = 0;
}

// Each word belongs to one thread, which adds up its rows in their order: the result does not depend on how
// many threads there are.
void store_words(const Embedding& in, const RowsOfWords& words, const float* gradient, float* word) {
#pragma omp parallel
  {
#pragma omp for schedule(dynamic, 128)
    for (int64_t id = 0; id < in.vocabulary; id++) {
      float* sum = word + id * in.units;
      int32_t row = words.first[id];
      if (row < 0) {
        stream_zeros(sum, in.units);
        continue;
      }
      fill(sum, 0, in.units);
      for (; row >= 0; row = words.next[row]) add(gradient + row * in.units, sum, in.units);
    }
    _mm_sfence();
  }
}

void store_positions(const Embedding& in, const float* gradient, float* position) {
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < in.positions; p++) {
    float* row = position + p * in.units;
    fill(row, 0, in.units);
    for (int64_t b = 0; b < in.batch; b++)
      if (p < in.sequences[b].rows) add(gradient + (in.sequences[b].first + p) * in.units, row, in.units);
  }
}

}  // namespace

void embed(const Embedding& in, const float* beta, float* output) {
  const int64_t stride = (in.units + 15) / 16 * 16;
  Scratch buffers(stride * omp_get_max_threads());
  DropoutMemory memory(in.units);
#pragma omp parallel
  {
    const Factors factors = {buffers.data() + stride * omp_get_thread_num(), memory.mine()};
#pragma omp for schedule(static)
    for (int64_t row = 0; row < in.rows; row++) {
      const int64_t token = token_of(in, row);
      float* y = output + row * in.units;
      if (token < 0) {
        fill(y, 0, in.units);
        continue;
      }
      sum_row(in, row, token, factors, y);
      normalise_row(row_statistics(y, in.units, in.epsilon), y, in.gamma, beta, y, in.units);
    }
  }
}

void embed_backward(const Embedding& in, const RowsOfWords& words, const float* output_gradient,
                    const EmbeddingGradients& gradients) {
  const int64_t units = in.units;
  const int64_t stride = (units + 15) / 16 * 16;
  const bool looked_up = in.ids == nullptr;
  Scratch own(looked_up ? 0 : in.rows * units);
  float* const sum_gradients = looked_up ? gradients.word : own.data();
  Scratch buffers(2 * stride * omp_get_max_threads());
  DropoutMemory memory(units);
  ColumnSums sums(2 + static_cast<int>(in.types), units);
#pragma omp parallel
  {
    float* gamma_sum = sums.mine();
    float* beta_sum = gamma_sum + units;
    float* segment_sums = beta_sum + units;
    float* z = buffers.data() + 2 * stride * omp_get_thread_num();
    float* factor = z + stride;
    uint32_t* const random = memory.mine();
#pragma omp for schedule(static)
    for (int64_t row = 0; row < in.rows; row++) {
      const int64_t token = token_of(in, row);
      float* gradient = sum_gradients + row * units;
      if (token < 0) {
        fill(gradient, 0, units);
        continue;
      }
      float* segment_sum = segment_sums + in.segments[token] * units;
      sum_row(in, row, token, {factor, random}, z);
      normalise_row_backward(row_statistics(z, units, in.epsilon), z, in.gamma, output_gradient + row * units,
                             gradient, gamma_sum, beta_sum, units);
#pragma omp simd
      for (int64_t c = 0; c < units; c++) {
        gradient[c] *= factor[c];
        segment_sum[c] += gradient[c];
      }
    }
    sums.store(0, gradients.gamma);
    sums.store(1, gradients.beta);
    for (int type = 0; type < in.types; type++) sums.store(2 + type, gradients.segment + type * units);
  }
  store_positions(in, sum_gradients, gradients.position);
  if (!looked_up) store_words(in, words, sum_gradients, gradients.word);
}

}  // namespace ISA
}  // namespace operators

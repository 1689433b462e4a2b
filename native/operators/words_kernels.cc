#include "words_kernels.h"

#include <omp.h>

#include <cstring>

#include "scratch.h"

namespace operators {
namespace ISA {

void look_up(const float* table, const int32_t* ids, const int32_t* tokens, int64_t rows, int64_t units,
             float* to) {
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; row++) {
    const int64_t token = tokens == nullptr ? row : tokens[row];
    float* const y = to + row * units;
    if (token < 0)
      std::memset(y, 0, units * sizeof(float));
    else
      std::memcpy(y, table + ids[token] * units, units * sizeof(float));
  }
}

// Each word belongs to one thread.
void add_rows(const float* rows, const int32_t* first, const int32_t* next, int64_t words, int64_t units,
              float* table) {
  const int64_t stride = (units + 15) / 16 * 16;
  Scratch buffers(stride * omp_get_max_threads());
#pragma omp parallel
  {
    float* const sum = buffers.data() + stride * omp_get_thread_num();
#pragma omp for schedule(dynamic, 128)
    for (int64_t word = 0; word < words; word++) {
      if (first[word] < 0) continue;
      std::memset(sum, 0, units * sizeof(float));
      for (int32_t row = first[word]; row >= 0; row = next[row]) {
        const float* const from = rows + row * units;
#pragma omp simd
        for (int64_t c = 0; c < units; c++) sum[c] += from[c];
      }
      float* const to = table + word * units;
#pragma omp simd
      for (int64_t c = 0; c < units; c++) to[c] += sum[c];
    }
  }
}

}  // namespace ISA
}  // namespace operators

// Sums over rows which the threads of a parallel region share.
#pragma once

#include <omp.h>

#include <cstdint>
#include <cstring>

#include "scratch.h"

namespace operators {
namespace ISA {

// Each thread adds its rows to sums of its own, and the threads' sums are added up in the order of the
// threads: with the same number of threads the result is the same each time.
class ColumnSums {
 public:
  // To be made before the parallel region; `vectors` sums of `columns` floats each.
  ColumnSums(int vectors, int64_t columns)
      : columns_(columns),
        stride_((vectors * columns + 31) / 16 * 16),  // No two threads share a cache line.
        parts_(stride_ * omp_get_max_threads()) {}

  // The calling thread's sums, set to zero: vector v begins at v * columns.
  float* mine() {
    float* part = parts_.data() + omp_get_thread_num() * stride_;
    std::memset(part, 0, stride_ * sizeof(float));
    return part;
  }

  // total = the sum of vector `vector`; called by all threads of the region, after a barrier.
  void store(int vector, float* total) {
    const int threads = omp_get_num_threads();
    const float* first = parts_.data() + vector * columns_;
#pragma omp for schedule(static) nowait
    for (int64_t c = 0; c < columns_; c++) {
      float sum = first[c];
      for (int t = 1; t < threads; t++) sum += first[t * stride_ + c];
      total[c] = sum;
    }
  }

 private:
  int64_t columns_, stride_;
  Scratch parts_;
};

}  // namespace ISA
}  // namespace operators

// The softmax over the vocabulary of scores that stand word by word.
#include "decode_loss_kernels.h"

#include <omp.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "vector_math.h"

namespace operators {
namespace ISA {
namespace {

// The words of this thread: [first, last).
struct Share {
  int64_t first, last;

  explicit Share(int64_t words) {
    const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    first = words * thread / threads;
    last = words * (thread + 1) / threads;
  }
};

}  // namespace

void update_best(const float* scores, const float* bias, int64_t words, int64_t width, int64_t first_word,
                 float* best, int32_t* word) {
  const int threads = omp_get_max_threads();
  std::vector<float> high(threads * width, -std::numeric_limits<float>::infinity());
  std::vector<int32_t> where(threads * width, first_word);
#pragma omp parallel num_threads(threads)
  {
    const Share share(words);
    float* own_high = high.data() + omp_get_thread_num() * width;
    int32_t* own_where = where.data() + omp_get_thread_num() * width;
    for (int64_t w = share.first; w < share.last; w++) {
      const float* row = scores + w * width;
      const float b = bias[w];
      const int32_t number = first_word + w;
#pragma omp simd
      for (int64_t c = 0; c < width; c++) {
        const float x = row[c] + b;
        const bool higher = x > own_high[c];
        own_high[c] = higher ? x : own_high[c];
        own_where[c] = higher ? number : own_where[c];
      }
    }
  }
  for (int64_t i = 0; i < threads * width; i++) {
    const int64_t c = i % width;
    if (high[i] > best[c]) {
      best[c] = high[i];
      word[c] = where[i];
    }
  }
}

void exponentials(float* scores, const float* bias, const float* best, int64_t words, int64_t width,
                  double* sums) {
  // Few numbers are added in float32 before the sum goes on in float64.
  constexpr int64_t kBlock = 64;
  const int threads = omp_get_max_threads();
  std::vector<double> partial(threads * width, 0.);
#pragma omp parallel num_threads(threads)
  {
    const Share share(words);
    double* total = partial.data() + omp_get_thread_num() * width;
    std::vector<float> sum(width);
    for (int64_t start = share.first; start < share.last; start += kBlock) {
      std::fill(sum.begin(), sum.end(), 0.f);
      for (int64_t w = start; w < std::min(start + kBlock, share.last); w++) {
        float* row = scores + w * width;
        float* block_sum = sum.data();
        const float b = bias[w];
#pragma omp simd
        for (int64_t c = 0; c < width; c++) {
          row[c] = fast_exp(row[c] + b - best[c]);
          block_sum[c] += row[c];
        }
      }
      for (int64_t c = 0; c < width; c++) total[c] += sum[c];
    }
  }
  for (int64_t c = 0; c < width; c++) {
    sums[c] = 0;
    for (int t = 0; t < threads; t++) sums[c] += partial[t * width + c];
  }
}

void row_products(const float* scores, const float* factors, int64_t words, int64_t width, float* sums) {
#pragma omp parallel for
  for (int64_t w = 0; w < words; w++) {
    const float* row = scores + w * width;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < width; c++) sum += row[c] * factors[c];
    sums[w] = sum;
  }
}

}  // namespace ISA
}  // namespace operators

// The two factors of the gradient of the decoder's weights, d_weight (V, U) = gradient (V, width) hidden
// (width, U), in the form in which products take them: bert_decode_loss makes them and multiplies them, or
// leaves that to bert_words (words.cc).
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "matmul.h"

namespace operators {

// The vocabulary is worked through in chunks that stay in the cache: calls body(first, words) for each.
template <typename Body>
void for_chunks_of_words(int64_t words, Body body) {
  constexpr int64_t kWordsPerThread = 1024;
  const int64_t chunk = kWordsPerThread * omp_get_max_threads();
  for (int64_t first = 0; first < words; first += chunk) body(first, std::min(chunk, words - first));
}

// The decoder's rows, up to a whole vector; also keeps the number of different shapes small.
inline int64_t decoder_width(int64_t rows) { return (rows + 15) / 16 * 16; }

class WordFactors {
 public:
  // low: rounded to bfloat16. width: from decoder_width.
  WordFactors(bool low, int64_t words, int64_t width, int64_t units);

  bool tiled() const { return tiled_; }

  // The size of each factor, whole cache lines. `words`: of a chunk.
  size_t hidden_bytes() const;
  size_t gradient_bytes(int64_t words) const;

  // product (words, U) of a chunk's gradient.
  void multiply(const void* hidden, const void* gradient, int64_t words, float* product) const;

  // Floats of an array that holds a heading and both factors for the whole vocabulary.
  int64_t array_size() const;
  // Writes the heading of such an array.
  void begin(float* array) const;
  // Where the factors are in it, that of the gradient from the word `first` on.
  float* hidden_in(float* array) const;
  float* gradient_in(float* array, int64_t first) const;

  // The width in the heading of such an array: 0 where all of it is zeros, which is the gradient that MXNet
  // gives an output that nothing is made of. Throws std::runtime_error where it is no such array.
  static int64_t width_in(const float* array);

 private:
  bool tiled_;
  int64_t words_, width_, units_;
};

}  // namespace operators

#include "word_factors.h"

#include <cstddef>

#include "tile_product_kernels.h"

namespace operators {
namespace {

constexpr int64_t kHeading = 16;  // floats, a cache line: the mark, the width
constexpr float kMark = 7717;     // no sum of such arrays has it

size_t lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

WordFactors::WordFactors(bool low, int64_t words, int64_t width, int64_t units)
    : tiled_(low && tile_products()), words_(words), width_(width), units_(units) {}

size_t WordFactors::hidden_bytes() const {
  return lines(tiled_ ? packed_words(units_, width_) * sizeof(uint32_t) : width_ * units_ * sizeof(float));
}

size_t WordFactors::gradient_bytes(int64_t words) const {
  return lines(tiled_ ? packed_words(words, width_) * sizeof(uint32_t) : words * width_ * sizeof(float));
}

void WordFactors::multiply(const void* hidden, const void* gradient, int64_t words, float* product) const {
  if (tiled_) KERNEL(multiply_packed_factors)
  ({static_cast<const uint32_t*>(gradient), static_cast<const uint32_t*>(hidden), words, units_, width_,
    product, units_});
  else operators::multiply(row_major(words, width_), static_cast<const float*>(gradient),
                           row_major(width_, units_), static_cast<const float*>(hidden),
                           row_major(words, units_), product);
}

int64_t WordFactors::array_size() const {
  return kHeading + (hidden_bytes() + gradient_bytes(words_)) / sizeof(float);
}

void WordFactors::begin(float* array) const {
  std::fill(array, array + kHeading, 0.f);
  array[0] = kMark;
  array[1] = width_;
}

float* WordFactors::hidden_in(float* array) const { return array + kHeading; }

// Chunks begin at whole tiles and, as the width is that of whole vectors, at whole cache lines.
float* WordFactors::gradient_in(float* array, int64_t first) const {
  return hidden_in(array) + (hidden_bytes() + gradient_bytes(first)) / sizeof(float);
}

int64_t WordFactors::width_in(const float* array) {
  if (array[0] == 0 && array[1] == 0) return 0;
  require(array[0] == kMark, "the output for the decoder is for one bert_decode_loss alone");
  return static_cast<int64_t>(array[1]);
}

}  // namespace operators

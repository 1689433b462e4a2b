#include "tile_product_kernels.h"

#include <cstdlib>

#ifdef __AMX_BF16__
#include "tile_product.h"
#endif

namespace operators {
namespace ISA {

#ifdef __AMX_BF16__
namespace {

// A block of sums that is being written to the output while the tiles multiply: the stores, which wait for
// memory, cost a fifth of the product otherwise.
class Writer {
 public:
  static constexpr int64_t kRows = 2, kPieces = kBlock / kRows;

  explicit Writer(const TileProduct& product)
      : product_(product),
        // Whole vectors at aligned addresses go past the caches: nothing reads them soon.
        streams_(!product.accumulate && product.stride % kTile == 0 &&
                 reinterpret_cast<uintptr_t>(product.output) % 64 == 0) {}

  void begin(const float* sums, int64_t row, int64_t column) {
    sums_ = sums;
    output_ = product_.output + row * product_.stride + column;
    rows_ = std::min(kBlock, product_.rows - row);
    columns_ = std::min(kBlock, product_.columns - column);
    bias_ = product_.bias ? product_.bias + column : nullptr;
  }

  void piece(int64_t index) {
    for (int64_t row = index * kRows; row < std::min((index + 1) * kRows, rows_); row++) {
      const float* sums = sums_ + row * kBlock;
      float* output = output_ + row * product_.stride;
      // What the block below is added to, which comes from memory.
      if (product_.accumulate)
        for (int64_t c = 0; c < columns_; c += kTile)
          __builtin_prefetch(output + kBlock * product_.stride + c, 0, 3);
      for (int64_t c = 0; c < columns_; c += kTile) put(sums + c, c, output + c);
    }
  }

  void end() {}

 private:
  // Up to 16 sums from column c of the block on.
  void put(const float* sums, int64_t c, float* output) const {
    const bool whole = columns_ - c >= kTile;
    const __mmask16 mask = whole ? 0xffff : (1u << (columns_ - c)) - 1;
    __m512 sum = _mm512_load_ps(sums);
    if (bias_) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, bias_ + c));
    if (product_.accumulate) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, output));
    if (whole && streams_)
      _mm512_stream_ps(output, sum);
    else
      _mm512_mask_storeu_ps(output, mask, sum);
  }

  const TileProduct& product_;
  const bool streams_;
  const float *sums_ = nullptr, *bias_ = nullptr;
  float* output_ = nullptr;
  int64_t rows_ = 0, columns_ = 0;
};

// Asks for the block on the right of the one that begins at `from`: its rows lie in different pages, where
// the processor does not look ahead by itself.
void prefetch_next(const float* from, int64_t stride, int64_t rows) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < kDeep; c += kTile) __builtin_prefetch(from + r * stride + kDeep + c, 0, 2);
}

}  // namespace

void pack_factor(const float* matrix, int64_t rows, int64_t columns, const PackedForms& forms) {
  pack_part(matrix, rows, columns, 0, rows, forms);
}

void pack_part(const float* matrix, int64_t rows, int64_t columns, int64_t first, int64_t total,
               const PackedForms& forms) {
  const PackedForms to = forms;
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < rows; begin += kSquare) {
    for_blocks(begin, std::min(begin + kSquare, rows), columns, [&](int64_t row, int64_t column) {
      const float* from = matrix + row * columns + column;
      prefetch_next(from, columns, std::min(kDeep, rows - row));
      pack_block(from, columns, {total, columns, first + row, column}, to);
    });
    _mm_sfence();
  }
}

void multiply_packed_factors(const TileProduct& product) {
  multiply_blocks(product, [&] { return Writer(product); });
}

#else

void pack_factor(const float*, int64_t, int64_t, const PackedForms&) { std::abort(); }
void pack_part(const float*, int64_t, int64_t, int64_t, int64_t, const PackedForms&) { std::abort(); }
void multiply_packed_factors(const TileProduct&) { std::abort(); }

#endif

}  // namespace ISA
}  // namespace operators

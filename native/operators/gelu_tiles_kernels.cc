#include "gelu_tiles_kernels.h"

#include <cstdlib>

#ifdef __AVX512F__
#include "bfloat16.h"
#include "column_sums.h"
#include "gelu_math.h"
#include "tile_product.h"
#endif

namespace operators {
namespace ISA {

#ifdef __AVX512F__
namespace {

constexpr int64_t kBlockSize = kBlock * kBlock, kRows = 2;

// Two rows of a block that are worked on together, one after the other.
struct Rows {
  alignas(64) float values[kRows * kBlock];
};

// The block that is in work, for both directions. Kept: uint16_t* or const uint16_t*, bfloat16.
template <typename Kept>
class Block {
 public:
  Block(const TileProduct& product, Kept kept)
      : product_(product), kept_(kept), block_rows_((product.rows + kBlock - 1) / kBlock) {}

  void begin(const float* sums, int64_t row, int64_t column) {
    sums_ = sums;
    place_ = {product_.rows, product_.columns, row, column};
    kept_block_ = kept_ + (column / kBlock * block_rows_ + row / kBlock) * kBlockSize;
    whole_ = place_.height() == kBlock && place_.width() == kBlock;
  }

 protected:
  // The first 16 numbers of a row or the last: zeros where the matrix ends.
  template <bool kWhole>
  __m512 part(const Rows& rows, int64_t index, int64_t row, int64_t half) const {
    const float* from = rows.values + row * kBlock + half * kTile;
    if (kWhole) return _mm512_load_ps(from);
    return some(from, index * kRows + row < place_.height() ? place_.width() - half * kTile : 0);
  }

  // Rounds both rows into their places in a left factor.
  template <bool kWhole>
  void put_left(const Rows& rows, int64_t index, uint32_t* left) const {
    const int64_t row = index * kRows, tile_row = row / kTile;
    if (!kWhole && tile_row * kTile >= place_.height()) return;
    uint32_t* to =
        left + ((place_.row / kTile + tile_row) * steps(place_.columns) + place_.column / kDeep) * kTileWords;
    for (int64_t r = 0; r < kRows; r++)
      _mm512_store_si512(to + (row % kTile + r) * kTile,
                         words_of(part<kWhole>(rows, index, r, 0), part<kWhole>(rows, index, r, 1)));
  }

  const TileProduct& product_;
  const Kept kept_;
  const int64_t block_rows_;
  const float* sums_ = nullptr;
  MatrixBlock place_ = {0, 0, 0, 0};
  Kept kept_block_ = nullptr;
  bool whole_ = false;
};

template <typename Activation>
class Forward : public Block<uint16_t*> {
 public:
  static constexpr bool kSplits = false;
  static constexpr int64_t kPieces = kBlock / kRows;

  Forward(const TileProduct& product, const float* bias, uint16_t* kept, uint32_t* left)
      : Block(product, kept), given_bias_(bias), left_(left) {}

  void begin(const float* sums, int64_t row, int64_t column) {
    Block::begin(sums, row, column);
    for (int64_t half = 0; half < kPair; half++)
      _mm512_store_ps(bias_ + half * kTile,
                      some(given_bias_ + column + half * kTile, place_.width() - half * kTile));
  }

  void piece(int64_t index) { whole_ ? rows<true>(index) : rows<false>(index); }

  void end() {}

 private:
  template <bool kWhole>
  void rows(int64_t index) {
    alignas(64) float h[kRows * kBlock];
    Rows gelu;
    const float* sums = sums_ + index * kRows * kBlock;
    for (int64_t start = 0; start < kRows * kBlock; start += kBlock)
#pragma omp simd
      for (int64_t c = 0; c < kBlock; c++) {
        h[start + c] = sums[start + c] + bias_[c];
        gelu.values[start + c] = Activation::value(h[start + c]);
      }
    // Past the caches: the backward pass is far away.
    for (int64_t c = 0; c < kRows * kBlock; c += kBlock)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(kept_block_ + index * kRows * kBlock + c),
                          words_of(_mm512_load_ps(h + c), _mm512_load_ps(h + c + kTile)));
    put_left<kWhole>(gelu, index, left_);
  }

  const float* const given_bias_;
  uint32_t* const left_;
  alignas(64) float bias_[kBlock];
};

template <typename Activation>
class Backward : public Block<const uint16_t*> {
 public:
  static constexpr bool kSplits = false;
  static constexpr int64_t kRowPieces = kBlock / kRows, kPieces = kRowPieces + kPair;

  Backward(const TileProduct& product, const uint16_t* kept, const GeluGradientForms& forms, ColumnSums* sums,
           float* bias_gradient)
      : Block(product, kept),
        forms_(forms),
        column_sums_(sums),
        bias_sum_(sums->mine()),
        bias_gradient_(bias_gradient) {}

  void piece(int64_t index) {
    if (index >= kRowPieces)
      put_transposed(index - kRowPieces);
    else
      whole_ ? rows<true>(index) : rows<false>(index);
  }

  void end() { column_sums_->store(0, bias_gradient_); }

 private:
  template <bool kWhole>
  void rows(int64_t index) {
    Rows value, slope;
    const float* dy = sums_ + index * kRows * kBlock;
    const uint16_t* h = kept_block_ + index * kRows * kBlock;
    // The next block lies behind this one.
    for (int64_t c = 0; c < kRows * kBlock; c += kBlock) __builtin_prefetch(h + kBlockSize + c, 0, 2);
#pragma omp simd
    for (int64_t c = 0; c < kRows * kBlock; c++) {
      const Gelu gelu = Activation::both(from_bfloat16(h[c]));
      value.values[c] = gelu.value;
      slope.values[c] = dy[c] * gelu.slope;
    }
    put_left<kWhole>(slope, index, forms_.left);
    for (int64_t half = 0; half < kPair && (kWhole || half * kTile < place_.width()); half++) {
      const __m512 even = part<kWhole>(slope, index, 0, half), odd = part<kWhole>(slope, index, 1, half);
      _mm512_store_si512(pairs_ + half * kTileWords + index * kTile, paired(even, odd));
      _mm512_store_si512(forms_.output_right + tile(half) + index * kTile,
                         paired(part<kWhole>(value, index, 0, half), part<kWhole>(value, index, 1, half)));
      float* const sum = bias_sum_ + place_.column + half * kTile;
      _mm512_storeu_ps(sum, _mm512_add_ps(_mm512_loadu_ps(sum), _mm512_add_ps(even, odd)));
    }
  }

  void put_transposed(int64_t half) {
    if (half * kTile < place_.width())
      transpose_tiles(pairs_ + half * kTileWords, 1, forms_.transposed_left + tile(half));
  }

  // Where a tile of the forms begins that are summed up over the rows.
  int64_t tile(int64_t half) const {
    return ((place_.column / kTile + half) * steps(place_.rows) + place_.row / kDeep) * kTileWords;
  }

  const GeluGradientForms forms_;
  ColumnSums* const column_sums_;
  float *const bias_sum_, *const bias_gradient_;
  alignas(64) uint32_t pairs_[kPair * kTileWords];
};

template <typename Activation>
void forward(const TileProduct& product, const float* bias, uint16_t* kept, uint32_t* left) {
  multiply_blocks(product, [&] { return Forward<Activation>(product, bias, kept, left); });
}

template <typename Activation>
void backward(const TileProduct& product, const uint16_t* kept, const GeluGradientForms& forms,
              float* bias_gradient) {
  ColumnSums sums(1, product.columns);
  multiply_blocks(product, [&] { return Backward<Activation>(product, kept, forms, &sums, bias_gradient); });
}

}  // namespace

void multiply_gelu(const TileProduct& product, const BiasGelu& gelu, uint16_t* kept, uint32_t* left) {
  const auto run = gelu.form == Form::relu   ? forward<Relu>
                   : gelu.form == Form::tanh ? forward<Tanh>
                                             : forward<Erf>;
  run(product, gelu.bias, kept, left);
}

void multiply_gelu_backward(const TileProduct& product, Form form, const uint16_t* kept,
                            const GeluGradientForms& forms, float* bias_gradient) {
  const auto run = form == Form::relu ? backward<Relu> : form == Form::tanh ? backward<Tanh> : backward<Erf>;
  run(product, kept, forms, bias_gradient);
}

#else

void multiply_gelu(const TileProduct&, const BiasGelu&, uint16_t*, uint32_t*) { std::abort(); }
void multiply_gelu_backward(const TileProduct&, Form, const uint16_t*, const GeluGradientForms&, float*) {
  std::abort();
}

#endif

}  // namespace ISA
}  // namespace operators

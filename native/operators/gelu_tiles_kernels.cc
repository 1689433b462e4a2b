#include "gelu_tiles_kernels.h"

#include <cstdlib>

#ifdef __AMX_BF16__
#include "column_sums.h"
#include "gelu_math.h"
#include "tile_product.h"
#endif

namespace operators {
namespace ISA {

#ifdef __AMX_BF16__
namespace {

constexpr int64_t kBlockSize = kBlock * kBlock, kRowsAtOnce = 4;

// The block that is in work, for both directions. Kept: float* or const float*.
template <typename Kept>
class Block {
 public:
  Block(const TileProduct& product, Kept kept)
      : product_(product), kept_(kept), block_rows_((product.rows + kBlock - 1) / kBlock) {}

  void begin(const float* sums, int64_t row, int64_t column) {
    sums_ = sums;
    place_ = {product_.rows, product_.columns, row, column};
    kept_block_ = kept_ + (column / kBlock * block_rows_ + row / kBlock) * kBlockSize;
    done_ = 0;
  }

 protected:
  // Calls body(row of the block) for the next rows.
  template <typename Body>
  void some_rows(const Body& body) {
    if (!sums_) return;
    for (const int64_t end = std::min(done_ + kRowsAtOnce, place_.height()); done_ < end; done_++)
      body(done_);
  }

  const TileProduct& product_;
  const Kept kept_;
  const int64_t block_rows_;
  const float* sums_ = nullptr;
  MatrixBlock place_ = {0, 0, 0, 0};
  Kept kept_block_ = nullptr;
  int64_t done_ = 0;
};

template <typename Form>
class Forward : public Block<float*> {
 public:
  Forward(const TileProduct& product, const float* bias, float* kept, const PackedForms& forms)
      : Block(product, kept), bias_(bias), forms_(forms) {}

  void advance() {
    some_rows([&](int64_t row) {
      alignas(64) float h[kBlock];
      const float *sum = sums_ + row * kBlock, *bias = bias_ + place_.column;
      float* value = values_ + row * kBlock;
      const int64_t width = place_.width();
#pragma omp simd
      for (int64_t c = 0; c < width; c++) {
        h[c] = sum[c] + bias[c];
        value[c] = Form::value(h[c]);
      }
      // Past the caches: the backward pass is far away.
      for (int64_t c = 0; c < kBlock; c += kTile)
        _mm512_stream_ps(kept_block_ + row * kBlock + c, _mm512_load_ps(h + c));
    });
  }

  void finish() {
    if (!sums_) return;
    while (done_ < place_.height()) advance();
    pack_block(values_, kBlock, place_, forms_);
    sums_ = nullptr;
  }

  void end() {}

 private:
  const float* const bias_;
  const PackedForms& forms_;
  alignas(64) float values_[kBlockSize];
};

template <typename Form>
class Backward : public Block<const float*> {
 public:
  Backward(const TileProduct& product, const float* kept, const PackedForms& input_gradient,
           const PackedForms& output, ColumnSums* sums, float* bias_gradient)
      : Block(product, kept),
        input_gradient_(input_gradient),
        output_(output),
        column_sums_(sums),
        bias_sum_(sums->mine()),
        bias_gradient_(bias_gradient) {}

  void advance() {
    some_rows([&](int64_t row) {
      const float *dy = sums_ + row * kBlock, *h = kept_block_ + row * kBlock;
      float *value = values_ + row * kBlock, *dh = gradients_ + row * kBlock,
            *sum = bias_sum_ + place_.column;
      // The next block lies behind this one.
      for (int64_t c = 0; c < kBlock; c += kTile) __builtin_prefetch(h + kBlockSize + c, 0, 2);
      const int64_t width = place_.width();
#pragma omp simd
      for (int64_t c = 0; c < width; c++) {
        const Gelu gelu = Form::both(h[c]);
        value[c] = gelu.value;
        dh[c] = dy[c] * gelu.slope;
        sum[c] += dh[c];
      }
    });
  }

  void finish() {
    if (!sums_) return;
    while (done_ < place_.height()) advance();
    pack_block(gradients_, kBlock, place_, input_gradient_);
    pack_block(values_, kBlock, place_, output_);
    sums_ = nullptr;
  }

  void end() { column_sums_->store(0, bias_gradient_); }

 private:
  const PackedForms &input_gradient_, &output_;
  ColumnSums* const column_sums_;
  float *const bias_sum_, *const bias_gradient_;
  alignas(64) float values_[kBlockSize];
  alignas(64) float gradients_[kBlockSize];
};

template <typename Form>
void forward(const TileProduct& product, const float* bias, float* kept, const PackedForms& forms) {
  multiply_blocks(product, [&] { return Forward<Form>(product, bias, kept, forms); });
}

template <typename Form>
void backward(const TileProduct& product, const float* kept, const PackedForms& input_gradient,
              const PackedForms& output, float* bias_gradient) {
  ColumnSums sums(1, product.columns);
  multiply_blocks(
      product, [&] { return Backward<Form>(product, kept, input_gradient, output, &sums, bias_gradient); });
}

}  // namespace

void multiply_gelu(const TileProduct& product, const BiasGelu& gelu, float* kept, const PackedForms& forms) {
  (gelu.tanh ? forward<Tanh> : forward<Erf>)(product, gelu.bias, kept, forms);
}

void multiply_gelu_backward(const TileProduct& product, bool tanh, const float* kept,
                            const PackedForms& input_gradient, const PackedForms& output,
                            float* bias_gradient) {
  (tanh ? backward<Tanh> : backward<Erf>)(product, kept, input_gradient, output, bias_gradient);
}

#else

void multiply_gelu(const TileProduct&, const BiasGelu&, float*, const PackedForms&) { std::abort(); }
void multiply_gelu_backward(const TileProduct&, bool, const float*, const PackedForms&, const PackedForms&,
                            float*) {
  std::abort();
}

#endif

}  // namespace ISA
}  // namespace operators

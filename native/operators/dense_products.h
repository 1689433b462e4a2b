// The products of dense layers by weights that were packed once a step: forward, and the gradients of the
// input and of the weights.
#pragma once

#include <algorithm>
#include <cstdint>

#include "matmul.h"
#include "tile_product_kernels.h"

namespace operators {

// Copies float32 in parallel.
void copy_floats(const float* source, int64_t size, float* target);

// The biases of stacked weights one after the other, in kBiasSlot where there are several.
const float* stacked_biases(const mxnet::ext::MXTensor* first, const mxnet::ext::MXTensor* last);

// Their gradients: the sums over the rows of dy (M, N).
void bias_gradients(const float* dy, int64_t rows, mxnet::ext::MXTensor* first, mxnet::ext::MXTensor* last);

// The attribute `squares`, 0 where it is left out: whether the backward pass counts the squares of the
// elements of the weights' gradients. Their sum, for the global norm, is then what the operator gives as the
// gradient of its input `mode`: one that other operators share has the sum over all of them. On tiles it is
// taken from the products' sums before they are written.
bool counts_squares(const Attributes& attributes);

// The attribute `recompute`, 0 where it is left out: whether what only the backward pass needs is computed
// again there, to the same bits, instead of being kept. The outputs that would hold it have one element then.
bool recomputes(const Attributes& attributes);

// The sum of the squares of all elements, the same for any number of threads.
double sum_of_squares(const mxnet::ext::MXTensor* first, const mxnet::ext::MXTensor* last);

// The form in which stacked weights W (N, K) are multiplied: as the product forward wants them, then as the
// one backward does.
//   On tiles: W^T and W as packed right factors.
//   Otherwise W row by row in float32, rounded in bfloat16; in bfloat16x3 the rounded numbers, then the
//   rests. A single weight in float32 is used itself.
class PackedWeights {
 public:
  // weights: how many are stacked.
  PackedWeights(Precision precision, int weights, int64_t rows, int64_t columns);

  // At least 1: MXNet knows no arrays without elements.
  size_t bytes() const { return std::max<size_t>(1, forward_bytes_ + backward_bytes_); }

  void pack(const Tensors& weights, void* target) const;

  // Whether whole blocks of 32 rows can be packed by themselves (pack_part), into these forms.
  bool in_parts() const { return tiled_; }
  PackedForms forms(void* target) const;

 private:
  friend class DenseProducts;
  bool low_, split_, tiled_;
  int64_t rows_, columns_;
  size_t forward_bytes_, backward_bytes_;  // the latter 0 where the product backward takes the same form
};

// The products of one layer: x (M, K), weights stacked to (N, K), y (M, N). All arrays are float32. Uses this
// thread's scratch memory: kLeftSlot, kRightSlot, kBlockedSlot, kSumSlot.
class DenseProducts {
 public:
  // packed: what PackedWeights::pack has written; weight: the first weight itself.
  DenseProducts(Precision precision, int weights, int64_t rows, int64_t inputs, int64_t outputs,
                const mxnet::ext::MXTensor& packed, const mxnet::ext::MXTensor& weight);

  // Whether factors are packed once, for tiles, and numbers are not split.
  bool packs_once() const { return packed_.tiled_ && !packed_.split_; }

  // y = x W^T [+ bias (N)].
  void forward(const float* x, const float* bias, float* y) const;
  // The same; few rows in float32 without oneDNN, which would pack weights of any size in each call.
  void forward_of_few(const float* x, const float* bias, float* y) const;
  // The same by x as a packed left factor (M, K); where packs_once(). The first one is yet to be computed.
  TileProduct forward_product(const uint32_t* x, const float* bias, float* y) const;
  void forward_on_tiles(const uint32_t* x, const float* bias, float* y) const;
  // The same, rounded, as a left factor (M, N), the first columns scaled.
  void forward_into_factor(const uint32_t* x, const float* bias, const ScaledColumns& scaled,
                           uint32_t* y) const;

  // dx = dy W [+ dx], and the weights' gradients dy^T x, one below the other, into (first, ..., last): (N_i,
  // K).
  void backward(const float* dy, const float* x, bool accumulate, float* dx, mxnet::ext::MXTensor* first,
                mxnet::ext::MXTensor* last) const;
  // The two products by themselves.
  void input_gradient(const float* dy, bool accumulate, float* dx) const;
  void weight_gradients(const float* dy, const float* x, mxnet::ext::MXTensor* first,
                        mxnet::ext::MXTensor* last) const;
  // The same by packed factors; where packs_once().
  TileProduct input_gradient_product(const uint32_t* dy_left, bool accumulate, float* dx) const;
  void input_gradient_on_tiles(const uint32_t* dy_left, bool accumulate, float* dx) const;
  void input_gradient_into_factor(const uint32_t* dy_left, uint32_t* dx) const;
  // dy_transposed: dy^T as a left factor (N, M); x_right: x as a right factor (M summed over, K).
  // Adds the sum of their squares to `squares`, unless it is null.
  void weight_gradients_on_tiles(const uint32_t* dy_transposed, const uint32_t* x_right,
                                 mxnet::ext::MXTensor* first, mxnet::ext::MXTensor* last,
                                 double* squares = nullptr) const;

 private:
  // A float32 factor: its numbers, then, `rests` further, what rounding has left of them.
  struct Factor {
    const float* data;
    int64_t rests;
    const float* part(int index) const { return data + index * rests; }
  };
  PackedForms forms() const;
  uint32_t* factor_scratch(Slot slot, int64_t size, int64_t depth) const;
  Factor factor(const float* matrix, int64_t columns, Slot slot) const;
  template <typename Multiply>
  void multiply_parts(const Multiply& multiply) const;
  void multiply_input_gradient(const Factor& dy, bool accumulate, float* dx) const;
  void multiply_weight_gradients(const Factor& dy, const Factor& x, mxnet::ext::MXTensor* first,
                                 mxnet::ext::MXTensor* last) const;

  PackedWeights packed_;
  int64_t rows_, inputs_, outputs_;
  const char* packed_data_;
  Factor weight_;  // where products are not on tiles
};

// Scratch memory for a packed factor with so many rows (left) or columns (right).
uint32_t* packed_scratch(Slot slot, int64_t size, int64_t depth, bool split = false);

}  // namespace operators

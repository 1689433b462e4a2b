#include "dense_products.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "chunks.h"
#include "lamb_kernels.h"
#include "matmul_kernels.h"

namespace operators {
namespace {

using mxnet::ext::MXTensor;

// Copies the parts of a matrix with `columns` columns, which lie one after the other, into the arrays.
void distribute(const float* together, MXTensor* first, MXTensor* last) {
  for (MXTensor* part = first; part != last; together += part->size(), ++part)
    copy_floats(together, part->size(), floats(*part));
}

}  // namespace

void copy_floats(const float* source, int64_t size, float* target) {
  constexpr int64_t kBlock = 1 << 14;
#pragma omp parallel for
  for (int64_t start = 0; start < size; start += kBlock)
    std::memcpy(target + start, source + start, std::min(kBlock, size - start) * sizeof(float));
}

const float* stacked_biases(const MXTensor* first, const MXTensor* last) {
  if (last - first == 1) return floats(*first);
  int64_t size = 0;
  for (const MXTensor* bias = first; bias != last; ++bias) size += bias->size();
  float* const stacked = static_cast<float*>(scratch(kBiasSlot, size * sizeof(float)));
  float* next = stacked;
  for (const MXTensor* bias = first; bias != last; ++bias)
    next = std::copy_n(floats(*bias), bias->size(), next);
  return stacked;
}

void bias_gradients(const float* dy, int64_t rows, MXTensor* first, MXTensor* last) {
  int64_t columns = 0;
  for (const MXTensor* bias = first; bias != last; ++bias) columns += bias->size();
  float* sums = static_cast<float*>(scratch(kBiasSlot, columns * sizeof(float)));
  KERNEL(column_sums)(dy, rows, columns, sums);
  for (MXTensor* bias = first; bias != last; sums += bias->size(), ++bias)
    std::copy_n(sums, bias->size(), floats(*bias));
}

bool counts_squares(const Attributes& attributes) {
  return attributes.count("squares") != 0 && integer(attributes, "squares") != 0;
}

bool recomputes(const Attributes& attributes) {
  return attributes.count("recompute") != 0 && integer(attributes, "recompute") != 0;
}

double sum_of_squares(const MXTensor* first, const MXTensor* last) {
  std::vector<int64_t> sizes;
  for (const MXTensor* tensor = first; tensor != last; ++tensor) sizes.push_back(tensor->size());
  const std::vector<Chunk> chunks = split(sizes);
  std::vector<double> squares(chunks.size());
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < chunks.size(); i++)
    squares[i] = KERNEL(sum_of_squares)(floats(first[chunks[i].tensor]) + chunks[i].begin, chunks[i].size);
  double sum = 0;
  for (const double square : squares) sum += square;
  return sum;
}

uint32_t* packed_scratch(Slot slot, int64_t size, int64_t depth, bool split) {
  return static_cast<uint32_t*>(scratch(slot, packed_words(size, depth, split) * sizeof(uint32_t)));
}

PackedWeights::PackedWeights(Precision precision, int weights, int64_t rows, int64_t columns)
    : low_(precision != Precision::float32),
      split_(precision == Precision::bfloat16x3),
      tiled_(low_ && tile_products()),
      rows_(rows),
      columns_(columns),
      forward_bytes_(0),
      backward_bytes_(0) {
  if (tiled_) {
    forward_bytes_ = packed_words(rows, columns, split_) * sizeof(uint32_t);
    backward_bytes_ = packed_words(columns, rows, split_) * sizeof(uint32_t);
  } else if (low_ || weights > 1) {
    forward_bytes_ = (split_ ? 2 : 1) * rows * columns * sizeof(float);
  }
}

PackedForms PackedWeights::forms(void* target) const {
  char* const bytes = static_cast<char*>(target);
  PackedForms forms;
  forms.transposed_right = reinterpret_cast<uint32_t*>(bytes);
  forms.right = reinterpret_cast<uint32_t*>(bytes + forward_bytes_);
  forms.streams = true;
  forms.split = split_;
  return forms;
}

void PackedWeights::pack(const Tensors& weights, void* target) const {
  char* const bytes = static_cast<char*>(target);
  if (!forward_bytes_) {
    *bytes = 0;
  } else if (tiled_) {
    const PackedForms forms = this->forms(target);
    constexpr int64_t kWhole = 32;  // rows of a step of the product
    if (std::all_of(weights.begin(), weights.end() - 1,
                    [](const MXTensor& weight) { return weight.shape[0] % kWhole == 0; })) {
      int64_t first = 0;
      for (const auto& weight : weights) {
        KERNEL(pack_part)(floats(weight), weight.shape[0], columns_, first, rows_, forms);
        first += weight.shape[0];
      }
      return;
    }
    float* const together = static_cast<float*>(scratch(kSumSlot, rows_ * columns_ * sizeof(float)));
    float* next = together;
    for (const auto& weight : weights) {
      copy_floats(floats(weight), weight.size(), next);
      next += weight.size();
    }
    KERNEL(pack_factor)(together, rows_, columns_, forms);
  } else {
    float* next = static_cast<float*>(target);
    for (const auto& weight : weights) {
      if (split_)
        KERNEL(split_within_float)(floats(weight), next, next + rows_ * columns_, weight.size());
      else if (low_)
        KERNEL(round_within_float)(floats(weight), next, weight.size());
      else
        copy_floats(floats(weight), weight.size(), next);
      next += weight.size();
    }
  }
}

DenseProducts::DenseProducts(Precision precision, int weights, int64_t rows, int64_t inputs, int64_t outputs,
                             const MXTensor& packed, const MXTensor& weight)
    : packed_(precision, weights, outputs, inputs),
      rows_(rows),
      inputs_(inputs),
      outputs_(outputs),
      packed_data_(static_cast<const char*>(packed.data_ptr)),
      weight_{packed_.forward_bytes_ ? reinterpret_cast<const float*>(packed_data_) : floats(weight),
              outputs * inputs} {}

// A float32 matrix as a factor: as it is, or rounded in scratch memory.
DenseProducts::Factor DenseProducts::factor(const float* matrix, int64_t columns, Slot slot) const {
  const int64_t size = rows_ * columns;
  if (!packed_.low_) return {matrix, 0};
  float* const rounded = static_cast<float*>(scratch(slot, (packed_.split_ ? 2 : 1) * size * sizeof(float)));
  if (packed_.split_)
    KERNEL(split_within_float)(matrix, rounded, rounded + size, size);
  else
    KERNEL(round_within_float)(matrix, rounded, size);
  return {rounded, size};
}

// Calls multiply(part of the left factor, part of the right one, whether it is the first of the products).
template <typename Multiply>
void DenseProducts::multiply_parts(const Multiply& multiply) const {
  multiply(0, 0, true);
  if (!packed_.split_) return;
  multiply(0, 1, false);
  multiply(1, 0, false);
}

PackedForms DenseProducts::forms() const {
  PackedForms none;
  none.split = packed_.split_;
  return none;
}

uint32_t* DenseProducts::factor_scratch(Slot slot, int64_t size, int64_t depth) const {
  return packed_scratch(slot, size, depth, packed_.split_);
}

void DenseProducts::forward(const float* x, const float* bias, float* y) const {
  if (packed_.tiled_) {
    PackedForms forms = this->forms();
    forms.left = factor_scratch(kLeftSlot, rows_, inputs_);
    KERNEL(pack_factor)(x, rows_, inputs_, forms);
    forward_on_tiles(forms.left, bias, y);
    return;
  }
  const Factor left = factor(x, inputs_, kLeftSlot);
  multiply_parts([&](int of_x, int of_weight, bool first) {
    multiply(row_major(rows_, inputs_), left.part(of_x), row_major(outputs_, inputs_).transposed(),
             weight_.part(of_weight), row_major(rows_, outputs_), y, first ? bias : nullptr, !first);
  });
}

void DenseProducts::forward_of_few(const float* x, const float* bias, float* y) const {
  constexpr int64_t kFew = 64;  // a sentence or two; with more, oneDNN is faster
  if (packed_.low_ || rows_ > kFew || outputs_ < kLeastColumns)
    forward(x, bias, y);
  else
    KERNEL(multiply_few_rows)(x, rows_, inputs_, weight_.data, outputs_, bias, y);
}

TileProduct DenseProducts::forward_product(const uint32_t* x, const float* bias, float* y) const {
  TileProduct product = {
      x, reinterpret_cast<const uint32_t*>(packed_data_), rows_, outputs_, inputs_, y, outputs_, bias};
  product.split = packed_.split_;
  return product;
}

void DenseProducts::forward_on_tiles(const uint32_t* x, const float* bias, float* y) const {
  KERNEL(multiply_packed_factors)(forward_product(x, bias, y));
}

void DenseProducts::forward_into_factor(const uint32_t* x, const float* bias, const ScaledColumns& scaled,
                                        uint32_t* y) const {
  KERNEL(multiply_into_factor)(forward_product(x, bias, nullptr), scaled, y);
}

void DenseProducts::backward(const float* dy, const float* x, bool accumulate, float* dx, MXTensor* first,
                             MXTensor* last) const {
  if (packed_.tiled_) {
    PackedForms of_dy = forms(), of_x = forms();
    of_dy.left = factor_scratch(kLeftSlot, rows_, outputs_);
    of_dy.transposed_left = factor_scratch(kBlockedSlot, outputs_, rows_);
    of_x.right = factor_scratch(kRightSlot, inputs_, rows_);
    KERNEL(pack_factor)(dy, rows_, outputs_, of_dy);
    KERNEL(pack_factor)(x, rows_, inputs_, of_x);
    input_gradient_on_tiles(of_dy.left, accumulate, dx);
    weight_gradients_on_tiles(of_dy.transposed_left, of_x.right, first, last);
    return;
  }
  const Factor dy_data = factor(dy, outputs_, kLeftSlot);
  multiply_input_gradient(dy_data, accumulate, dx);
  multiply_weight_gradients(dy_data, factor(x, inputs_, kRightSlot), first, last);
}

void DenseProducts::input_gradient(const float* dy, bool accumulate, float* dx) const {
  if (packed_.tiled_) {
    PackedForms of_dy = forms();
    of_dy.left = factor_scratch(kLeftSlot, rows_, outputs_);
    KERNEL(pack_factor)(dy, rows_, outputs_, of_dy);
    input_gradient_on_tiles(of_dy.left, accumulate, dx);
    return;
  }
  multiply_input_gradient(factor(dy, outputs_, kLeftSlot), accumulate, dx);
}

void DenseProducts::weight_gradients(const float* dy, const float* x, MXTensor* first, MXTensor* last) const {
  if (packed_.tiled_) {
    PackedForms of_dy = forms(), of_x = forms();
    of_dy.transposed_left = factor_scratch(kBlockedSlot, outputs_, rows_);
    of_x.right = factor_scratch(kRightSlot, inputs_, rows_);
    KERNEL(pack_factor)(dy, rows_, outputs_, of_dy);
    KERNEL(pack_factor)(x, rows_, inputs_, of_x);
    weight_gradients_on_tiles(of_dy.transposed_left, of_x.right, first, last);
    return;
  }
  multiply_weight_gradients(factor(dy, outputs_, kLeftSlot), factor(x, inputs_, kRightSlot), first, last);
}

void DenseProducts::multiply_input_gradient(const Factor& dy, bool accumulate, float* dx) const {
  multiply_parts([&](int of_dy, int of_weight, bool first) {
    multiply(row_major(rows_, outputs_), dy.part(of_dy), row_major(outputs_, inputs_),
             weight_.part(of_weight), row_major(rows_, inputs_), dx, nullptr, accumulate || !first);
  });
}

TileProduct DenseProducts::input_gradient_product(const uint32_t* dy_left, bool accumulate, float* dx) const {
  TileProduct product = {dy_left,  reinterpret_cast<const uint32_t*>(packed_data_ + packed_.forward_bytes_),
                         rows_,    inputs_,
                         outputs_, dx,
                         inputs_};
  product.accumulate = accumulate;
  product.split = packed_.split_;
  return product;
}

void DenseProducts::input_gradient_on_tiles(const uint32_t* dy_left, bool accumulate, float* dx) const {
  KERNEL(multiply_packed_factors)(input_gradient_product(dy_left, accumulate, dx));
}

void DenseProducts::input_gradient_into_factor(const uint32_t* dy_left, uint32_t* dx) const {
  KERNEL(multiply_into_factor)(input_gradient_product(dy_left, false, nullptr), {}, dx);
}

void DenseProducts::weight_gradients_on_tiles(const uint32_t* dy_transposed, const uint32_t* x_right,
                                              MXTensor* first, MXTensor* last, double* squares) const {
  std::vector<float> of_blocks;
  const auto multiply_rows = [&](int64_t begin, int64_t rows, float* gradient) {
    TileProduct product = {dy_transposed + packed_words(begin, rows_, packed_.split_),
                           x_right,
                           rows,
                           inputs_,
                           rows_,
                           gradient,
                           inputs_};
    product.split = packed_.split_;
    of_blocks.resize(squares ? blocks_of(rows, inputs_) : 0);
    product.squares = squares ? of_blocks.data() : nullptr;
    KERNEL(multiply_packed_factors)(product);
    for (const float square : of_blocks) *squares += square;
  };
  constexpr int64_t kTile = 16;
  if (std::any_of(first, last - 1, [](const MXTensor& part) { return part.shape[0] % kTile != 0; })) {
    // Not every part begins with a tile.
    float* together = static_cast<float*>(scratch(kSumSlot, outputs_ * inputs_ * sizeof(float)));
    multiply_rows(0, outputs_, together);
    distribute(together, first, last);
    return;
  }
  int64_t begin = 0;
  for (MXTensor* part = first; part != last; begin += part->shape[0], ++part)
    multiply_rows(begin, part->shape[0], floats(*part));
}

void DenseProducts::multiply_weight_gradients(const Factor& dy, const Factor& x, MXTensor* first,
                                              MXTensor* last) const {
  multiply_parts([&](int of_dy, int of_x, bool begins) {
    const float* columns = dy.part(of_dy);
    for (MXTensor* part = first; part != last; columns += part->shape[0], ++part)
      multiply(row_major_step(rows_, part->shape[0], outputs_).transposed(), columns,
               row_major(rows_, inputs_), x.part(of_x), row_major(part->shape[0], inputs_), floats(*part),
               nullptr, !begins);
  });
}

}  // namespace operators

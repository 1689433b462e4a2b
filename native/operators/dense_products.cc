#include "dense_products.h"

#include <algorithm>
#include <cstring>

#include "matmul_kernels.h"

namespace operators {
namespace {

using mxnet::ext::MXTensor;

size_t aligned(size_t bytes) {
  constexpr size_t kAlignment = 64;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

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

uint32_t* packed_scratch(Slot slot, int64_t size, int64_t depth) {
  return static_cast<uint32_t*>(scratch(slot, packed_words(size, depth) * sizeof(uint32_t)));
}

PackedWeights::PackedWeights(bool low, int weights, int64_t rows, int64_t columns)
    : low_(low),
      tiled_(low && tile_products()),
      rows_(rows),
      columns_(columns),
      stacked_(row_major(rows, columns, low ? bfloat16_storage() : Element::float32)),
      backward_(stacked_.element == Element::float32 ? stacked_ : blocked(rows, columns, stacked_.element)) {
  if (tiled_) {
    stacked_bytes_ = packed_words(rows, columns) * sizeof(uint32_t);
    backward_bytes_ = packed_words(columns, rows) * sizeof(uint32_t);
  } else {
    stacked_bytes_ = low || weights > 1 ? aligned(stacked_.bytes()) : 0;
    backward_bytes_ = backward_.order == Layout::blocked ? backward_.bytes() : 0;
  }
}

PackedForms PackedWeights::forms(void* target) const {
  char* const bytes = static_cast<char*>(target);
  PackedForms forms;
  forms.transposed_right = reinterpret_cast<uint32_t*>(bytes);
  forms.right = reinterpret_cast<uint32_t*>(bytes + stacked_bytes_);
  forms.streams = true;
  return forms;
}

void PackedWeights::pack(const Tensors& weights, void* target) const {
  char* const bytes = static_cast<char*>(target);
  if (!stacked_bytes_) {
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
    char* next = bytes;
    for (const auto& weight : weights) {
      if (low_)
        round_factor(floats(weight), weight.size(), next);
      else
        copy_floats(floats(weight), weight.size(), reinterpret_cast<float*>(next));
      next += weight.size() * bytes_of(stacked_.element);
    }
    if (backward_bytes_) reorder(stacked_, bytes, backward_, bytes + stacked_bytes_);
  }
}

DenseProducts::DenseProducts(bool low, int weights, int64_t rows, int64_t inputs, int64_t outputs,
                             const MXTensor& packed, const MXTensor& weight)
    : packed_(low, weights, outputs, inputs),
      rows_(rows),
      inputs_(inputs),
      outputs_(outputs),
      element_(packed_.stacked_.element),
      forward_weight_(packed_.stacked_bytes_ ? packed.data_ptr : weight.data_ptr),
      backward_weight_(packed_.backward_bytes_
                           ? static_cast<const char*>(packed.data_ptr) + packed_.stacked_bytes_
                           : forward_weight_) {}

// A float32 matrix as a factor: as it is, or rounded in scratch memory.
const void* DenseProducts::factor(const float* matrix, int64_t columns, Slot slot) const {
  if (!packed_.low_) return matrix;
  void* rounded = scratch(slot, rows_ * columns * bytes_of(element_));
  round_factor(matrix, rows_ * columns, rounded);
  return rounded;
}

void DenseProducts::forward(const float* x, const float* bias, float* y) const {
  if (tiled()) {
    PackedForms forms;
    forms.left = packed_scratch(kLeftSlot, rows_, inputs_);
    KERNEL(pack_factor)(x, rows_, inputs_, forms);
    forward_on_tiles(forms.left, bias, y);
    return;
  }
  multiply(row_major(rows_, inputs_, element_), factor(x, inputs_, kLeftSlot), packed_.stacked_.transposed(),
           forward_weight_, row_major(rows_, outputs_), y, bias);
}

TileProduct DenseProducts::forward_product(const uint32_t* x, const float* bias, float* y) const {
  return {x, static_cast<const uint32_t*>(forward_weight_), rows_, outputs_, inputs_, y, outputs_, bias};
}

void DenseProducts::forward_on_tiles(const uint32_t* x, const float* bias, float* y) const {
  KERNEL(multiply_packed_factors)(forward_product(x, bias, y));
}

void DenseProducts::backward(const float* dy, const float* x, bool accumulate, float* dx, MXTensor* first,
                             MXTensor* last) const {
  if (tiled()) {
    PackedForms of_dy, of_x;
    of_dy.left = packed_scratch(kLeftSlot, rows_, outputs_);
    of_dy.transposed_left = packed_scratch(kBlockedSlot, outputs_, rows_);
    of_x.right = packed_scratch(kRightSlot, inputs_, rows_);
    KERNEL(pack_factor)(dy, rows_, outputs_, of_dy);
    KERNEL(pack_factor)(x, rows_, inputs_, of_x);
    input_gradient_on_tiles(of_dy.left, accumulate, dx);
    weight_gradients_on_tiles(of_dy.transposed_left, of_x.right, first, last);
    return;
  }
  const void* dy_data = factor(dy, outputs_, kLeftSlot);
  multiply_input_gradient(dy_data, accumulate, dx);
  multiply_weight_gradients(dy_data, factor(x, inputs_, kRightSlot), first, last);
}

void DenseProducts::input_gradient(const float* dy, bool accumulate, float* dx) const {
  if (tiled()) {
    PackedForms of_dy;
    of_dy.left = packed_scratch(kLeftSlot, rows_, outputs_);
    KERNEL(pack_factor)(dy, rows_, outputs_, of_dy);
    input_gradient_on_tiles(of_dy.left, accumulate, dx);
    return;
  }
  multiply_input_gradient(factor(dy, outputs_, kLeftSlot), accumulate, dx);
}

void DenseProducts::weight_gradients(const float* dy, const float* x, MXTensor* first, MXTensor* last) const {
  if (tiled()) {
    PackedForms of_dy, of_x;
    of_dy.transposed_left = packed_scratch(kBlockedSlot, outputs_, rows_);
    of_x.right = packed_scratch(kRightSlot, inputs_, rows_);
    KERNEL(pack_factor)(dy, rows_, outputs_, of_dy);
    KERNEL(pack_factor)(x, rows_, inputs_, of_x);
    weight_gradients_on_tiles(of_dy.transposed_left, of_x.right, first, last);
    return;
  }
  multiply_weight_gradients(factor(dy, outputs_, kLeftSlot), factor(x, inputs_, kRightSlot), first, last);
}

void DenseProducts::multiply_input_gradient(const void* dy, bool accumulate, float* dx) const {
  multiply(row_major(rows_, outputs_, element_), dy, packed_.backward_, backward_weight_,
           row_major(rows_, inputs_), dx, nullptr, accumulate);
}

TileProduct DenseProducts::input_gradient_product(const uint32_t* dy_left, bool accumulate, float* dx) const {
  return {dy_left,   static_cast<const uint32_t*>(backward_weight_),
          rows_,     inputs_,
          outputs_,  dx,
          inputs_,   nullptr,
          accumulate};
}

void DenseProducts::input_gradient_on_tiles(const uint32_t* dy_left, bool accumulate, float* dx) const {
  KERNEL(multiply_packed_factors)(input_gradient_product(dy_left, accumulate, dx));
}

void DenseProducts::weight_gradients_on_tiles(const uint32_t* dy_transposed, const uint32_t* x_right,
                                              MXTensor* first, MXTensor* last) const {
  const auto multiply_rows = [&](int64_t begin, int64_t rows, float* gradient) {
    KERNEL(multiply_packed_factors)
    ({dy_transposed + packed_words(begin, rows_), x_right, rows, inputs_, rows_, gradient, inputs_});
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

void DenseProducts::multiply_weight_gradients(const void* dy, const void* x, MXTensor* first,
                                              MXTensor* last) const {
  const Layout x_plain = row_major(rows_, inputs_, element_);
  if (element_ == Element::float32) {
    const float* columns = static_cast<const float*>(dy);
    for (MXTensor* part = first; part != last; columns += part->shape[0], ++part)
      multiply(row_major_step(rows_, part->shape[0], outputs_).transposed(), columns, x_plain, x,
               row_major(part->shape[0], inputs_), floats(*part));
    return;
  }
  // One product for all weights: dy_i has gaps between its rows, for which oneDNN's fast code is not made.
  const Layout x_blocked = blocked(rows_, inputs_, element_);
  void* x_reordered = scratch(kBlockedSlot, x_blocked.bytes());
  reorder(x_plain, x, x_blocked, x_reordered);
  const bool single = last - first == 1;
  float* together =
      single ? floats(*first) : static_cast<float*>(scratch(kSumSlot, outputs_ * inputs_ * sizeof(float)));
  multiply(row_major(rows_, outputs_, element_).transposed(), dy, x_blocked, x_reordered,
           row_major(outputs_, inputs_), together);
  if (!single) distribute(together, first, last);
}

}  // namespace operators

// Dense layers that read the same input: the products forward, and of the gradients backward.
//
// bert_pack(weight_1 (N_1, K), ..., weight_n (N_n, K); num_weights=n, dtype) -> packed (bytes,) uint8: the
// weights, stacked to (N, K), as bert_dense wants them. To be done again whenever the weights change. A single
// weight in float32 is taken as it is: `packed` is then one byte that nothing reads.
//
// bert_dense(x (..., K), weight_1, ..., weight_n, [bias_1 (N_1), ..., bias_n (N_n),] packed;
//            num_weights=n, bias=0|1, dtype)
//   -> (..., N) = x [weight_1; ...; weight_n]^T + [bias_1; ...; bias_n]
//
// All arrays are float32. With dtype="float32" so are the products. With dtype="bfloat16" both factors of
// each of the three products (output, gradients of x and of the weights) are rounded to bfloat16, their sums
// are float32.
#include <algorithm>
#include <cstring>
#include <utility>

#include "matmul.h"
#include "matmul_kernels.h"
#include "operator.h"
#include "tile_product_kernels.h"

namespace operators {
namespace {

int count(const Attributes& attributes) {
  const int weights = integer(attributes, "num_weights");
  require(weights >= 1, "num_weights is at least 1");
  return weights;
}

void copy(const float* source, int64_t size, float* target) {
  constexpr int64_t kBlock = 1 << 14;
#pragma omp parallel for
  for (int64_t start = 0; start < size; start += kBlock)
    std::memcpy(target + start, source + start, std::min(kBlock, size - start) * sizeof(float));
}

// N and K of the stacked weights in->at(first), ...
std::pair<int64_t, int64_t> stacked(const Shapes& in, int first, int weights) {
  int64_t rows = 0;
  const size_t inputs = in.at(first).size() == 2 ? in[first][1] : 0;
  for (int i = first; i < first + weights; i++) {
    require(in.at(i).size() == 2 && in[i][0] > 0 && in[i][1] > 0,
            "the weights have the shape (outputs, inputs)");
    require(in[i][1] == inputs, "the weights have different numbers of inputs");
    rows += in[i][0];
  }
  return {rows, inputs};
}

size_t aligned(size_t bytes) {
  constexpr size_t kAlignment = 64;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// What stands in `packed`: the stacked weights W (N, K) as the product forward wants them, then as the one
// backward does.
//   On tiles: W^T and W as packed right factors.
//   Otherwise W row by row, in bfloat16 rounded (a single float32 weight is used itself); where bfloat16 is
//   stored as such, also the layout that the product backward likes best. In float32 oneDNN's product is as
//   fast without.
struct Packed {
  bool tiled;
  int64_t rows, columns;
  Layout stacked, backward;
  size_t stacked_bytes, backward_bytes;

  Packed(bool low, int weights, int64_t rows, int64_t columns)
      : tiled(low && tile_products()),
        rows(rows),
        columns(columns),
        stacked(row_major(rows, columns, low ? bfloat16_storage() : Element::float32)),
        backward(stacked.element == Element::float32 ? stacked : blocked(rows, columns, stacked.element)) {
    if (tiled) {
      stacked_bytes = packed_words(rows, columns) * sizeof(uint32_t);
      backward_bytes = packed_words(columns, rows) * sizeof(uint32_t);
    } else {
      stacked_bytes = low || weights > 1 ? aligned(stacked.bytes()) : 0;
      backward_bytes = backward.order == Layout::blocked ? backward.bytes() : 0;
    }
  }

  // MXNet knows no arrays without elements.
  size_t bytes() const { return std::max<size_t>(1, stacked_bytes + backward_bytes); }

  const void* stacked_data(const mxnet::ext::MXTensor& packed, const mxnet::ext::MXTensor& weight) const {
    return stacked_bytes ? packed.data_ptr : weight.data_ptr;
  }
  const void* backward_data(const mxnet::ext::MXTensor& packed, const mxnet::ext::MXTensor& weight) const {
    return backward_bytes ? static_cast<const char*>(packed.data_ptr) + stacked_bytes
                          : stacked_data(packed, weight);
  }

  void fill(const Tensors& weights, bool low, char* target) const {
    if (tiled) {
      const float* matrix = floats(weights.at(0));
      if (weights.size() > 1) {
        float* together = static_cast<float*>(scratch(kSumSlot, rows * columns * sizeof(float)));
        matrix = together;
        for (const auto& weight : weights) {
          copy(floats(weight), weight.size(), together);
          together += weight.size();
        }
      }
      PackedForms forms;
      forms.transposed_right = reinterpret_cast<uint32_t*>(target);
      forms.right = reinterpret_cast<uint32_t*>(target + stacked_bytes);
      KERNEL(pack_factor)(matrix, rows, columns, forms);
      return;
    }
    char* next = target;
    for (const auto& weight : weights) {
      if (low)
        round_factor(floats(weight), weight.size(), next);
      else
        copy(floats(weight), weight.size(), reinterpret_cast<float*>(next));
      next += weight.size() * bytes_of(stacked.element);
    }
    if (backward_bytes) reorder(stacked, target, backward, target + stacked_bytes);
  }
};

MXReturnValue pack_attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_pack", [&] {
    low_precision(attributes);
    *inputs = count(attributes);
    *outputs = 1;
  });
}

MXReturnValue pack_shapes(const Attributes& attributes, Shapes* in, Shapes* out) {
  return guarded("bert_pack", [&] {
    const auto [rows, columns] = stacked(*in, 0, count(attributes));
    const Packed packed(low_precision(attributes), count(attributes), rows, columns);
    out->at(0) = {static_cast<unsigned>(packed.bytes())};
  });
}

MXReturnValue pack_types(const Attributes&, Types* in, Types* out) {
  in->assign(in->size(), mxnet::ext::kFloat32);
  out->assign(1, mxnet::ext::kUint8);
  return MX_SUCCESS;
}

MXReturnValue pack(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_pack", [&] {
    const int64_t columns = in->at(0).shape.at(1);
    int64_t rows = 0;
    for (const auto& weight : *in) rows += weight.shape.at(0);
    const bool low = low_precision(attributes);
    const Packed packed(low, in->size(), rows, columns);
    char* target = static_cast<char*>(out->at(0).data_ptr);
    if (packed.stacked_bytes)
      packed.fill(*in, low, target);
    else
      *target = 0;
  });
}

MXReturnValue attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_dense", [&] {
    low_precision(attributes);
    const int bias = integer(attributes, "bias");
    require(bias == 0 || bias == 1, "bias is 0 or 1");
    *inputs = 2 + (1 + bias) * count(attributes);
    *outputs = 1;
  });
}

MXReturnValue shapes(const Attributes& attributes, Shapes* in, Shapes* out) {
  return guarded("bert_dense", [&] {
    const int weights = count(attributes);
    const auto [rows, columns] = stacked(*in, 1, weights);
    require(!in->at(0).empty() && in->at(0).back() == columns,
            "x and the weights disagree about the last axis");
    if (integer(attributes, "bias"))
      for (int i = 1; i <= weights; i++) in->at(i + weights) = {in->at(i)[0]};
    const Packed packed(low_precision(attributes), weights, rows, columns);
    in->back() = {static_cast<unsigned>(packed.bytes())};
    out->at(0) = in->at(0);
    out->at(0).back() = rows;
  });
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  in->assign(in->size(), mxnet::ext::kFloat32);
  in->back() = mxnet::ext::kUint8;
  out->assign(1, mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

// What forward and backward have in common.
struct Layer {
  int weights;
  bool bias, low;
  int64_t rows, inputs, outputs;  // M, K and N
  Element element;                // of the factors

  Layer(const Attributes& attributes, const mxnet::ext::MXTensor& x, const mxnet::ext::MXTensor& y)
      : weights(count(attributes)), bias(integer(attributes, "bias")), low(low_precision(attributes)) {
    inputs = x.shape.back();
    outputs = y.shape.back();
    rows = x.size() / inputs;
    element = low ? bfloat16_storage() : Element::float32;
  }

  // A float32 matrix as a factor: as it is, or rounded in scratch memory.
  const void* factor(const float* matrix, int64_t columns, Slot slot) const {
    if (!low) return matrix;
    void* rounded = scratch(slot, rows * columns * bytes_of(element));
    round_factor(matrix, rows * columns, rounded);
    return rounded;
  }
};

uint32_t* packed_scratch(Slot slot, int64_t size, int64_t depth) {
  return static_cast<uint32_t*>(scratch(slot, packed_words(size, depth) * sizeof(uint32_t)));
}

MXReturnValue forward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_dense", [&] {
    const Layer layer(attributes, in->at(0), out->at(0));
    if (layer.rows == 0) return;
    const float* bias = layer.bias ? floats(in->at(1 + layer.weights)) : nullptr;
    if (layer.bias && layer.weights > 1) {
      float* stacked = static_cast<float*>(scratch(kBiasSlot, layer.outputs * sizeof(float)));
      bias = stacked;
      for (int i = 1 + layer.weights; i <= 2 * layer.weights; i++)
        stacked = std::copy_n(floats(in->at(i)), in->at(i).size(), stacked);
    }
    const Packed packed(layer.low, layer.weights, layer.outputs, layer.inputs);
    if (packed.tiled) {
      PackedForms x;
      x.left = packed_scratch(kLeftSlot, layer.rows, layer.inputs);
      KERNEL(pack_factor)(floats(in->at(0)), layer.rows, layer.inputs, x);
      KERNEL(multiply_packed_factors)
      ({x.left, static_cast<const uint32_t*>(in->back().data_ptr), layer.rows, layer.outputs, layer.inputs,
        floats(out->at(0)), layer.outputs, bias});
      return;
    }
    const Layout x = row_major(layer.rows, layer.inputs, layer.element);
    const void* x_data = layer.factor(floats(in->at(0)), layer.inputs, kLeftSlot);
    multiply(x, x_data, packed.stacked.transposed(), packed.stacked_data(in->back(), in->at(1)),
             row_major(layer.rows, layer.outputs), floats(out->at(0)), bias);
  });
}

// d_weight_i = dy_i^T x, where dy_i are some columns of dy. out: the gradients of x and the weights.
void weight_gradients(const Layer& layer, const void* dy, const void* x, Tensors* out) {
  const Layout x_plain = row_major(layer.rows, layer.inputs, layer.element);
  if (layer.element == Element::float32) {
    const float* columns = static_cast<const float*>(dy);
    for (int i = 1; i <= layer.weights; i++) {
      const int64_t outputs = out->at(i).shape[0];
      multiply(row_major_step(layer.rows, outputs, layer.outputs).transposed(), columns, x_plain, x,
               row_major(outputs, layer.inputs), floats(out->at(i)));
      columns += outputs;
    }
    return;
  }
  // One product for all weights: dy_i has gaps between its rows, for which oneDNN's fast code is not made.
  const Layout x_blocked = blocked(layer.rows, layer.inputs, layer.element);
  void* x_reordered = scratch(kBlockedSlot, x_blocked.bytes());
  reorder(x_plain, x, x_blocked, x_reordered);
  const size_t bytes = layer.outputs * layer.inputs * sizeof(float);
  float* d_weight = layer.weights == 1 ? floats(out->at(1)) : static_cast<float*>(scratch(kSumSlot, bytes));
  multiply(row_major(layer.rows, layer.outputs, layer.element).transposed(), dy, x_blocked, x_reordered,
           row_major(layer.outputs, layer.inputs), d_weight);
  for (int i = 1; layer.weights > 1 && i <= layer.weights; i++) {
    copy(d_weight, out->at(i).size(), floats(out->at(i)));
    d_weight += out->at(i).size();
  }
}

// The gradients of x and of the weights by products on tiles.
void backward_on_tiles(const Layer& layer, const float* dy, const float* x, const uint32_t* weight,
                       Tensors* out) {
  PackedForms dy_forms, x_forms;
  dy_forms.left = packed_scratch(kLeftSlot, layer.rows, layer.outputs);
  dy_forms.transposed_left = packed_scratch(kBlockedSlot, layer.outputs, layer.rows);
  x_forms.right = packed_scratch(kRightSlot, layer.inputs, layer.rows);
  KERNEL(pack_factor)(dy, layer.rows, layer.outputs, dy_forms);
  KERNEL(pack_factor)(x, layer.rows, layer.inputs, x_forms);
  KERNEL(multiply_packed_factors)
  ({dy_forms.left, weight, layer.rows, layer.inputs, layer.outputs, floats(out->at(0)), layer.inputs});
  bool whole = true;  // every weight's rows begin with a tile
  for (int i = 1; i < layer.weights; i++) whole = whole && out->at(i).shape[0] % 16 == 0;
  const auto multiply_rows = [&](int64_t first, int64_t rows, float* gradient) {
    KERNEL(multiply_packed_factors)
    ({dy_forms.transposed_left + packed_words(first, layer.rows), x_forms.right, rows, layer.inputs, layer.rows,
      gradient, layer.inputs});
  };
  float* together = nullptr;
  if (!whole) {
    together = static_cast<float*>(scratch(kSumSlot, layer.outputs * layer.inputs * sizeof(float)));
    multiply_rows(0, layer.outputs, together);
  }
  int64_t first = 0;
  for (int i = 1; i <= layer.weights; i++) {
    const int64_t rows = out->at(i).shape[0];
    if (whole)
      multiply_rows(first, rows, floats(out->at(i)));
    else
      copy(together + first * layer.inputs, rows * layer.inputs, floats(out->at(i)));
    first += rows;
  }
}

// inputs: gradient of the output, the inputs, the output; outputs: gradients of the inputs. That of `packed`
// stays as it is: the weights' own are the whole gradient.
MXReturnValue backward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_dense", [&] {
    const auto &dy = in->at(0), &x = in->at(1);
    const Layer layer(attributes, x, dy);
    if (layer.rows == 0) {
      for (auto gradient = out->begin(); gradient != out->end() - 1; ++gradient)
        std::memset(gradient->data_ptr, 0, gradient->size() * sizeof(float));
      return;
    }
    const Packed packed(layer.low, layer.weights, layer.outputs, layer.inputs);
    const void* weight = packed.backward_data(in->at(in->size() - 2), in->at(2));
    if (packed.tiled) {
      backward_on_tiles(layer, floats(dy), floats(x), static_cast<const uint32_t*>(weight), out);
    } else {
      const void* dy_data = layer.factor(floats(dy), layer.outputs, kLeftSlot);
      const void* x_data = layer.factor(floats(x), layer.inputs, kRightSlot);
      multiply(row_major(layer.rows, layer.outputs, layer.element), dy_data, packed.backward, weight,
               row_major(layer.rows, layer.inputs), floats(out->at(0)));
      weight_gradients(layer, dy_data, x_data, out);
    }
    if (!layer.bias) return;
    float* sums = static_cast<float*>(scratch(kBiasSlot, layer.outputs * sizeof(float)));
    KERNEL(column_sums)(floats(dy), layer.rows, layer.outputs, sums);
    for (int i = 1; i <= layer.weights; i++) {
      auto& d_bias = out->at(i + layer.weights);
      std::copy_n(sums, d_bias.size(), floats(d_bias));
      sums += d_bias.size();
    }
  });
}

REGISTER_OP(bert_pack)
    .setParseAttrs(pack_attributes)
    .setInferType(pack_types)
    .setInferShape(pack_shapes)
    .setForward(pack, "cpu");

REGISTER_OP(bert_dense)
    .setParseAttrs(attributes)
    .setInferType(types)
    .setInferShape(shapes)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu");

}  // namespace
}  // namespace operators

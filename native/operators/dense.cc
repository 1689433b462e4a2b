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

// What stands in `packed`: the stacked weights (N, K) row by row, in bfloat16 rounded; a single float32
// weight is used itself. Where bfloat16 is stored as such, also the layout that the product backward likes
// best. In float32 oneDNN's product is as fast without.
struct Packed {
  Layout stacked, backward;
  size_t stacked_bytes, backward_bytes;

  Packed(bool low, int weights, int64_t rows, int64_t columns)
      : stacked(row_major(rows, columns, low ? bfloat16_storage() : Element::float32)),
        backward(stacked.element == Element::float32 ? stacked : blocked(rows, columns, stacked.element)),
        stacked_bytes(low || weights > 1 ? (stacked.bytes() + kAlignment - 1) / kAlignment * kAlignment : 0),
        backward_bytes(backward.order == Layout::blocked ? backward.bytes() : 0) {}

  // MXNet knows no arrays without elements.
  size_t bytes() const { return std::max<size_t>(1, stacked_bytes + backward_bytes); }

  const void* stacked_data(const mxnet::ext::MXTensor& packed, const mxnet::ext::MXTensor& weight) const {
    return stacked_bytes ? packed.data_ptr : weight.data_ptr;
  }
  const void* backward_data(const mxnet::ext::MXTensor& packed, const mxnet::ext::MXTensor& weight) const {
    return backward_bytes ? static_cast<const char*>(packed.data_ptr) + stacked_bytes
                          : stacked_data(packed, weight);
  }

 private:
  static constexpr size_t kAlignment = 64;
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
    if (!packed.stacked_bytes) {
      *target = 0;
      return;
    }
    char* next = target;
    for (const auto& weight : *in) {
      if (low)
        round_factor(floats(weight), weight.size(), next);
      else
        copy(floats(weight), weight.size(), reinterpret_cast<float*>(next));
      next += weight.size() * bytes_of(packed.stacked.element);
    }
    if (packed.backward_bytes)
      reorder(packed.stacked, target, packed.backward, target + packed.stacked_bytes);
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

MXReturnValue forward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_dense", [&] {
    const Layer layer(attributes, in->at(0), out->at(0));
    if (layer.rows == 0) return;
    const Layout x = row_major(layer.rows, layer.inputs, layer.element);
    const void* x_data = layer.factor(floats(in->at(0)), layer.inputs, kLeftSlot);
    const float* bias = layer.bias ? floats(in->at(1 + layer.weights)) : nullptr;
    if (layer.bias && layer.weights > 1) {
      float* stacked = static_cast<float*>(scratch(kBiasSlot, layer.outputs * sizeof(float)));
      bias = stacked;
      for (int i = 1 + layer.weights; i <= 2 * layer.weights; i++)
        stacked = std::copy_n(floats(in->at(i)), in->at(i).size(), stacked);
    }
    const Packed packed(layer.low, layer.weights, layer.outputs, layer.inputs);
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
    const void* dy_data = layer.factor(floats(dy), layer.outputs, kLeftSlot);
    const void* x_data = layer.factor(floats(x), layer.inputs, kRightSlot);
    const Packed packed(layer.low, layer.weights, layer.outputs, layer.inputs);
    multiply(row_major(layer.rows, layer.outputs, layer.element), dy_data, packed.backward,
             packed.backward_data(in->at(in->size() - 2), in->at(2)), row_major(layer.rows, layer.inputs),
             floats(out->at(0)));
    weight_gradients(layer, dy_data, x_data, out);
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

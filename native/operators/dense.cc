// Dense layers that read the same input: the products forward, and of the gradients backward.
//
// bert_pack(weight_1 (N_1, K), ..., weight_n (N_n, K); num_weights=n, dtype) -> packed (bytes,) uint8: the
// weights, stacked to (N, K), as bert_dense wants them. To be done again whenever the weights change. A
// single weight in float32 is taken as it is: `packed` is then one byte that nothing reads.
//
// bert_dense(x (..., K), weight_1, ..., weight_n, [bias_1 (N_1), ..., bias_n (N_n),] packed;
//            num_weights=n, bias=0|1, dtype)
//   -> (..., N) = x [weight_1; ...; weight_n]^T + [bias_1; ...; bias_n]
//
// All arrays are float32. With dtype="float32" so are the products. With dtype="bfloat16" both factors of
// each of the three products (output, gradients of x and of the weights) are rounded to bfloat16, their sums
// are float32. With dtype="bfloat16x3" each of the three is a sum of three products of bfloat16 (Precision in
// matmul.h).
#include <cstring>
#include <utility>

#include "dense_products.h"
#include "operator.h"

namespace operators {
namespace {

int count(const Attributes& attributes) {
  const int weights = integer(attributes, "num_weights");
  require(weights >= 1, "num_weights is at least 1");
  return weights;
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

MXReturnValue pack_attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_pack", [&] {
    precision(attributes);
    *inputs = count(attributes);
    *outputs = 1;
  });
}

MXReturnValue pack_shapes(const Attributes& attributes, Shapes* in, Shapes* out) {
  return guarded("bert_pack", [&] {
    const auto [rows, columns] = stacked(*in, 0, count(attributes));
    const PackedWeights packed(precision(attributes), count(attributes), rows, columns);
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
    int64_t rows = 0;
    for (const auto& weight : *in) rows += weight.shape.at(0);
    const PackedWeights packed(precision(attributes), in->size(), rows, in->at(0).shape.at(1));
    packed.pack(*in, out->at(0).data_ptr);
  });
}

MXReturnValue attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_dense", [&] {
    precision(attributes);
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
    const PackedWeights packed(precision(attributes), weights, rows, columns);
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
  bool bias;
  int64_t rows, inputs, outputs;  // M, K and N

  Layer(const Attributes& attributes, const mxnet::ext::MXTensor& x, const mxnet::ext::MXTensor& y)
      : weights(count(attributes)),
        bias(integer(attributes, "bias")),
        rows(x.size() / x.shape.back()),
        inputs(x.shape.back()),
        outputs(y.shape.back()) {}

  // weight: the first one.
  DenseProducts products(const Attributes& attributes, const mxnet::ext::MXTensor& packed,
                         const mxnet::ext::MXTensor& weight) const {
    return DenseProducts(precision(attributes), weights, rows, inputs, outputs, packed, weight);
  }
};

MXReturnValue forward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_dense", [&] {
    const Layer layer(attributes, in->at(0), out->at(0));
    if (layer.rows == 0) return;
    const mxnet::ext::MXTensor* biases = in->data() + 1 + layer.weights;
    const float* bias = layer.bias ? stacked_biases(biases, biases + layer.weights) : nullptr;
    layer.products(attributes, in->back(), in->at(1)).forward(floats(in->at(0)), bias, floats(out->at(0)));
  });
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
    mxnet::ext::MXTensor* d_weights = out->data() + 1;
    layer.products(attributes, in->at(in->size() - 2), in->at(2))
        .backward(floats(dy), floats(x), false, floats(out->at(0)), d_weights, d_weights + layer.weights);
    mxnet::ext::MXTensor* d_biases = d_weights + layer.weights;
    if (layer.bias) bias_gradients(floats(dy), layer.rows, d_biases, d_biases + layer.weights);
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

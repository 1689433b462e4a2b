// bert_muon(weight_1..n, gradient_1..n, mean_1..n) -> norms (n,): one update of n float32 matrices in place by Muon
// (training/optimizer/muon.py has the formulas). Weights and means are changed; norms are those of the momentums u.
//
// Attributes: num_matrices; lr, rescale, momentum, weight_decay, factor.
//
// u is divided by its norm; then kIterations times x = a x + (b A + c A^2) x with A = x x^T, or with A = x^T x from
// the right where that is smaller. Each singular value s becomes a s + b s^3 + c s^5 so. The factors of all products
// are rounded to bfloat16 and their sums are float32: the coefficients are chosen for speed and leave the singular
// values between 0.7 and 1.2, beside which that is little. The results are the same for any number of threads.
#include <cmath>

#include "dense_products.h"
#include "matmul_kernels.h"
#include "operator.h"

namespace operators {
namespace {

constexpr int kIterations = 5;
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;

float* floats_in(Slot slot, int64_t count) { return static_cast<float*>(scratch(slot, count * sizeof(float))); }

// target = factor * source; they may be the same.
void scale(float factor, const float* source, int64_t size, float* target) {
#pragma omp parallel for simd
  for (int64_t i = 0; i < size; i++) target[i] = factor * source[i];
}

// A matrix x (rows, columns); `small` is the smaller number of the two. Products are added to what is there, and so
// go through the caches, where the next one finds them.
struct Iteration {
  int64_t rows, columns, small, large;
  bool tall;
  float *gram, *polynomial;

  Iteration(int64_t rows, int64_t columns)
      : rows(rows),
        columns(columns),
        small(std::min(rows, columns)),
        large(std::max(rows, columns)),
        tall(rows > columns),
        gram(floats_in(kSumSlot, small * small)),
        polynomial(floats_in(kGradientSlot, small * small)) {}

  void operator()(float* x) const {
    std::fill_n(gram, small * small, 0.f);
    if (tile_products())
      on_tiles(x);
    else
      plain(x);
  }

  // In float32 of rounded numbers.
  void plain(float* x) const {
    const Layout whole = row_major(rows, columns), square = row_major(small, small);
    float* const factor = floats_in(kLeftSlot, rows * columns);
    float *const left = floats_in(kRightSlot, small * small), *const right = floats_in(kBlockedSlot, small * small);
    KERNEL(round_within_float)(x, factor, rows * columns);
    multiply(tall ? whole.transposed() : whole, factor, tall ? whole : whole.transposed(), factor, square, gram);
    scale(kC, gram, small * small, polynomial);
    KERNEL(round_within_float)(polynomial, left, small * small);
    KERNEL(round_within_float)(gram, right, small * small);
    scale(kB, gram, small * small, polynomial);
    multiply(square, left, square, right, square, polynomial, nullptr, true);
    KERNEL(round_within_float)(polynomial, left, small * small);
    scale(kA, x, rows * columns, x);
    multiply(tall ? whole : square, tall ? factor : left, tall ? square : whole, tall ? left : factor, whole, x,
             nullptr, true);
  }

  // The same on tiles: x is packed once, as three factors.
  void on_tiles(float* x) const {
    uint32_t* const left = packed_scratch(kLeftSlot, small, large);
    uint32_t* const right = packed_scratch(kRightSlot, small, large);
    uint32_t* const again = packed_scratch(kBlockedSlot, large, small);
    PackedForms of_x, first, second, last;
    (tall ? of_x.transposed_left : of_x.left) = first.left = left;
    (tall ? of_x.right : of_x.transposed_right) = second.right = right;
    (tall ? of_x.left : of_x.right) = again;
    (tall ? last.right : last.left) = left;
    const auto multiply = [](const uint32_t* one, const uint32_t* other, int64_t M, int64_t N, int64_t K, float* to) {
      KERNEL(multiply_packed_factors)({one, other, M, N, K, to, N, nullptr, true});
    };
    KERNEL(pack_factor)(x, rows, columns, of_x);
    multiply(left, right, small, small, large, gram);
    scale(kC, gram, small * small, polynomial);
    KERNEL(pack_factor)(polynomial, small, small, first);
    KERNEL(pack_factor)(gram, small, small, second);
    scale(kB, gram, small * small, polynomial);
    multiply(left, right, small, small, small, polynomial);
    KERNEL(pack_factor)(polynomial, small, small, last);
    scale(kA, x, rows * columns, x);
    multiply(tall ? again : left, tall ? left : again, rows, columns, small, x);
  }
};

MXReturnValue attributes(const Attributes& given, int* inputs, int* outputs) {
  return guarded("bert_muon", [&] {
    const int count = integer(given, "num_matrices");
    require(count > 0, "num_matrices must be at least 1");
    *inputs = 3 * count;
    *outputs = 1;
  });
}

MXReturnValue mutated(const Attributes& given, std::vector<int>* indices) {
  return guarded("bert_muon", [&] {
    const int count = integer(given, "num_matrices");
    for (int i = 0; i < 3 * count; i++)
      if (i / count != 1) indices->push_back(i);
  });
}

MXReturnValue shapes(const Attributes& given, Shapes* in, Shapes* out) {
  return guarded("bert_muon", [&] {
    const size_t count = integer(given, "num_matrices");
    for (size_t i = 0; i < 3 * count; i++) {
      require(in->at(i).size() == 2, "weights must have two axes");
      require(in->at(i) == in->at(i % count), "a matrix's weight, gradient and mean differ in shape");
    }
    out->at(0) = {static_cast<unsigned int>(count)};
  });
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  return guarded("bert_muon", [&] {
    for (const int type : *in) require(type == mxnet::ext::kFloat32, "all inputs must be float32");
    out->assign(1, mxnet::ext::kFloat32);
  });
}

struct Rule {
  float lr, rescale, momentum, weight_decay, factor;
};

// Updates a matrix; returns the norm of u.
float update(const Rule& rule, mxnet::ext::MXTensor& of_weight, const float* gradient, float* mean) {
  const int64_t rows = of_weight.shape[0], columns = of_weight.shape[1], size = rows * columns;
  float *const weight = floats(of_weight), *const x = floats_in(kOuterSlot, size);
#pragma omp parallel for simd
  for (int64_t i = 0; i < size; i++) {
    mean[i] = rule.momentum * mean[i] + rule.rescale * gradient[i];
    x[i] = rule.momentum * mean[i] + rule.rescale * gradient[i];
  }
  mxnet::ext::MXTensor u = of_weight;
  u.data_ptr = x;
  const double norm = std::sqrt(sum_of_squares(&u, &u + 1));
  scale(norm > 0 ? static_cast<float>(1 / norm) : 0.f, x, size, x);
  const Iteration iterate(rows, columns);
  for (int i = 0; i < kIterations; i++) iterate(x);
  const float kept = 1 - rule.lr * rule.weight_decay;
  const float step = rule.lr * rule.factor * std::sqrt(static_cast<float>(std::max(rows, columns)));
#pragma omp parallel for simd
  for (int64_t i = 0; i < size; i++) weight[i] = kept * weight[i] - step * x[i];
  return norm;
}

MXReturnValue forward(const Attributes& given, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_muon", [&] {
    const auto read = [&](const char* name) { return static_cast<float>(number(given, name)); };
    const Rule rule = {read("lr"), read("rescale"), read("momentum"), read("weight_decay"), read("factor")};
    const size_t count = in->size() / 3;
    for (size_t i = 0; i < count; i++)
      floats(out->at(0))[i] = update(rule, in->at(i), floats(in->at(count + i)), floats(in->at(2 * count + i)));
  });
}

REGISTER_OP(bert_muon)
    .setParseAttrs(attributes)
    .setInferType(types)
    .setInferShape(shapes)
    .setMutateInputs(mutated)
    .setForward(forward, "cpu");

}  // namespace
}  // namespace operators

// bert_global_norm(tensor_1, ..., tensor_n; num_tensors=n) -> (1,): the L2 norm over all elements of all
// tensors, float32. Squares are taken and added in float64, so that only a norm beyond float32 itself becomes
// infinite. A NaN or an infinity anywhere makes the norm NaN or infinite. The result does not depend on the
// number of threads.
#include <cmath>

#include "dense_products.h"
#include "operator.h"

namespace operators {
namespace {

MXReturnValue attributes(const Attributes& given, int* inputs, int* outputs) {
  return guarded("bert_global_norm", [&] {
    *inputs = integer(given, "num_tensors");
    *outputs = 1;
    require(*inputs > 0, "num_tensors must be at least 1");
  });
}

MXReturnValue shapes(const Attributes&, Shapes*, Shapes* out) {
  out->at(0) = {1};
  return MX_SUCCESS;
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  return guarded("bert_global_norm", [&] {
    for (const int type : *in) require(type == mxnet::ext::kFloat32, "the tensors must be float32");
    out->assign(1, mxnet::ext::kFloat32);
  });
}

MXReturnValue forward(const Attributes&, Tensors* in, Tensors* out, const OpResource&) {
  floats(out->at(0))[0] = static_cast<float>(std::sqrt(sum_of_squares(in->data(), in->data() + in->size())));
  return MX_SUCCESS;
}

REGISTER_OP(bert_global_norm)
    .setParseAttrs(attributes)
    .setInferType(types)
    .setInferShape(shapes)
    .setForward(forward, "cpu");

}  // namespace
}  // namespace operators

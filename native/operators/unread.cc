// bert_unread(x (1), output_1, ..., output_n; outputs=n) -> x
//
// Takes outputs that operators keep for their own backward passes. MXNet fills zeros for the gradient of an
// output that nothing is made of, as many as it has elements, which costs as much as writing the output.
// This operator leaves the gradients of output_1, ..., output_n as they are, not initialised: their operators
// do not read them. To be in the backward pass, what it returns takes the place of x in the operator that
// comes next: of the mode of a layer, or of the sum of losses. All are float32.
#include "operator.h"

namespace operators {
namespace {

MXReturnValue attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_unread", [&] {
    const int unread = integer(attributes, "outputs");
    require(unread >= 1, "outputs is at least 1");
    *inputs = 1 + unread;
    *outputs = 1;
  });
}

MXReturnValue shapes(const Attributes&, Shapes* in, Shapes* out) {
  in->at(0) = out->at(0) = {1};
  return MX_SUCCESS;
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  in->assign(in->size(), mxnet::ext::kFloat32);
  out->assign(1, mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

MXReturnValue forward(const Attributes&, Tensors* in, Tensors* out, const OpResource&) {
  *floats(out->at(0)) = *floats(in->at(0));
  return MX_SUCCESS;
}

MXReturnValue backward(const Attributes&, Tensors* in, Tensors* out, const OpResource&) {
  *floats(out->at(0)) = *floats(in->at(0));
  return MX_SUCCESS;
}

REGISTER_OP(bert_unread)
    .setParseAttrs(attributes)
    .setInferType(types)
    .setInferShape(shapes)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu");

}  // namespace
}  // namespace operators

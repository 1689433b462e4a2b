// bert_unread(x (1), output_1, ..., output_n; outputs=n, copies=1) -> x, as many times as `copies` says
//
// Takes outputs that operators keep for their own backward passes. MXNet fills zeros for the gradient of an
// output that nothing is made of, as many as it has elements, which costs as much as writing the output.
// This operator leaves the gradients of output_1, ..., output_n as they are, not initialised: their operators
// do not read them. To be in the backward pass, what it returns takes the place of x in the operator that
// comes next: of the mode of a layer, or of the sum of losses. All are float32. The gradient of x is the sum
// of those of its copies: MXNet would add up those of one copy that two operators use by an operator of its
// own.
#include "operator.h"

namespace operators {
namespace {

int copies_of(const Attributes& attributes) {
  const int copies = attributes.count("copies") ? integer(attributes, "copies") : 1;
  require(copies >= 1, "copies is at least 1");
  return copies;
}

MXReturnValue attributes(const Attributes& attributes, int* inputs, int* outputs) {
  return guarded("bert_unread", [&] {
    const int unread = integer(attributes, "outputs");
    require(unread >= 1, "outputs is at least 1");
    *inputs = 1 + unread;
    *outputs = copies_of(attributes);
  });
}

MXReturnValue shapes(const Attributes&, Shapes* in, Shapes* out) {
  in->at(0) = {1};
  for (auto& copy : *out) copy = {1};
  return MX_SUCCESS;
}

MXReturnValue types(const Attributes&, Types* in, Types* out) {
  in->assign(in->size(), mxnet::ext::kFloat32);
  out->assign(out->size(), mxnet::ext::kFloat32);
  return MX_SUCCESS;
}

MXReturnValue forward(const Attributes&, Tensors* in, Tensors* out, const OpResource&) {
  for (auto& copy : *out) *floats(copy) = *floats(in->at(0));
  return MX_SUCCESS;
}

// inputs: gradients of the copies, the inputs, the copies; outputs: gradients of the inputs.
MXReturnValue backward(const Attributes& attributes, Tensors* in, Tensors* out, const OpResource&) {
  return guarded("bert_unread's gradient", [&] {
    float sum = 0;
    for (int copy = 0; copy < copies_of(attributes); copy++) sum += *floats(in->at(copy));
    *floats(out->at(0)) = sum;
  });
}

REGISTER_OP(bert_unread)
    .setParseAttrs(attributes)
    .setInferType(types)
    .setInferShape(shapes)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu");

}  // namespace
}  // namespace operators

// What an operator with dropout decides once a call.
#pragma once

#include <cstdint>

#include "operator.h"

namespace operators {

// The decisions' key (dropout.h), and the rate in steps of 2^-16: an element is dropped whose 16 random bits are
// below `threshold`, and otherwise multiplied by `scale`, which makes up for those. threshold = 0: nothing is
// dropped.
struct Dropout {
  uint64_t key = 0;
  uint32_t threshold = 0;
  float scale = 1;
};

// The attribute `dropout`. Throws std::runtime_error outside [0, 1 - 2^-17), from where on all would be
// dropped.
double dropout_rate(const Attributes& attributes);

// Forward: draws a key and saves its bits in `saved` (2 floats) for the backward pass. `mode` is 1 in predict
// mode, which drops nothing.
Dropout choose_dropout(const Attributes& attributes, const mxnet::ext::MXTensor& mode,
                       const OpResource& resource, mxnet::ext::MXTensor* saved);

// Backward: the same choice again.
Dropout chosen_dropout(const Attributes& attributes, const mxnet::ext::MXTensor& mode,
                       const mxnet::ext::MXTensor& saved);

}  // namespace operators

// What attention's operators tell its kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_kernels.h"
#include "operator.h"

namespace operators {

// The sequences of x (B, L, ...) with lengths (B), or of x (T, ...) with places (T, 2) in their stead.
std::vector<Sequence> attended_sequences(const mxnet::ext::MXTensor& x, const mxnet::ext::MXTensor& lengths);

// All but the dropout. `sequences` must outlive it; units: all heads' columns of the context.
Attention attention_shape(const Attributes& attributes, int64_t units,
                          const std::vector<Sequence>& sequences);

// Fills the rows behind the last sequence, which belong to none, of a matrix with `size` elements.
void zero_rows_behind(const std::vector<Sequence>& sequences, int64_t size, int64_t columns, float* matrix);

}  // namespace operators

// Where sequences lie in the rows of a matrix: padded to one length, or packed end to end.
//
// Packed, places (T, 2) int32 has for each of the T rows the number of its sequence, from 0 on, and the
// position there, from 0 on. Rows that belong to no sequence, at the end, have -1 twice.
#pragma once

#include <cstdint>
#include <vector>

#include "operator.h"

namespace operators {

// Rows first, first + 1, ..., first + rows - 1; the first `tokens` of them are no padding.
struct Sequence {
  int64_t first, rows, tokens;
};

// Throws std::runtime_error where a row does not follow the one before.
std::vector<Sequence> packed_sequences(const mxnet::ext::MXTensor& places);

std::vector<Sequence> padded_sequences(int64_t batch, int64_t length);

// The attribute `packed`, 0 where it is left out: whether the operator has the input `places`.
bool is_packed(const Attributes& attributes);

// Throws std::runtime_error unless this can be the shape of `places`.
void check_places(const Shape& places);

}  // namespace operators

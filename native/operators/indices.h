// Checking inputs that are indices, which would otherwise read or write beyond a tensor.
#pragma once

#include <string>

#include "operator.h"

namespace operators {

inline const int32_t* indices(const mxnet::ext::MXTensor& tensor) {
  return static_cast<const int32_t*>(tensor.data_ptr);
}

// Throws std::runtime_error that names the first index outside [0, end) and its place in the (rows, columns)
// tensor.
inline void check_indices(const mxnet::ext::MXTensor& tensor, int64_t end, const char* name) {
  const int32_t* values = indices(tensor);
  const int64_t count = tensor.size(), columns = tensor.shape.back();
  for (int64_t i = 0; i < count; i++)
    if (values[i] < 0 || values[i] >= end)
      throw std::runtime_error(std::string(name) + " " + std::to_string(values[i]) + " at [" +
                               std::to_string(i / columns) + ", " + std::to_string(i % columns) +
                               "] is outside [0, " + std::to_string(end) + ")");
}

}  // namespace operators

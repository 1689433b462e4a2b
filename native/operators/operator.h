// What the operators' files share: reading attributes, describing shapes, turning exceptions into MXNet errors.
#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "mxnet/lib_api.h"

namespace operators {

using Attributes = std::unordered_map<std::string, std::string>;
using Tensors = std::vector<mxnet::ext::MXTensor>;
using Shape = std::vector<unsigned int>;
using Shapes = std::vector<Shape>;
using Types = std::vector<int>;
using mxnet::ext::MX_FAIL;
using mxnet::ext::MX_SUCCESS;
using mxnet::ext::MXReturnValue;
using mxnet::ext::OpResource;

// The attribute's value. Throws std::runtime_error where it is absent or no number.
double number(const Attributes& attributes, const char* name);
int integer(const Attributes& attributes, const char* name);

// Throws std::runtime_error with this message unless the condition holds.
inline void require(bool condition, const char* message) {
  if (!condition) throw std::runtime_error(message);
}

// 64 random bits from MXNet's generator: repeatable after mx.random.seed.
uint64_t draw_key(const OpResource& resource);

// Runs body() and gives MXNet its exception as an error of the operator.
template <typename Body>
MXReturnValue guarded(const char* name, Body body) {
  try {
    body();
    return MX_SUCCESS;
  } catch (const std::exception& error) {
    MX_ERROR_MSG << name << ": " << error.what();
    return MX_FAIL;
  }
}

inline const float* floats(const mxnet::ext::MXTensor& tensor) {
  return static_cast<const float*>(tensor.data_ptr);
}
inline float* floats(mxnet::ext::MXTensor& tensor) { return static_cast<float*>(tensor.data_ptr); }

}  // namespace operators

#include "dropout_choice.h"

#include <cmath>
#include <cstring>

namespace operators {
namespace {

bool drops(double rate, const mxnet::ext::MXTensor& mode) { return rate > 0 && *floats(mode) != 1.f; }

constexpr double kSteps = 65536;

uint32_t threshold(double rate) { return static_cast<uint32_t>(std::lround(rate * kSteps)); }

Dropout dropout(double rate, uint64_t key) {
  return {key, threshold(rate), static_cast<float>(kSteps / (kSteps - threshold(rate)))};
}

}  // namespace

double dropout_rate(const Attributes& attributes) {
  const double rate = number(attributes, "dropout");
  if (!(rate >= 0 && threshold(rate) < kSteps))
    throw std::runtime_error("dropout=" + std::to_string(rate) + " is outside [0, 1)");
  return rate;
}

Dropout choose_dropout(const Attributes& attributes, const mxnet::ext::MXTensor& mode,
                       const OpResource& resource, mxnet::ext::MXTensor* saved) {
  const double rate = dropout_rate(attributes);
  const uint64_t key = drops(rate, mode) ? draw_key(resource) : 0;
  std::memcpy(saved->data_ptr, &key, sizeof key);
  return drops(rate, mode) ? dropout(rate, key) : Dropout();
}

Dropout chosen_dropout(const Attributes& attributes, const mxnet::ext::MXTensor& mode,
                       const mxnet::ext::MXTensor& saved) {
  const double rate = dropout_rate(attributes);
  if (!drops(rate, mode)) return {};
  uint64_t key;
  std::memcpy(&key, saved.data_ptr, sizeof key);
  return dropout(rate, key);
}

}  // namespace operators

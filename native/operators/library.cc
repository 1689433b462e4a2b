// The entry point that mx.library.load calls, and what the operators share.
#include "isa.h"
#include "operator.h"

namespace operators {

double number(const Attributes& attributes, const char* name) {
  const auto found = attributes.find(name);
  if (found == attributes.end()) throw std::runtime_error(std::string("attribute ") + name + " is missing");
  try {
    return std::stod(found->second);
  } catch (const std::logic_error&) {
    throw std::runtime_error(std::string(name) + "=" + found->second + " is not a number");
  }
}

int integer(const Attributes& attributes, const char* name) {
  return static_cast<int>(number(attributes, name));
}

uint64_t draw_key(const OpResource& resource) {
  auto& generator = resource.get_cpu_rand_states()[0];
  const uint64_t high = generator();
  return high << 32 | generator();
}

}  // namespace operators

mxnet::ext::MXReturnValue initialize(int version) {
  if (version < 10700) {
    MX_ERROR_MSG << "these operators need MXNet 1.7 or newer, not " << version;
    return mxnet::ext::MX_FAIL;
  }
  return operators::guarded("loading", [] { operators::isa(); });
}

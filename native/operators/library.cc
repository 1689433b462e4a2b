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

// MXNet asks at every call of an operator which of its inputs it writes, and copies the answer without ever
// freeing it. The function of its own lib_api.cc takes memory for each answer: 4 bytes a tensor and call, 1.7 GB
// in 900,000 updates of BERT-large's. This one takes its place (setup/operators_build.py gives that another
// name): the answer stays with the thread, until it asks again.
MX_INT_RET _opCallMutateInputs(mxnet::ext::mutateInputs_t mutate, const char* const* keys, const char* const* values,
                               int count, int** indices, int* size) {
  static thread_local std::vector<int> answer;
  operators::Attributes attributes;
  for (int i = 0; i < count; i++) attributes[keys[i]] = values[i];
  answer.clear();
  const int code = mutate(attributes, &answer);
  if (!code) return code;
  *indices = answer.data();
  *size = static_cast<int>(answer.size());
  return code;
}

mxnet::ext::MXReturnValue initialize(int version) {
  if (version < 10700) {
    MX_ERROR_MSG << "these operators need MXNet 1.7 or newer, not " << version;
    return mxnet::ext::MX_FAIL;
  }
  return operators::guarded("loading", [] { operators::isa(); });
}

#include "isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace operators {
namespace {

const char* const kNames[] = {"baseline", "avx2", "avx512", "avx512_bf16"};

Isa best() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) return Isa::avx512_bf16;
  return avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::baseline;
}

Isa choose() {
  const Isa available = best();
  const char* wanted = std::getenv("BERT_OPERATORS_ISA");
  if (wanted == nullptr) return available;
  for (int i = 0; i <= static_cast<int>(available); i++)
    if (std::string(wanted) == kNames[i]) return static_cast<Isa>(i);
  throw std::runtime_error("BERT_OPERATORS_ISA=" + std::string(wanted) + ": this processor has " +
                           kNames[static_cast<int>(available)] + " and what comes before it of baseline, avx2, " +
                           "avx512, avx512_bf16");
}

}  // namespace

Isa isa() {
  static const Isa chosen = choose();
  return chosen;
}

const char* isa_name() { return kNames[static_cast<int>(isa())]; }

}  // namespace operators

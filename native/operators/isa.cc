#include "isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace operators {
namespace {

const char* const kNames[] = {"baseline", "avx2", "avx512", "avx512_bf16", "amx"};

// Whether the processor has AMX's tiles with bfloat16, and the kernel gives them to this process.
bool tiles() {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned int kBfloat16 = 1u << 22, kTile = 1u << 24;
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA of asm/prctl.h
  return (d & kBfloat16) && (d & kTile) && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

Isa best() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  if (bf16 && tiles()) return Isa::amx;
  if (bf16) return Isa::avx512_bf16;
  return avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::baseline;
}

Isa choose() {
  const Isa available = best();
  const char* wanted = std::getenv("BERT_OPERATORS_ISA");
  if (wanted == nullptr) return available;
  for (int i = 0; i <= static_cast<int>(available); i++)
    if (std::string(wanted) == kNames[i]) return static_cast<Isa>(i);
  throw std::runtime_error("BERT_OPERATORS_ISA=" + std::string(wanted) + ": this processor has " +
                           kNames[static_cast<int>(available)] +
                           " and what comes before it of baseline, avx2, " + "avx512, avx512_bf16, amx");
}

}  // namespace

Isa isa() {
  static const Isa chosen = choose();
  return chosen;
}

}  // namespace operators

// Dropout's random decisions: functions of a key and an element's index, so that threads may take elements in any
// order and a backward pass can ask again instead of storing the answers.
#pragma once

#include <cstdint>

namespace operators {
namespace ISA {

// 32 bits that look random in `index` for any key: two rounds of the finalizer of MurmurHash3, whose bits each
// depend on all bits that went in.
inline uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  return x ^ (x >> 16);
}

inline uint32_t random_bits(uint64_t key, uint32_t index) {
  return mix(mix(index * 0x9e3779b9u + static_cast<uint32_t>(key)) ^ static_cast<uint32_t>(key >> 32));
}

// What an element is multiplied with: 0 with probability `rate` (in 2^-32 steps: threshold = rate * 2^32), else
// `scale` = 1 / (1 - rate).
inline float dropout_factor(uint64_t key, uint32_t index, uint32_t threshold, float scale) {
  return random_bits(key, index) < threshold ? 0.f : scale;
}

}  // namespace ISA
}  // namespace operators

// Dropout's random decisions: functions of a key, a row and a column, so that threads may take rows in any order
// and a backward pass can ask again instead of storing the answers.
#pragma once

#include <omp.h>

#include <cstdint>

#include "dropout_choice.h"
#include "scratch.h"

namespace operators {
namespace ISA {

// 64 bits that depend on all bits of x: the finalizer of SplitMix64 (Steele, Lea and Flood,
// doi.org/10.1145/2714064.2660195).
inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// What a row begins with: numbers that look random in key and row.
struct RowSeed {
  uint32_t first, second;
  RowSeed(uint64_t key, uint64_t row) {
    const uint64_t mixed = mix(key + row * 0x9e3779b97f4a7c15u);
    first = static_cast<uint32_t>(mixed);
    second = static_cast<uint32_t>(mixed >> 32);
  }
};

// 32 bits that look random in `index`: the finalizer of MurmurHash3, with the second seed between its
// multiplications, so that rows whose first seeds lie side by side have nothing in common.
inline uint32_t random_bits(const RowSeed& seed, uint32_t index) {
  uint32_t x = seed.first + index;
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= (x >> 13) ^ seed.second;
  x *= 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// One row's decisions, if anything is dropped: 16 random bits a column, the lower half of a word for an even one
// and the upper half for the odd one beside it. All are drawn at once, two with one hash.
class DropoutRow {
 public:
  // Words of memory for a row. More columns than there are may be asked for, up to the next multiple of 32.
  static int64_t words(int64_t columns) { return (columns + 31) / 32 * 16; }

  DropoutRow(const Dropout& dropout, uint64_t row, int64_t columns, uint32_t* memory)
      : bits_(reinterpret_cast<const Bits*>(memory)), threshold_(dropout.threshold) {
    if (threshold_ == 0) return;
    const RowSeed seed(dropout.key, row);
    const int32_t count = static_cast<int32_t>(words(columns));
#pragma omp simd
    for (int32_t i = 0; i < count; i++) memory[i] = random_bits(seed, static_cast<uint32_t>(i));
  }

  // 0 with the probability `rate`, otherwise `scale`.
  float factor(int64_t column, float scale) const { return bits_[column] < threshold_ ? 0.f : scale; }

 private:
  using Bits = uint16_t __attribute__((may_alias));
  const Bits* bits_;
  uint32_t threshold_;
};

// Memory for a row's decisions, a piece for each thread; to be made before the parallel region.
class DropoutMemory {
 public:
  explicit DropoutMemory(int64_t columns)
      : words_(DropoutRow::words(columns)), memory_(words_ * omp_get_max_threads()) {}

  // The calling thread's.
  uint32_t* mine() { return reinterpret_cast<uint32_t*>(memory_.data()) + words_ * omp_get_thread_num(); }

 private:
  int64_t words_;
  Scratch memory_;  // counted in floats, which have as many bytes
};

}  // namespace ISA
}  // namespace operators

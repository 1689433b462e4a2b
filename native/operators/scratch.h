// Memory for the time of one call. Kernels use this and not std::vector: its functions, compiled for one
// instruction set, would be merged by the linker with those compiled for another.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace operators {
namespace ISA {

// `count` floats, not initialised, aligned to a cache line. Throws std::bad_alloc.
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : memory_(static_cast<float*>(std::aligned_alloc(64, (count * sizeof(float) + 64) / 64 * 64))) {
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  ~Scratch() { std::free(memory_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  float* data() { return memory_; }

 private:
  float* memory_;
};

}  // namespace ISA
}  // namespace operators

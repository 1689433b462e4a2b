// Memory for the time of one call, or of one thread. Kernels use this and not std::vector: its functions,
// compiled for one instruction set, would be merged by the linker with those compiled for another.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace operators {

// Memory of this thread's own, not initialised, aligned to a cache line and valid until its next call: what
// is computed piece by piece, such as attention's heads, wants the same memory each time, still in the cache.
// Ends the process where there is none: in a parallel region no exception can leave.
float* thread_scratch(int64_t floats);

}  // namespace operators

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

  float* data() const { return memory_; }

 private:
  float* memory_;
};

}  // namespace ISA
}  // namespace operators

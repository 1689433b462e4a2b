#include "scratch.h"

namespace operators {

float* thread_scratch(int64_t floats) {
  struct Memory {
    float* data = nullptr;
    int64_t floats = 0;
    ~Memory() { std::free(data); }
  };
  thread_local Memory memory;
  if (floats > memory.floats) {
    std::free(memory.data);
    memory.floats = (floats + 15) / 16 * 16;
    memory.data = static_cast<float*>(std::aligned_alloc(64, memory.floats * sizeof(float)));
    if (memory.data == nullptr) std::abort();  // in a parallel region no exception can leave
  }
  return memory.data;
}

}  // namespace operators

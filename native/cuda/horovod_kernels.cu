// Kernels of Horovod's fused messages: copying many arrays at once, with or without a factor, and scaling one
// array. NVRTC compiles this text on the machine that has the GPU (horovod_kernels.cc), so that no nvcc is
// needed; nothing is included. Arithmetic is in double for integers and float64, else in float.

typedef long long int64;
typedef unsigned long long address;

struct alignas(16) Word {
  unsigned int part[4];
};

struct Half {
  unsigned short bits;
};

#ifdef __CUDACC_RTC__
__device__ inline float widened(Half value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
}

__device__ inline Half narrowed(float value) {
  Half narrow;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
  return narrow;
}
#endif

// The layout of Horovod's BatchedD2DParams; horovod_kernels.cc compares the sizes.
struct Copies {
  void* to[160];
  const void* from[160];
  size_t bytes[160];
};

#define BLOCKS_PER_COPY 8

template <typename T>
__device__ inline void scale_one(const T* from, T* to, double factor) {
  *to = static_cast<T>(factor * static_cast<double>(*from));
}

__device__ inline void scale_one(const float* from, float* to, double factor) {
  *to = static_cast<float>(factor) * *from;
}

__device__ inline void scale_one(const Half* from, Half* to, double factor) {
  *to = narrowed(static_cast<float>(factor) * widened(*from));
}

extern "C" __global__ void copy_many(Copies copies) {
  const int which = blockIdx.x / BLOCKS_PER_COPY;
  const size_t first = static_cast<size_t>(blockIdx.x % BLOCKS_PER_COPY) * blockDim.x + threadIdx.x;
  const size_t step = static_cast<size_t>(BLOCKS_PER_COPY) * blockDim.x;
  const size_t bytes = copies.bytes[which];
  const char* from = static_cast<const char*>(copies.from[which]);
  char* to = static_cast<char*>(copies.to[which]);
  const bool aligned = (reinterpret_cast<address>(from) | reinterpret_cast<address>(to)) % sizeof(Word) == 0;
  const size_t words = aligned ? bytes / sizeof(Word) : 0;
  for (size_t i = first; i < words; i += step) {
    reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
  }
  for (size_t i = words * sizeof(Word) + first; i < bytes; i += step) to[i] = from[i];
}

template <typename T>
__device__ inline void scale_array(const T* from, T* to, int64 count, double factor) {
  const int64 step = static_cast<int64>(gridDim.x) * blockDim.x;
  for (int64 i = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    scale_one(from + i, to + i, factor);
  }
}

template <typename T>
__device__ inline void scale_arrays(const Copies& copies, double factor) {
  const int which = blockIdx.x / BLOCKS_PER_COPY;
  const size_t first = static_cast<size_t>(blockIdx.x % BLOCKS_PER_COPY) * blockDim.x + threadIdx.x;
  const size_t step = static_cast<size_t>(BLOCKS_PER_COPY) * blockDim.x;
  const size_t count = copies.bytes[which] / sizeof(T);
  const T* from = static_cast<const T*>(copies.from[which]);
  T* to = static_cast<T*>(copies.to[which]);
  for (size_t i = first; i < count; i += step) scale_one(from + i, to + i, factor);
}

#define SCALING(T, name)                                                                      \
  extern "C" __global__ void scale_##name(const T* from, T* to, int64 count, double factor) { \
    scale_array(from, to, count, factor);                                                     \
  }                                                                                           \
  extern "C" __global__ void scale_many_##name(Copies copies, double factor) {                \
    scale_arrays<T>(copies, factor);                                                          \
  }

SCALING(unsigned char, uint8)
SCALING(signed char, int8)
SCALING(int, int32)
SCALING(int64, int64)
SCALING(Half, float16)
SCALING(float, float32)
SCALING(double, float64)

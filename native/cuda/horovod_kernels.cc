// Horovod's three functions that launch kernels (horovod/common/ops/cuda/cuda_kernels.h), without nvcc: NVRTC
// compiles horovod_kernels.cu once per GPU of a process, to machine code, which needs no newer driver than
// CUDA 11's first. setup/horovod_build.py puts this file in the place of cuda_kernels.cu, the text beside it.

#include <cuda.h>
#include <nvrtc.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda_kernels.h"

namespace horovod {
namespace common {
namespace {

const char kText[] =
#include "horovod_kernels_text.h"
    ;

constexpr int kBlocksPerCopy = 8;
constexpr int kThreads = 512;
constexpr int64_t kMostBlocks = 65535;

static_assert(sizeof(BatchedD2DParams) == 160 * (2 * sizeof(void*) + sizeof(size_t)),
              "see Copies in the kernels");

[[noreturn]] void Fail(const std::string& what, const std::string& why) {
  throw std::runtime_error("Horovod's GPU kernels: " + what + ": " + why);
}

void Check(CUresult result, const std::string& what) {
  if (result == CUDA_SUCCESS) return;
  const char* why = nullptr;
  cuGetErrorString(result, &why);
  Fail(what, why != nullptr ? why : "unknown error");
}

void Check(cudaError_t result, const std::string& what) {
  if (result != cudaSuccess) Fail(what, cudaGetErrorString(result));
}

std::vector<char> Compile(const std::string& architecture) {
  nvrtcProgram program;
  nvrtcResult result = nvrtcCreateProgram(&program, kText, "horovod_kernels.cu", 0, nullptr, nullptr);
  if (result != NVRTC_SUCCESS) Fail("nvrtcCreateProgram", nvrtcGetErrorString(result));
  const std::string option = "--gpu-architecture=" + architecture;
  const char* options[] = {option.c_str(), "--std=c++14"};
  result = nvrtcCompileProgram(program, 2, options);
  if (result != NVRTC_SUCCESS) {
    size_t size = 0;
    nvrtcGetProgramLogSize(program, &size);
    std::string log(size, ' ');
    nvrtcGetProgramLog(program, &log[0]);
    nvrtcDestroyProgram(&program);
    Fail("compiling for " + architecture, std::string(nvrtcGetErrorString(result)) + "; " + log);
  }
  size_t size = 0;
  nvrtcGetCUBINSize(program, &size);
  std::vector<char> code(size);
  nvrtcGetCUBIN(program, code.data());
  nvrtcDestroyProgram(&program);
  if (code.empty()) Fail("compiling for " + architecture, "no machine code");
  return code;
}

// The module of the current device, in the context that CUDA's runtime and MXNet share.
CUmodule Module() {
  static std::mutex mutex;
  static std::map<int, CUmodule> modules;
  int device = 0, major = 0, minor = 0;
  Check(cudaGetDevice(&device), "cudaGetDevice");
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = modules.find(device);
  if (found != modules.end()) return found->second;
  Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
  Check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "compute capability");
  Check(cudaFree(nullptr), "context");
  const auto code = Compile("sm_" + std::to_string(major) + std::to_string(minor));
  CUmodule module;
  Check(cuModuleLoadData(&module, code.data()), "cuModuleLoadData");
  modules[device] = module;
  return module;
}

void Launch(const std::string& name, int64_t blocks, void** arguments, cudaStream_t stream) {
  if (blocks == 0) return;
  CUfunction function;
  Check(cuModuleGetFunction(&function, Module(), name.c_str()), name);
  Check(cuLaunchKernel(function, static_cast<unsigned>(blocks), 1, 1, kThreads, 1, 1, 0, stream, arguments,
                       nullptr),
        name);
}

std::string Suffix(DataType dtype) {
  switch (dtype) {
    case HOROVOD_UINT8:
      return "uint8";
    case HOROVOD_INT8:
      return "int8";
    case HOROVOD_INT32:
      return "int32";
    case HOROVOD_INT64:
      return "int64";
    case HOROVOD_FLOAT16:
      return "float16";
    case HOROVOD_FLOAT32:
      return "float32";
    case HOROVOD_FLOAT64:
      return "float64";
    default:
      throw std::logic_error("Horovod's GPU kernels cannot scale " + DataType_Name(dtype));
  }
}

}  // namespace

void BatchedD2DMemcpyCudaImpl(BatchedD2DParams& params, int num_copies, cudaStream_t stream) {
  void* arguments[] = {&params};
  Launch("copy_many", static_cast<int64_t>(num_copies) * kBlocksPerCopy, arguments, stream);
}

void ScaleBufferCudaImpl(const void* fused_input_data, void* buffer_data, const int64_t num_elements,
                         double scale_factor, DataType dtype, cudaStream_t stream) {
  int64_t count = num_elements;
  void* arguments[] = {&fused_input_data, &buffer_data, &count, &scale_factor};
  const int64_t blocks = (num_elements + kThreads - 1) / kThreads;
  Launch("scale_" + Suffix(dtype), blocks < kMostBlocks ? blocks : kMostBlocks, arguments, stream);
}

void BatchedScaledD2DMemcpyCudaImpl(BatchedD2DParams& params, int num_copies, double scale_factor,
                                    DataType dtype, cudaStream_t stream) {
  void* arguments[] = {&params, &scale_factor};
  Launch("scale_many_" + Suffix(dtype), static_cast<int64_t>(num_copies) * kBlocksPerCopy, arguments, stream);
}

}  // namespace common
}  // namespace horovod

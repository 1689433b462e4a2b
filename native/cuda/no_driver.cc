// A libcuda.so.1 for machines that have no driver, so that libmxnet.so can be loaded while it is built
// against and checked: in a container's build, on a machine without a GPU. Every call answers that there is
// no device. It lies where no loader looks; setup/cuda.py names its folder to the processes that need it,
// never to training.

namespace {
constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE
}

#define ABSENT(name) \
  extern "C" int name() { return kNoDevice; }

// CUDA's runtime asks these first; a version that is old enough for no further question.
ABSENT(cuInit)
extern "C" int cuDriverGetVersion(int* version) {
  *version = 11020;
  return 0;
}

// What libmxnet.so and Horovod's kernels name.
ABSENT(cuDeviceGet)
ABSENT(cuDevicePrimaryCtxRetain)
ABSENT(cuGraphKernelNodeGetParams)
ABSENT(cuGraphNodeGetType)
ABSENT(cuLaunchKernel)
ABSENT(cuModuleGetFunction)
ABSENT(cuModuleLoadData)
ABSENT(cuModuleLoadDataEx)
ABSENT(cuModuleUnload)
extern "C" int cuGetErrorString(int, const char** text) {
  *text = "no NVIDIA driver on this machine";
  return 0;
}

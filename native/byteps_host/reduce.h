// Sums of arrays, in one order for all ranks.
#pragma once

#include <nccl.h>

namespace host_runtime {

// Bytes of an element; 0 for a type that NCCL does not have.
size_t width(ncclDataType_t type);

// out[i] = sources[0][i] + sources[1][i] + ... in this order, so that the bits depend on nothing else. `out` may be
// one of the sources. Integers wrap around; float16 is summed in float32 and rounded once, to nearest even.
void sum(ncclDataType_t type, const void* const* sources, int number, void* out, size_t count);

}  // namespace host_runtime

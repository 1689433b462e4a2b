#include "attention_tiles_kernels.h"

#include <cstdlib>

#ifdef __AVX512F__
#include "attention_tiles.h"
#endif

namespace operators {
namespace ISA {

#ifdef __AVX512F__
namespace {

// The columns of a task's head in packed factors. Those of inputs are only read.
struct OnTiles {
  const Attention& shape;
  const Task& work;

  PackedColumns columns(const uint32_t* matrix, int64_t units, int64_t first) const {
    return {const_cast<uint32_t*>(matrix), units, work.sequence.first, first + work.head * shape.size,
            shape.size};
  }
  PackedColumns context(const uint32_t* matrix) const { return columns(matrix, shape.heads * shape.size, 0); }
  HeadColumns<PackedColumns> qkv(const uint32_t* matrix) const {
    const int64_t units = shape.heads * shape.size;
    const auto part = [&](int64_t which) { return columns(matrix, 3 * units, which * units); };
    return {part(0), part(1), part(2)};
  }
};

}  // namespace

void packed_attention(const Attention& shape, const uint32_t* qkv, uint32_t* context, float* log_sum) {
  for_tasks(shape, [&](const Task& work, int64_t) {
    const OnTiles on{shape, work};
    attend_on_tiles(shape, work, on.qkv(qkv), on.context(context), log_sum);
  });
}

void packed_attention_backward(const Attention& shape, const PackedAttention& arrays, float* partial,
                               uint32_t* qkv_gradient) {
  const int64_t size = shape.parts == 1 ? 0 : sums_size_of_tiles(shape);
  for_tasks(shape, [&](const Task& work, int64_t t) {
    const OnTiles on{shape, work};
    attend_backward_on_tiles<PackedColumns>(shape, work,
                                            {on.qkv(arrays.qkv), on.context(arrays.context),
                                             on.context(arrays.context_gradient), on.qkv(qkv_gradient)},
                                            arrays.log_sum, partial + t * size);
  });
  for_heads_in_parts(shape, [&](const Task& work, int64_t t) {
    add_parts_of_tiles(shape, work, partial + t * size, OnTiles{shape, work}.qkv(qkv_gradient));
  });
}

#else

void packed_attention(const Attention&, const uint32_t*, uint32_t*, float*) { std::abort(); }
void packed_attention_backward(const Attention&, const PackedAttention&, float*, uint32_t*) { std::abort(); }

#endif

}  // namespace ISA
}  // namespace operators

#include "attention_shape.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "indices.h"
#include "matmul.h"

namespace operators {

std::vector<Sequence> attended_sequences(const mxnet::ext::MXTensor& x, const mxnet::ext::MXTensor& lengths) {
  if (x.shape.size() == 2) return packed_sequences(lengths);
  const int64_t length = x.shape[1];
  std::vector<Sequence> sequences = padded_sequences(x.shape[0], length);
  for (size_t b = 0; b < sequences.size(); b++)
    sequences[b].tokens = std::min<int64_t>(std::max(indices(lengths)[b], 0), length);
  return sequences;
}

Attention attention_shape(const Attributes& attributes, int64_t units,
                          const std::vector<Sequence>& sequences) {
  Attention shape{};
  shape.batch = sequences.size();
  for (const Sequence& sequence : sequences) shape.length = std::max(shape.length, sequence.rows);
  shape.heads = integer(attributes, "heads");
  shape.size = units / shape.heads;
  shape.sequences = sequences.data();
  shape.low = low_precision(attributes);
  shape.tiled = shape.low && tile_products();
  // With four tasks a thread, the last to finish is not late by much; smaller parts repeat more of the
  // packing.
  const int64_t heads = shape.batch * shape.heads, wanted = 4 * omp_get_max_threads();
  const int64_t most = (shape.length + kLargestPart - 1) / kLargestPart;
  shape.parts = heads == 0 || heads >= wanted ? 1 : std::min((wanted + heads - 1) / heads, most);
  return shape;
}

void zero_rows_behind(const std::vector<Sequence>& sequences, int64_t size, int64_t columns, float* matrix) {
  const int64_t end = sequences.empty() ? 0 : (sequences.back().first + sequences.back().rows) * columns;
  std::memset(matrix + end, 0, (size - end) * sizeof(float));
}

}  // namespace operators

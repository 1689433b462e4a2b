// Tensors of very different sizes as pieces of work of about the same size.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace operators {

// Elements of one tensor: begin, begin + 1, ..., begin + size - 1.
struct Chunk {
  int tensor;
  int64_t begin, size;
};

// 256 KB of each array: many enough for any number of threads, long enough for prefetching.
constexpr int64_t kChunkSize = 1 << 16;

// Which elements make a chunk depends on the sizes alone. Sums that are taken over chunks and then added in
// the chunks' order are therefore the same for any number of threads.
// `pieces`: the size of the chunks of each tensor.
inline std::vector<Chunk> split(const std::vector<int64_t>& sizes, const std::vector<int64_t>& pieces) {
  std::vector<Chunk> chunks;
  for (size_t tensor = 0; tensor < sizes.size(); tensor++)
    for (int64_t begin = 0; begin < sizes[tensor]; begin += pieces[tensor])
      chunks.push_back({static_cast<int>(tensor), begin, std::min(pieces[tensor], sizes[tensor] - begin)});
  return chunks;
}

inline std::vector<Chunk> split(const std::vector<int64_t>& sizes) {
  return split(sizes, std::vector<int64_t>(sizes.size(), kChunkSize));
}

}  // namespace operators

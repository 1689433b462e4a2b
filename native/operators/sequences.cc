#include "sequences.h"

#include <string>

#include "indices.h"

namespace operators {

std::vector<Sequence> packed_sequences(const mxnet::ext::MXTensor& places) {
  std::vector<Sequence> sequences;
  const int32_t* place = indices(places);
  const int64_t rows = places.shape[0];
  for (int64_t row = 0; row < rows; row++, place += 2) {
    const int64_t next = sequences.size();
    const bool at_end = sequences.empty() || sequences.back().first + sequences.back().rows < row;
    if (place[0] == -1 && place[1] == -1) continue;
    if (place[0] == next && place[1] == 0 && (row == 0 || !at_end)) {
      sequences.push_back({row, 1, 1});
    } else if (!at_end && place[0] == next - 1 && place[1] == sequences.back().rows) {
      sequences.back().rows = ++sequences.back().tokens;
    } else {
      throw std::runtime_error("place (" + std::to_string(place[0]) + ", " + std::to_string(place[1]) +
                               ") of row " + std::to_string(row) + " does not follow the one before");
    }
  }
  return sequences;
}

std::vector<Sequence> padded_sequences(int64_t batch, int64_t length) {
  std::vector<Sequence> sequences(batch);
  for (int64_t b = 0; b < batch; b++) sequences[b] = {b * length, length, length};
  return sequences;
}

bool is_packed(const Attributes& attributes) {
  return attributes.count("packed") != 0 && integer(attributes, "packed") != 0;
}

void check_places(const Shape& places) {
  require(places.size() == 2 && places[0] > 0 && places[1] == 2, "places must have the shape (rows, 2)");
}

}  // namespace operators

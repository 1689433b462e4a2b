#include "token_rows.h"

#include <string>

#include "indices.h"

namespace operators {

TokenRows::TokenRows(const mxnet::ext::MXTensor& ids, const mxnet::ext::MXTensor* places) {
  const int64_t batch = ids.shape[0], length = ids.shape[1];
  if (places == nullptr) {
    sequences = padded_sequences(batch, length);
    count = ids.size();
    return;
  }
  sequences = packed_sequences(*places);
  count = places->shape[0];
  tokens.assign(count, -1);
  for (size_t b = 0; b < sequences.size(); b++) {
    const Sequence& sequence = sequences[b];
    if (static_cast<int64_t>(b) >= batch || sequence.rows > length)
      throw std::runtime_error("places name token " + std::to_string(sequence.rows - 1) + " of sequence " +
                               std::to_string(b) + ", input_ids have " + std::to_string(batch) +
                               " sequences of " + std::to_string(length));
    for (int64_t p = 0; p < sequence.rows; p++) tokens[sequence.first + p] = b * length + p;
  }
}

WordRows::WordRows(const mxnet::ext::MXTensor& ids, const TokenRows& rows, int64_t vocabulary)
    : first(vocabulary, -1), next(rows.count) {
  for (int64_t row = rows.count - 1; row >= 0; row--) {
    const int64_t token = rows.tokens.empty() ? row : rows.tokens[row];
    if (token < 0) continue;
    const int32_t word = indices(ids)[token];
    // MXNet runs a backward pass also where the forward pass, which checks all ids, has failed.
    if (word < 0 || word >= vocabulary) throw std::runtime_error("a token is outside the table");
    next[row] = first[word];
    first[word] = static_cast<int32_t>(row);
  }
}

}  // namespace operators

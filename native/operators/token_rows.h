// Which rows of a matrix belong to which tokens, with and without padding, and to which words.
#pragma once

#include <cstdint>
#include <vector>

#include "operator.h"
#include "sequences.h"

namespace operators {

// Which rows there are, and for which tokens of input_ids (batch, length).
struct TokenRows {
  std::vector<Sequence> sequences;
  std::vector<int32_t> tokens;  // of each row its token's index, -1 in a row of none; empty: row i is token i
  int64_t count;

  // places: null where padding is kept. Throws std::runtime_error for places outside the ids.
  TokenRows(const mxnet::ext::MXTensor& ids, const mxnet::ext::MXTensor* places);

  const int32_t* tokens_or_null() const { return tokens.empty() ? nullptr : tokens.data(); }
};

// The rows of each word: first[word] is the first one or -1, next[row] the one after it or -1, in ascending
// order.
struct WordRows {
  std::vector<int32_t> first, next;

  // Throws std::runtime_error for ids outside the vocabulary.
  WordRows(const mxnet::ext::MXTensor& ids, const TokenRows& rows, int64_t vocabulary);
};

}  // namespace operators

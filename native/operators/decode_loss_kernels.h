#pragma once

#include <cstdint>

#include "isa.h"

// Matrices of scores stand word by word: scores[word * width + column], where a column belongs to one
// position of the text. So sums over the vocabulary run through memory in order, and vectors along the
// columns.
DECLARE_KERNELS(
    // The highest score + bias of each column and its word. best and word are updated: to be set to minus
    // infinity and `first_word` at the start. The words are numbered from first_word; of equal scores the
    // first counts.
    void update_best(const float* scores, const float* bias, int64_t words, int64_t width, int64_t first_word,
                     float* best, int32_t* word);

    // scores = exp(scores + bias - best), sums[c] = their sum over the words.
    void exponentials(float* scores, const float* bias, const float* best, int64_t words, int64_t width,
                      double* sums);

    // sums[word] = the sum over columns of scores[word][c] * factors[c].
    void row_products(const float* scores, const float* factors, int64_t words, int64_t width, float* sums);)

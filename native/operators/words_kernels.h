#pragma once

#include <cstdint>

#include "isa.h"

DECLARE_KERNELS(
    // to (rows, units): row i is the table's row ids[tokens[i]], of zeros where tokens[i] is -1; tokens null:
    // i is the token.
    void look_up(const float* table, const int32_t* ids, const int32_t* tokens, int64_t rows, int64_t units,
                 float* to);

    // Adds to each row of the table (words, units) the sum of the rows (.., units) of its word, which are
    // first[word], next[that] and so on up to -1. The sum, in that order, does not depend on the number of
    // threads.
    void add_rows(const float* rows, const int32_t* first, const int32_t* next, int64_t words, int64_t units,
                  float* table);)

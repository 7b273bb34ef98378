// Scores of blocks against queries. Raw pointers only, no OpenVINO type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kernel_tables.hpp"

namespace ovspec {

// A sequence's queries against the summaries of its blocks.
struct ScoreCall {
    const float* queries; // `[kv_heads, rows, size]`
    std::size_t rows;
    const float* summary; // `[cache blocks, kv_heads, size]`
    std::size_t kv_heads;
    std::size_t size;
    const std::int32_t* table; // `[blocks]`
    std::size_t blocks;
    float* scores; // `[kv_heads, blocks]`
};

struct SelectKernels {
    // scores[h, b] = the largest of the rows' query . summary of head h of block table[b], NaN where one of
    // them is, for begin <= b < end. Block by block, as they lie in memory.
    void (*score_blocks)(const ScoreCall& call, std::size_t begin, std::size_t end);
};

OVSPEC_DECLARE_KERNELS(SelectKernels, select_kernels)

} // namespace ovspec

// Attention of queries to blocks, estimated from the blocks' summaries. Raw pointers only, no OpenVINO type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kernel_tables.hpp"
#include "key_summary/layout.hpp"

namespace ovspec {

// Blocks that are weighed together, relative to the highest score among them.
constexpr std::size_t score_blocks = 32;

// Rows of one sequence against the summaries of the blocks before them. Query i of a KV head is query head
// i % group of row i / group. Memory from `bytes` on is the caller's, for the steps of SelectKernels.
struct ScoreCall {
    const float* query; // `[rows, kv_heads * group * size]`
    std::size_t rows;
    std::size_t kv_heads;
    std::size_t group;
    std::size_t size;
    float scale; // of the layer's attention
    // Which score a block has: the mean of scale * query . key over its keys and the queries, or, where
    // false, its share of the queries' attention to all scored blocks, as sum over the queries.
    bool linear;
    const std::uint8_t* summary; // `[cache blocks, kv_heads, summary_bytes(size)]`
    const std::int32_t* table;   // `[blocks()]`
    std::size_t past;            // tokens that are scored

    std::size_t padded; // queries of a KV head, up to whole vectors: SelectKernels::padded
    std::int8_t* bytes; // `[kv_heads, queries(), size]`
    float* scales;      // `[kv_heads, 2, queries()]`: a query's scale, and the sum of its channels
    float* weights;     // `[kv_heads, chunks(), queries(), score_blocks]`
    float* highest;     // `[kv_heads, chunks(), padded]`
    float* sums;        // `[kv_heads, chunks(), padded]`: of a chunk's weights
    float* scores;      // `[kv_heads, blocks()]`

    OVSPEC_INLINE_MEMBER std::size_t queries() const { return rows * group; }
    OVSPEC_INLINE_MEMBER std::size_t blocks() const { return (past + block_size - 1) / block_size; }
    OVSPEC_INLINE_MEMBER std::size_t chunks() const { return (blocks() + score_blocks - 1) / score_blocks; }
};

// The steps from queries to scores; each needs all of the one before it.
struct SelectKernels {
    std::size_t (*padded)(std::size_t queries);
    // Rounds the queries of one KV head to 8 bits, each with a scale of its own.
    void (*pack)(const ScoreCall& call, std::size_t head);
    // Weighs blocks chunk * score_blocks .. of all KV heads, block by block, as they lie in memory.
    void (*weigh)(const ScoreCall& call, std::size_t chunk);
    // Scores of one KV head. A block that holds a key that is not finite has a share of 0, or is no number.
    void (*add_up)(const ScoreCall& call, std::size_t head);
};

OVSPEC_DECLARE_KERNELS(SelectKernels, select_kernels)

} // namespace ovspec

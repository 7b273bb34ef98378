// Attention of a few query rows per sequence over a paged cache. Raw pointers only, no OpenVINO type and no
// thread: op.cpp checks everything, plans the work and calls these functions from its own threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/cache_view.hpp"
#include "common/kernel_tables.hpp"

namespace ovspec {

constexpr std::size_t max_verify_rows = 64;

// One sequence under verification. Its rows' keys and values are already in the cache.
struct VerifySequence {
    std::size_t first_row;         // in query and output
    std::size_t rows;              // 1 .. max_verify_rows
    std::int32_t past;             // tokens in the cache; row r stands in slot past + r
    const std::int32_t* table;     // logical block -> block of the cache
    const std::int32_t* positions; // of the rows: past + depth in the tree, for a chain past + r
    const std::uint64_t* seen;     // bit j of entry r: row r sees row j of this pass
    std::int32_t last_position;    // highest of `positions`
};

// One KV head of a sequence: the `begin` .. `end` blocks that some row sees, cut into chunks of
// `chunk_blocks`.
struct VerifyHead {
    const VerifySequence* sequence;
    std::size_t head;
    const std::int32_t* list; // logical blocks, ascending; null: block i is entry i
    std::size_t begin;
    std::size_t end;
    std::size_t chunk_blocks;
    std::size_t chunks;
    float* partials; // chunks * partial_floats(..)
};

// Chunk `chunk` of `count` KV heads that follow each other in the plan. Several heads are dense heads of one
// sequence: they read the same blocks, which are then passed over in the order of memory.
struct VerifyItem {
    const VerifyHead* heads;
    std::size_t count;
    std::size_t chunk;
};

struct VerifyCall {
    const float* query; // `[rows, kv_heads * group * k_size]`
    float* output;      // `[rows, kv_heads * group * v_size]`
    CacheView keys;
    CacheView values;
    const float* sinks; // `[kv_heads * group]`, a logit in the softmax' sum that has no value; null: none
    std::size_t group;  // query heads per KV head
    float scale;
    std::int32_t window; // a row at position p sees the keys above p - window; 0: all
};

// What a thread keeps from one item to the next.
struct VerifyScratch {
    float* floats = nullptr;              // shared_floats(..) + heads * head_floats(..), aligned to 64 bytes
    const VerifyHead* prepared = nullptr; // the first of the heads whose queries it holds
};

struct VerifyKernels {
    std::size_t (*shared_floats)(const VerifyCall&, std::size_t rows);
    std::size_t (*head_floats)(const VerifyCall&, std::size_t rows);
    std::size_t (*partial_floats)(const VerifyCall&, std::size_t rows);
    // Unnormalised output, row maxima and row sums of one chunk, into its part of every head's partials.
    void (*attend_chunk)(const VerifyCall&, const VerifyItem&, VerifyScratch&);
    // Adds up the chunks in their order and writes the head's part of the output.
    void (*merge_chunks)(const VerifyCall&, const VerifyHead&);
};

OVSPEC_DECLARE_KERNELS(VerifyKernels, verify_kernels)

} // namespace ovspec

// Attention of the query rows of a pass over a paged cache. Raw pointers only, no OpenVINO type and no
// thread: op.cpp checks everything, plans the work and calls these functions from its own threads.
//
// A row's result depends on its query and on the tokens that it sees, never on the other rows: every sum
// runs in an order that the tokens' positions give. Positions are cut into chunks of `chunk_blocks` blocks,
// counted from position 0; a chunk has a softmax of its own, and a head's chunks are merged in their order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/cache_view.hpp"
#include "common/kernel_tables.hpp"

namespace ovspec {

constexpr std::size_t max_tree_rows = 64;

// Rows of a sequence that are worked on together: a block of the cache is read once for all of them.
constexpr std::size_t group_rows = 64;

// Blocks of a chunk. Longer ones have fewer partial results to merge, shorter ones more work for threads.
constexpr std::size_t chunk_blocks = 16;

// Up to group_rows rows of one sequence. Their keys and values are already in the cache.
struct VerifySequence {
    std::size_t first_row;          // in query and output
    std::size_t rows;               // 1 .. group_rows
    std::int32_t past;              // slots of tokens before those that `seen` is about
    const std::int32_t* table;      // logical block -> block of the cache
    const std::int32_t* positions;  // of the last token that each row sees
    const std::uint64_t* seen;      // bit j of entry r: row r sees slot past + j
    const std::int32_t* first_keys; // of the past, the first token that each row sees
    std::int32_t last_first_key;    // highest of `first_keys`
    bool tree;                      // whether some row does not follow the one before it
};

// One KV head of a sequence: the entries `begin` .. `end` of its blocks, some of which a row sees.
struct VerifyHead {
    const VerifySequence* sequence;
    std::size_t head;
    const std::int32_t* list; // logical blocks, ascending; null: block i is entry i
    std::size_t begin;
    std::size_t end;
    std::size_t chunks; // those that hold an entry
    float* partials;    // chunks * partial_floats(..)

    OVSPEC_INLINE_MEMBER std::size_t chunk_begin(std::size_t chunk) const {
        const std::size_t first = (begin / chunk_blocks + chunk) * chunk_blocks;
        return first < begin ? begin : first;
    }
    OVSPEC_INLINE_MEMBER std::size_t chunk_end(std::size_t chunk) const {
        const std::size_t last = (begin / chunk_blocks + chunk + 1) * chunk_blocks;
        return last < end ? last : end;
    }
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
    std::int32_t window;      // a row at position p sees the keys above p - window; 0: all
    std::int32_t past_window; // a row sees so many of the tokens before its sequence's first row; 0: all
    bool causal;              // whether a row sees those rows that it follows, or else all of its sequence
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

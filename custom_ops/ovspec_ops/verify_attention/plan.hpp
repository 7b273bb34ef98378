// What one call of VerifyAttention has to do: checked sequences and heads, and the work items the threads
// share. The cut into chunks depends on a sequence alone, never on the number of threads or on the rest of
// the batch, and no row's result depends on the rows that it is worked on with. So neither changes a bit.
#pragma once

#include <vector>

#include "common/parallel.hpp"
#include "common/sequences.hpp"
#include "verify_attention/kernel.hpp"

namespace ovspec {

// `selected_blocks` and `selected_counts`: entries of KV head h for sequence s start at blocks[h * columns +
// first column of s].
struct Selection {
    const std::int32_t* blocks; // `[kv_heads, columns]`
    const std::int32_t* counts; // `[kv_heads, sequences]`, -1: dense; null: every head is dense
    std::size_t columns;
};

// Of `verify_tables`: the row that each row follows, counted within its sequence, -1 for the past; null: a
// chain.
using Parents = const std::int32_t*;

struct VerifyPlan {
    struct Copy { // rows of the stock attention that go to the output as they are
        std::size_t first_row;
        std::size_t rows;
    };

    // Heads whose partial results are in memory together, and their items.
    struct Wave {
        std::size_t first_head, last_head;
        std::size_t first_item, last_item;
        std::size_t merge_work; // values of partial results
    };

    std::vector<VerifySequence> sequences;
    std::vector<VerifyHead> heads;
    std::vector<VerifyItem> items;
    std::vector<Wave> waves;
    std::vector<Copy> copies;
    std::size_t work = 0; // multiply-adds of attention, and values to copy
    std::size_t worker_floats = 0;

    // Throws std::invalid_argument before anything reads or writes query, caches or output.
    void build(const VerifyCall& call, const VerifyKernels& kernels, const Sequences& inputs,
               const Selection& selection, Parents parents, std::size_t threads);

private:
    void add_rows(const VerifyCall& call, const Sequences& inputs, Parents parents, std::size_t s,
                  std::size_t begin, std::size_t rows);
    void add_heads(const VerifyCall& call, const Sequences& inputs, const Selection& selection,
                   std::size_t s);
    void add_waves(const VerifyCall& call, const VerifyKernels& kernels);
    void add_items(const VerifyCall& call, const VerifyKernels& kernels, const VerifyHead* first,
                   std::size_t count, std::size_t chunks, std::size_t threads);
    FloatBuffer partials_;
    std::vector<std::size_t> partial_begins_; // of every head within its wave
    std::vector<std::int32_t> positions_;     // of all rows of the query
    std::vector<std::int32_t> first_keys_;
    std::vector<std::uint64_t> seen_;
};

} // namespace ovspec

// The ragged inputs that describe a pass: rows per sequence, tokens already cached, block tables. No OpenVINO
// type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/fail.hpp"

namespace ovspec {

struct Sequences {
    const char* op;   // named in messages
    std::size_t rows; // of the query
    std::size_t count;
    const std::int32_t* subsequence_begins; // `[count + 1]`
    const std::int32_t* past_lens;     // `[count]`; -1: the sequence takes no part, where the op allows it
    const std::int32_t* block_indices; // `[table_size]`
    const std::int32_t* block_indices_begins; // `[count + 1]`
    std::size_t table_size;

    std::size_t first_row(std::size_t s) const { return static_cast<std::size_t>(subsequence_begins[s]); }
    std::size_t row_count(std::size_t s) const { return first_row(s + 1) - first_row(s); }
    bool active(std::size_t s) const { return past_lens[s] >= 0; }
    std::size_t past(std::size_t s) const { return static_cast<std::size_t>(past_lens[s]); }
    std::size_t first_column(std::size_t s) const {
        return static_cast<std::size_t>(block_indices_begins[s]);
    }
    const std::int32_t* table(std::size_t s) const { return block_indices + first_column(s); }
    std::size_t table_length(std::size_t s) const { return first_column(s + 1) - first_column(s); }
    // Blocks that hold the sequence once this pass' rows are written.
    std::size_t blocks(std::size_t s) const;

    // Row ranges and table ranges are ascending and within bounds, past_lens is not below `lowest_past`.
    void check(std::int32_t lowest_past) const;
    // Sequence `s` has rows, and its table reaches its last row with block ids below `cache_blocks`.
    void check_table(std::size_t s, std::size_t cache_blocks) const;
};

} // namespace ovspec

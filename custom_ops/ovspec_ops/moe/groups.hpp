// The rows of a pass grouped by the experts that they chose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ovspec {

// Vectors keep their capacity from call to call.
struct ExpertGroups {
    std::vector<std::size_t> experts; // those with rows, ascending
    std::vector<std::size_t> begins;  // per entry of `experts` its first pair; and the end of the last
    std::vector<std::size_t> rows;    // per pair, grouped by expert: its row
    std::vector<float> shares;        // and its routing weight

    // `indices` and `weights` are `[rows, top_k]`; an index of -1 is no pair. Throws where an index is
    // neither -1 nor below `expert_count`.
    void group(const char* op, const std::int32_t* indices, const float* weights, std::size_t first_row,
               std::size_t row_count, std::size_t top_k, std::size_t expert_count);

    std::size_t pairs() const { return rows.size(); }

private:
    std::vector<std::size_t> next_;
};

} // namespace ovspec

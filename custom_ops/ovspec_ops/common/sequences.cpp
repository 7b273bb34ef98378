#include "common/sequences.hpp"

#include "common/cache_view.hpp"

namespace ovspec {
namespace {

constexpr const char *past_name = "verify_past_lens", *table_name = "verify_block_indices";

// Of all rows, or of the entries of the block table. Names are put together in messages alone: strings for
// each call would cost more than the check.
void check_begins(const Sequences& s, const std::int32_t* begins, std::size_t total, bool of_rows) {
    const char* table = of_rows ? "" : table_name;
    const char *name = of_rows ? "subsequence" : table, *what = of_rows ? "query rows" : "entries of ";
    for (std::size_t i = 0; i <= s.count; i++) {
        if (begins[i] < (i == 0 ? 0 : begins[i - 1]) || static_cast<std::size_t>(begins[i]) > total)
            fail(s.op, name, "_begins[", i, "] is ", begins[i], ", expected ascending values up to the ",
                 total, " ", what, table);
    }
    if (of_rows && (begins[0] != 0 || static_cast<std::size_t>(begins[s.count]) != total))
        fail(s.op, name, "_begins covers ", begins[0], " to ", begins[s.count], ", expected 0 to the ", total,
             " ", what);
}

} // namespace

std::size_t Sequences::blocks(std::size_t s) const {
    return (past(s) + row_count(s) + block_size - 1) / block_size;
}

void Sequences::check(std::int32_t lowest_past) const {
    check_begins(*this, subsequence_begins, rows, true);
    check_begins(*this, block_indices_begins, table_size, false);
    for (std::size_t s = 0; s < count; s++)
        if (past_lens[s] < lowest_past || past_lens[s] > INT32_MAX / 2)
            fail(op, past_name, "[", s, "] is ", past_lens[s], ", expected ",
                 (lowest_past < 0 ? "a number of cached tokens, or -1" : "a number of cached tokens"));
}

void Sequences::check_table(std::size_t s, std::size_t cache_blocks) const {
    const std::size_t needed = blocks(s);
    if (row_count(s) == 0)
        fail(op, "sequence ", s, " has no row, but ", past_name, "[", s, "] is ", past_lens[s],
             "; give it rows in subsequence_begins, or -1");
    if (table_length(s) < needed)
        fail(op, table_name, " holds ", table_length(s), " blocks for sequence ", s, ", expected at least ",
             needed, " for ", past(s), " cached tokens and ", row_count(s), " rows");
    for (std::size_t b = 0; b < needed; b++)
        if (table(s)[b] < 0 || static_cast<std::size_t>(table(s)[b]) >= cache_blocks)
            fail(op, table_name, "[", first_column(s) + b, "] is ", table(s)[b],
                 ", expected a block id below the cache's ", cache_blocks, " blocks");
}

} // namespace ovspec

#include "common/sequences.hpp"

#include <stdexcept>

#include "common/cache_view.hpp"

namespace ovspec {
namespace {

std::string at(const std::string& name, std::size_t index) {
    return name + "[" + std::to_string(index) + "]";
}

void check_begins(const Sequences& s, const std::int32_t* begins, const std::string& name, std::size_t total,
                  const std::string& what, bool all) {
    for (std::size_t i = 0; i <= s.count; i++) {
        if (begins[i] < (i == 0 ? 0 : begins[i - 1]) || static_cast<std::size_t>(begins[i]) > total)
            fail(s.op, at(name, i) + " is " + std::to_string(begins[i]) +
                           ", expected ascending values up to the " + std::to_string(total) + " " + what);
    }
    if (all && (begins[0] != 0 || static_cast<std::size_t>(begins[s.count]) != total))
        fail(s.op, name + " covers " + std::to_string(begins[0]) + " to " + std::to_string(begins[s.count]) +
                       ", expected 0 to the " + std::to_string(total) + " " + what);
}

} // namespace

void fail(const char* op, const std::string& message) {
    throw std::invalid_argument(std::string(op) + ": " + message);
}

std::size_t Sequences::blocks(std::size_t s) const {
    return (past(s) + row_count(s) + block_size - 1) / block_size;
}

void Sequences::check(std::int32_t lowest_past) const {
    check_begins(*this, subsequence_begins, "subsequence_begins", rows, "query rows", true);
    check_begins(*this, block_indices_begins, std::string(table_name) + "_begins", table_size,
                 std::string("entries of ") + table_name, false);
    for (std::size_t s = 0; s < count; s++)
        if (past_lens[s] < lowest_past || past_lens[s] > INT32_MAX / 2)
            fail(op,
                 at(past_name, s) + " is " + std::to_string(past_lens[s]) + ", expected " +
                     (lowest_past < 0 ? "a number of cached tokens, or -1" : "a number of cached tokens"));
}

void Sequences::check_table(std::size_t s, std::size_t cache_blocks) const {
    const std::size_t needed = blocks(s);
    if (row_count(s) == 0)
        fail(op, "sequence " + std::to_string(s) + " has no row, but " + at(past_name, s) + " is " +
                     std::to_string(past_lens[s]) + "; give it rows in subsequence_begins, or -1");
    if (table_length(s) < needed)
        fail(op, table_name + std::string(" holds ") + std::to_string(table_length(s)) +
                     " blocks for sequence " + std::to_string(s) + ", expected at least " +
                     std::to_string(needed) + " for " + std::to_string(past(s)) + " cached tokens and " +
                     std::to_string(row_count(s)) + " rows");
    for (std::size_t b = 0; b < needed; b++)
        if (table(s)[b] < 0 || static_cast<std::size_t>(table(s)[b]) >= cache_blocks)
            fail(op, at(table_name, first_column(s) + b) + " is " + std::to_string(table(s)[b]) +
                         ", expected a block id below the cache's " + std::to_string(cache_blocks) +
                         " blocks");
}

} // namespace ovspec

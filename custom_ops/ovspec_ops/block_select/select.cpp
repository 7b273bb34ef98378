#include "block_select/select.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/cache_view.hpp"

namespace ovspec {
namespace {

using Iterator = std::vector<std::uint64_t>::iterator;

// A block's place among the candidates, the better the smaller: its score, then its number, which the lower
// half holds. Whole numbers are compared several times faster than scores behind an index.
std::uint64_t rank(const float* scores, std::size_t block) {
    // 0 and -0 are one score; a float's bits ascend with its amount.
    const float score =
        std::isnan(scores[block]) ? -std::numeric_limits<float>::infinity() : scores[block] + 0.0f;
    std::uint32_t bits;
    std::memcpy(&bits, &score, sizeof(bits));
    const std::uint32_t descending = (bits >> 31) != 0 ? bits : ~bits & 0x7fffffffu;
    return static_cast<std::uint64_t>(descending) << 32 | block;
}

std::size_t block_of(std::uint64_t rank) {
    return rank & 0xffffffffu;
}

// Attention to every scored block, up to a factor; returns the sum.
double estimate_masses(const Scores& scores, std::vector<double>& masses) {
    float highest = -std::numeric_limits<float>::infinity();
    for (std::size_t b = 0; b < scores.count; b++)
        if (scores.values[b] > highest)
            highest = scores.values[b];
    masses.resize(scores.count);
    double total = 0.0;
    for (std::size_t b = 0; b < scores.count; b++) {
        double mass = static_cast<double>(scores.values[b]);
        if (scores.linear)
            mass = std::exp(mass - static_cast<double>(highest)) *
                   static_cast<double>(std::min(block_size, scores.past - b * block_size));
        masses[b] = std::isnan(mass) ? 0.0 : mass;
        total += masses[b];
    }
    return total;
}

// End of the shortest run of best blocks that has a mass of `needed`, by halving: no full sort.
Iterator cover(Iterator begin, Iterator end, double needed, const std::vector<double>& masses) {
    if (begin == end || needed <= 0.0)
        return begin;
    while (end - begin > 1) {
        const Iterator middle = begin + (end - begin) / 2;
        std::nth_element(begin, middle, end);
        double held = 0.0;
        for (Iterator b = begin; b != middle; ++b)
            held += masses[block_of(*b)];
        if (held >= needed) {
            end = middle;
        } else {
            needed -= held;
            begin = middle;
        }
    }
    return end;
}

} // namespace

Ends Ends::of(std::size_t blocks, std::size_t past, std::size_t sink_blocks, std::size_t local_blocks) {
    const std::size_t last = (past > 0 ? past - 1 : 0) / block_size;
    const std::size_t local = last + 1 > local_blocks ? last + 1 - local_blocks : 0;
    return {blocks, std::min(sink_blocks, local), local};
}

std::size_t select_blocks(const Scores& scores, const Ends& ends, const Limits& limits,
                          Candidates& candidates, std::int32_t* selected) {
    const std::size_t mandatory = ends.sinks + ends.blocks - ends.local;
    std::vector<std::uint64_t>& others = candidates.ranks;
    others.resize(ends.local - ends.sinks);
    for (std::size_t i = 0; i < others.size(); i++)
        others[i] = rank(scores.values, ends.sinks + i);
    const std::size_t free = std::min(limits.budget - std::min(limits.budget, mandatory), others.size());
    Iterator end = others.begin() + static_cast<std::ptrdiff_t>(free);
    if (free < others.size())
        std::nth_element(others.begin(), end, others.end());
    if (limits.coverage < 1.0f) {
        const double total = estimate_masses(scores, candidates.masses);
        const auto mass = candidates.masses.begin();
        const double held =
            std::accumulate(mass, mass + static_cast<std::ptrdiff_t>(ends.sinks), 0.0) +
            std::accumulate(mass + static_cast<std::ptrdiff_t>(ends.local), candidates.masses.end(), 0.0);
        const double needed = static_cast<double>(limits.coverage) * total - held;
        end = cover(others.begin(), end, needed, candidates.masses);
    }
    for (Iterator b = others.begin(); b != end; ++b)
        *b = block_of(*b);
    std::sort(others.begin(), end);

    std::int32_t* const first = selected;
    for (std::size_t b = 0; b < ends.sinks; b++)
        *selected++ = static_cast<std::int32_t>(b);
    for (Iterator b = others.begin(); b != end; ++b)
        *selected++ = static_cast<std::int32_t>(*b);
    for (std::size_t b = ends.local; b < ends.blocks; b++)
        *selected++ = static_cast<std::int32_t>(b);
    return static_cast<std::size_t>(selected - first);
}

} // namespace ovspec

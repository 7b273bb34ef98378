#include "block_select/select.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/cache_view.hpp"

namespace ovspec {
namespace {

using Ranks = std::vector<std::uint64_t>;
using Iterator = Ranks::iterator;

// A block's place among the candidates, the better the smaller: its score, then its number, which the lower
// half holds. Whole numbers are compared several times faster than scores behind an index.
std::uint64_t rank_of(const float* scores, std::size_t block) {
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

// The rank that is number `count` from the best, 1 to all of them. Halves the candidates by passes without a
// branch that depends on a rank: a processor can't predict these.
std::uint64_t rank_of_last(const Ranks& ranks, std::size_t count, Ranks& better, Ranks& worse) {
    better = ranks;
    worse.resize(ranks.size());
    std::uint64_t *from = better.data(), *other = worse.data();
    std::size_t left = ranks.size();
    for (int passes = 0; left > 16 && passes < 32; passes++) {
        const std::uint64_t a = from[left / 4], b = from[left / 2], c = from[left / 4 * 3];
        const std::uint64_t pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
        std::size_t up_to = 0, above = 0; // the pivot
        for (std::size_t i = 0; i < left; i++) {
            const std::uint64_t rank = from[i];
            from[up_to] = other[above] = rank;
            up_to += rank <= pivot;
            above += rank > pivot;
        }
        left = count <= up_to ? up_to : above;
        if (count > up_to) {
            count -= up_to;
            std::swap(from, other);
        }
    }
    std::nth_element(from, from + count - 1, from + left);
    return from[count - 1];
}

// Those up to `last`, in their order.
void keep(Ranks& ranks, std::uint64_t last) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < ranks.size(); i++) {
        const std::uint64_t rank = ranks[i];
        ranks[kept] = rank;
        kept += rank <= last;
    }
    ranks.resize(kept);
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
    Ranks &ranks = candidates.ranks, &best = candidates.best;
    ranks.resize(ends.local - ends.sinks);
    for (std::size_t i = 0; i < ranks.size(); i++)
        ranks[i] = rank_of(scores.values, ends.sinks + i);
    const std::size_t free = limits.budget - std::min(limits.budget, mandatory);
    if (free == 0)
        ranks.clear();
    else if (free < ranks.size())
        keep(ranks, rank_of_last(ranks, free, best, candidates.others));
    if (limits.coverage < 1.0f) {
        const double total = estimate_masses(scores, candidates.masses);
        const auto mass = candidates.masses.begin();
        const double held =
            std::accumulate(mass, mass + static_cast<std::ptrdiff_t>(ends.sinks), 0.0) +
            std::accumulate(mass + static_cast<std::ptrdiff_t>(ends.local), candidates.masses.end(), 0.0);
        const double needed = static_cast<double>(limits.coverage) * total - held;
        best = ranks;
        const Iterator end = cover(best.begin(), best.end(), needed, candidates.masses);
        if (end == best.begin())
            ranks.clear();
        else
            keep(ranks, *std::max_element(best.begin(), end));
    }

    std::int32_t* const first = selected;
    for (std::size_t b = 0; b < ends.sinks; b++)
        *selected++ = static_cast<std::int32_t>(b);
    for (const std::uint64_t rank : ranks)
        *selected++ = static_cast<std::int32_t>(block_of(rank));
    for (std::size_t b = ends.local; b < ends.blocks; b++)
        *selected++ = static_cast<std::int32_t>(b);
    return static_cast<std::size_t>(selected - first);
}

} // namespace ovspec

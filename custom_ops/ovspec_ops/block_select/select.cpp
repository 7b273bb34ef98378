#include "block_select/select.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/cache_view.hpp"

namespace ovspec {
namespace {

using Iterator = std::vector<std::int32_t>::iterator;

// Estimated attention mass of every block, up to a factor; returns their sum.
double estimate_masses(const float* scores, std::size_t blocks, const Limits& limits,
                       std::vector<double>& masses) {
    float highest = -std::numeric_limits<float>::infinity();
    for (std::size_t b = 0; b < blocks; b++)
        if (scores[b] > highest)
            highest = scores[b];
    masses.resize(blocks);
    double total = 0.0;
    for (std::size_t b = 0; b < blocks; b++) {
        const double weight = std::exp(static_cast<double>(limits.scale) *
                                       (static_cast<double>(scores[b]) - static_cast<double>(highest)));
        const double tokens = static_cast<double>(b + 1 < blocks ? block_size : limits.last_tokens);
        masses[b] = std::isnan(weight) ? 0.0 : weight * tokens;
        total += masses[b];
    }
    return total;
}

// End of the shortest run of best blocks that has a mass of `needed`, by halving: no full sort.
template <class Better>
Iterator cover(Iterator begin, Iterator end, double needed, const std::vector<double>& masses,
               const Better& better) {
    if (begin == end || needed <= 0.0)
        return begin;
    while (end - begin > 1) {
        const Iterator middle = begin + (end - begin) / 2;
        std::nth_element(begin, middle, end, better);
        double held = 0.0;
        for (Iterator b = begin; b != middle; ++b)
            held += masses[static_cast<std::size_t>(*b)];
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

std::size_t select_blocks(const float* scores, const Ends& ends, const Limits& limits, Candidates& candidates,
                          std::int32_t* selected) {
    const std::size_t mandatory = ends.sinks + ends.blocks - ends.local;
    std::vector<std::int32_t>& others = candidates.blocks;
    others.resize(ends.local - ends.sinks);
    std::iota(others.begin(), others.end(), static_cast<std::int32_t>(ends.sinks));
    const std::size_t free = std::min(limits.budget - std::min(limits.budget, mandatory), others.size());

    const auto rank = [&](std::int32_t b) {
        return std::isnan(scores[b]) ? -std::numeric_limits<float>::infinity() : scores[b];
    };
    const auto better = [&](std::int32_t a, std::int32_t b) {
        return rank(a) != rank(b) ? rank(a) > rank(b) : a < b;
    };
    Iterator end = others.begin() + static_cast<std::ptrdiff_t>(free);
    if (free < others.size())
        std::nth_element(others.begin(), end, others.end(), better);
    if (limits.coverage < 1.0f) {
        const double total = estimate_masses(scores, ends.blocks, limits, candidates.masses);
        const auto mass = candidates.masses.begin();
        const double held =
            std::accumulate(mass, mass + static_cast<std::ptrdiff_t>(ends.sinks), 0.0) +
            std::accumulate(mass + static_cast<std::ptrdiff_t>(ends.local), candidates.masses.end(), 0.0);
        const double needed = static_cast<double>(limits.coverage) * total - held;
        end = cover(others.begin(), end, needed, candidates.masses, better);
    }
    std::sort(others.begin(), end);

    std::int32_t* const first = selected;
    for (std::size_t b = 0; b < ends.sinks; b++)
        *selected++ = static_cast<std::int32_t>(b);
    selected = std::copy(others.begin(), end, selected);
    for (std::size_t b = ends.local; b < ends.blocks; b++)
        *selected++ = static_cast<std::int32_t>(b);
    return static_cast<std::size_t>(selected - first);
}

} // namespace ovspec

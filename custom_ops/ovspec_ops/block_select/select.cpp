#include "block_select/select.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace ovspec {

std::size_t select_blocks(const float* scores, std::size_t blocks, std::size_t first_mandatory,
                          std::size_t budget, std::vector<std::int32_t>& others, std::int32_t* selected) {
    const std::size_t tail = blocks - first_mandatory;
    const std::size_t mandatory = tail + (first_mandatory > 0 ? 1 : 0);
    std::size_t free = budget > mandatory ? budget - mandatory : 0;
    others.resize(first_mandatory > 0 ? first_mandatory - 1 : 0);
    std::iota(others.begin(), others.end(), 1);
    free = std::min(free, others.size());

    const auto rank = [&](std::int32_t b) {
        return std::isnan(scores[b]) ? -std::numeric_limits<float>::infinity() : scores[b];
    };
    const auto better = [&](std::int32_t a, std::int32_t b) {
        return rank(a) != rank(b) ? rank(a) > rank(b) : a < b;
    };
    const auto end = others.begin() + static_cast<std::ptrdiff_t>(free);
    if (free < others.size())
        std::nth_element(others.begin(), end, others.end(), better);
    std::sort(others.begin(), end);

    std::size_t count = 0;
    if (first_mandatory > 0)
        selected[count++] = 0;
    for (auto b = others.begin(); b != end; ++b)
        selected[count++] = *b;
    for (std::size_t b = first_mandatory; b < blocks; b++)
        selected[count++] = static_cast<std::int32_t>(b);
    return count;
}

} // namespace ovspec

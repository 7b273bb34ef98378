// The two halves of a product of low rank. A row's bits do not depend on how many outputs are computed
// together.
#pragma once

#include "common/simd.hpp"
#include "linear/adapters.hpp"
#include "linear/kernel.hpp"

namespace ovspec::OVSPEC_ISA::low_rank {

OVSPEC_INLINE float dot(const float* a, const float* x, std::size_t size) {
    Vec sums[4] = {};
    std::size_t i = 0;
    for (; i + 4 * lanes <= size; i += 4 * lanes)
#pragma GCC unroll 4
        for (std::size_t v = 0; v < 4; v++)
            sums[v] = fused(load(a + i + v * lanes), load(x + i + v * lanes), sums[v]);
    for (; i < size; i += lanes) {
        const std::size_t count = size - i < lanes ? size - i : lanes;
        sums[0] = fused(load_some(a + i, count), load_some(x + i, count), sums[0]);
    }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

OVSPEC_INLINE void down(const LowRank& of, const float* x, std::size_t inputs, float* values) {
    for (std::size_t r = 0; r < of.rank; r++)
        values[r] = of.scale * dot(of.a + r * inputs, x, inputs);
}

OVSPEC_INLINE void up(const float* values, const float* b, std::size_t rank, std::size_t width, float* y) {
    constexpr std::size_t vectors = panel_width / lanes;
    float part[panel_width] = {};
    const bool whole = width == panel_width;
    if (!whole)
        __builtin_memcpy(part, y, width * sizeof(float));
    float* to = whole ? y : part;
    Vec sums[vectors];
#pragma GCC unroll 8
    for (std::size_t v = 0; v < vectors; v++)
        sums[v] = load(to + v * lanes);
    for (std::size_t r = 0; r < rank; r++) {
        const Vec value = splat(values[r]);
#pragma GCC unroll 8
        for (std::size_t v = 0; v < vectors; v++)
            sums[v] = fused(value, load(b + r * panel_width + v * lanes), sums[v]);
    }
#pragma GCC unroll 8
    for (std::size_t v = 0; v < vectors; v++)
        store(to + v * lanes, sums[v]);
    if (!whole)
        __builtin_memcpy(y, part, width * sizeof(float));
}

} // namespace ovspec::OVSPEC_ISA::low_rank

#include "block_select/kernel.hpp"

#include "common/simd.hpp"

namespace ovspec::OVSPEC_ISA {
namespace {

// Products of `count` rows of `size` values with one vector, from `count` independent chains of additions.
// The lanes of a row are added up in one order for any count.
template <std::size_t count>
OVSPEC_INLINE void dots(const float* rows, const float* vector, std::size_t size, float* products) {
    const std::size_t full = size / lanes * lanes, rest = size - full;
    Vec totals[4] = {};
    for (std::size_t d = 0; d < full; d += lanes) {
        const Vec x = load(vector + d);
#pragma GCC unroll 4
        for (std::size_t i = 0; i < count; i++)
            totals[i] = fused(load(rows + i * size + d), x, totals[i]);
    }
    if (rest > 0) {
        const Vec x = load_part<Vec>(vector + full, rest);
        for (std::size_t i = 0; i < count; i++)
            totals[i] = fused(load_part<Vec>(rows + i * size + full, rest), x, totals[i]);
    }
    sum_four(totals, products);
}

OVSPEC_INLINE float highest_score(const float* queries, std::size_t rows, const float* summary,
                                  std::size_t size) {
    float highest = minus_infinity, products[4];
    bool wrong = false;
    std::size_t row = 0;
    const auto take = [&](std::size_t count) {
        for (std::size_t i = 0; i < count; i++) {
            highest = products[i] > highest ? products[i] : highest;
            wrong = wrong || products[i] != products[i];
        }
        row += count;
    };
    while (row + 4 <= rows) {
        dots<4>(queries + row * size, summary, size, products);
        take(4);
    }
    while (row < rows) {
        dots<1>(queries + row * size, summary, size, products);
        take(1);
    }
    return wrong ? __builtin_nanf("") : highest;
}

void score_blocks(const ScoreCall& call, std::size_t begin, std::size_t end) {
    const std::size_t unit = call.kv_heads * call.size;
    for (std::size_t b = begin; b < end; b++) {
        const float* summary = call.summary + (std::size_t)call.table[b] * unit;
        // A table's blocks lie anywhere, so the processor does not foresee the next one.
        const float* next = call.summary + (std::size_t)call.table[b + 1 < end ? b + 1 : b] * unit;
        for (std::size_t h = 0; h < call.kv_heads; h++) {
            for (std::size_t d = 0; d < call.size; d += 16)
                __builtin_prefetch(next + h * call.size + d);
            call.scores[h * call.blocks + b] = highest_score(call.queries + h * call.rows * call.size,
                                                             call.rows, summary + h * call.size, call.size);
        }
    }
}

} // namespace

const SelectKernels select_kernels = {score_blocks};

} // namespace ovspec::OVSPEC_ISA

// The two halves of a product of low rank. A row's bits do not depend on the rows beside it, nor on how many
// outputs are computed together.
#pragma once

#include "common/simd.hpp"
#include "linear/adapters.hpp"
#include "linear/kernel.hpp"

namespace ovspec::OVSPEC_ISA::low_rank {

// Rows that share a vector of A or B, by the number of registers.
constexpr std::size_t together = lanes == 16 ? 4 : 2;

// Products of a row of A with `rows` rows of x; y[r * stride] for row r.
template <std::size_t rows>
OVSPEC_INLINE void dots(const float* a, const float* x, std::size_t size, float scale, float* y,
                        std::size_t stride) {
    Vec sums[rows][4];
    clear(sums);
    std::size_t i = 0;
    for (; i + 4 * lanes <= size; i += 4 * lanes)
#pragma GCC unroll 4
        for (std::size_t v = 0; v < 4; v++) {
            const Vec factors = load(a + i + v * lanes);
#pragma GCC unroll 4
            for (std::size_t r = 0; r < rows; r++)
                sums[r][v] = fused(factors, load(x + r * size + i + v * lanes), sums[r][v]);
        }
    for (; i < size; i += lanes) {
        const std::size_t count = size - i < lanes ? size - i : lanes;
        const Vec factors = load_some(a + i, count);
#pragma GCC unroll 4
        for (std::size_t r = 0; r < rows; r++)
            sums[r][0] = fused(factors, load_some(x + r * size + i, count), sums[r][0]);
    }
#pragma GCC unroll 4
    for (std::size_t r = 0; r < rows; r++)
        y[r * stride] = scale * sum((sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]));
}

OVSPEC_INLINE void down(const LowRank& of, const float* x, std::size_t inputs, std::size_t rows,
                        float* values, std::size_t stride) {
    for (std::size_t row = 0; row < rows;)
        row += take_rows<together>(rows - row, row, [&](auto R, std::size_t first) {
            for (std::size_t i = 0; i < of.rank; i++)
                dots<R>(of.a + i * inputs, x + first * inputs, inputs, of.scale, values + first * stride + i,
                        stride);
        });
}

// y[r] += values[r] times a panel of B, for whole panels of outputs.
template <std::size_t rows>
OVSPEC_INLINE void add_panel(const float* values, std::size_t stride, const float* b, std::size_t rank,
                             float* y, std::size_t y_stride) {
    constexpr std::size_t vectors = panel_width / lanes;
    Vec sums[rows][vectors];
#pragma GCC unroll 4
    for (std::size_t r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (std::size_t v = 0; v < vectors; v++)
            sums[r][v] = load(y + r * y_stride + v * lanes);
    for (std::size_t i = 0; i < rank; i++)
#pragma GCC unroll 8
        for (std::size_t v = 0; v < vectors; v++) {
            const Vec factors = load(b + i * panel_width + v * lanes);
#pragma GCC unroll 4
            for (std::size_t r = 0; r < rows; r++)
                sums[r][v] = fused(splat(values[r * stride + i]), factors, sums[r][v]);
        }
#pragma GCC unroll 4
    for (std::size_t r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (std::size_t v = 0; v < vectors; v++)
            store(y + r * y_stride + v * lanes, sums[r][v]);
}

OVSPEC_INLINE void up(const float* values, std::size_t stride, const float* b, std::size_t rank,
                      std::size_t rows, std::size_t width, float* y, std::size_t y_stride) {
    if (width == panel_width) {
        for (std::size_t row = 0; row < rows;)
            row += take_rows<together>(rows - row, row, [&](auto R, std::size_t first) {
                add_panel<R>(values + first * stride, stride, b, rank, y + first * y_stride, y_stride);
            });
        return;
    }
    for (std::size_t row = 0; row < rows; row++) { // the last outputs of a layer
        float part[panel_width] = {};
        __builtin_memcpy(part, y + row * y_stride, width * sizeof(float));
        add_panel<1>(values + row * stride, stride, b, rank, part, panel_width);
        __builtin_memcpy(y + row * y_stride, part, width * sizeof(float));
    }
}

} // namespace ovspec::OVSPEC_ISA::low_rank

// Rows times panels with integer dot products: a vector holds four inputs of `lanes` neurons, and the digits
// of a row are spread over it.
#pragma once

#include "linear/digit_rows.hpp"
#include "linear/panels.hpp"

namespace ovspec::OVSPEC_ISA::dot_path {

using digit_rows::BlockLayout;

// Rows whose sums the registers hold.
constexpr std::size_t most_rows = 4;

// Adds the products of up to a slab of inputs: both digits of R rows, for the neurons of V vectors at
// `weights`.
template <WeightFormat format, std::size_t R, std::size_t V>
OVSPEC_INLINE void add_slab(const std::uint8_t* weights, std::size_t quads, const std::uint8_t* digits,
                            std::size_t low, panels::Asked& asked, IVec (&high_sums)[V][R],
                            IVec (&low_sums)[V][R]) {
    panels::for_wide_quads<format, V>(
        weights, quads, asked, [&](const IVec(&weight)[V], std::size_t quad) __attribute__((always_inline)) {
#pragma GCC unroll 8
            for (std::size_t r = 0; r < R; r++) {
                const std::uint8_t* at = digits + r * digit_rows::slab + 4 * quad;
                const IVec high = splat_bytes(at), low_digits = splat_bytes(at + low);
#pragma GCC unroll 8
                for (std::size_t v = 0; v < V; v++) {
                    high_sums[v][r] = dot(high_sums[v][r], weight[v], high);
                    low_sums[v][r] = dot(low_sums[v][r], weight[v], low_digits);
                }
            }
        });
}

// Rows row to row + R of `rows`, all of one block.
template <WeightFormat format, std::size_t R>
__attribute__((noinline)) void rows_of(const LinearWeights& w, const std::uint8_t* panel,
                                       const BlockLayout& layout, const std::uint8_t* packed, std::size_t row,
                                       std::size_t rows, const PanelTarget& target) {
    const std::uint8_t* block = packed + row / block_rows * layout.bytes;
    const std::size_t first = row % block_rows;
    const std::size_t size = w.groups == 1 ? w.padded() : w.group_size();
    constexpr std::size_t V = panels::vectors_together(2 * R);
    panels::Asked asked(panel, w.panel_bytes(), rows, most_rows, row);
    for (std::size_t part = 0; part < panel_width; part += V * lanes) {
        Vec total[V][R];
        clear(total);
        const std::uint8_t* weights = panel + w.data_at() + 4 * part;
        for (std::size_t g = 0; g < w.groups; g++) {
            IVec high[V][R], low[V][R];
            clear(high);
            clear(low);
            asm("" : "+m"(total)); // in memory, so that the other sums stay in registers
            for (std::size_t k = g * size; k < (g + 1) * size;) {
                // A group need not begin with a slab.
                const std::size_t end = (k / digit_rows::slab + 1) * digit_rows::slab;
                const std::size_t some = (end < (g + 1) * size ? end : (g + 1) * size) - k;
                add_slab<format, R, V>(weights, some / 4, layout.at(block, first, k), layout.low(), asked,
                                       high, low);
                weights += some * panels::input_bytes(format);
                k += some;
            }
            for (std::size_t v = 0; v < V; v++) {
                const auto scales = digit_rows::scales_of<format>(w, panel, g, part + v * lanes);
                for (std::size_t r = 0; r < R; r++)
                    total[v][r] = scales.add(total[v][r], high[v][r], low[v][r], layout.group_sums(block, g),
                                             first + r);
            }
        }
        for (std::size_t v = 0; v < V; v++)
            for (std::size_t r = 0; r < R; r++)
                panels::write(target, row + r, part + v * lanes,
                              total[v][r] * layout.units(block)[first + r]);
    }
}

template <WeightFormat format>
OVSPEC_INLINE void product(const LinearWeights& w, std::size_t first, std::size_t count,
                           const std::uint8_t* packed, std::size_t rows, const PanelTarget* targets) {
    const BlockLayout layout(w, rows < block_rows ? rows : block_rows);
    for (std::size_t p = 0; p < count; p++)
        panels::for_rows<most_rows>(rows, [&](auto R, std::size_t row) __attribute__((always_inline)) {
            rows_of<format, R>(w, w.panel(first + p), layout, packed, row, rows, targets[p]);
        });
}

} // namespace ovspec::OVSPEC_ISA::dot_path

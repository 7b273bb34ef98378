// Rows of 8 bits times panels with integer dot products: a vector holds four inputs of `lanes` neurons, and
// those of a row are spread over it.
#pragma once

#include "linear/byte_rows.hpp"
#include "linear/panels.hpp"

namespace ovspec::OVSPEC_ISA::byte_path {

using byte_rows::BlockLayout;
using byte_rows::span;

// Rows whose sums the registers hold.
constexpr std::size_t most_rows = lanes == 16 ? 8 : 4;
// Inputs that are processed for all neurons of a panel before the next ones, so that memory is read in order.
constexpr std::size_t stretch = 4 * span;

// Adds the products of a stretch of a group to acc: R rows, from row `first` of a block on, times the neurons
// of V vectors at `weights`.
template <WeightFormat format, std::size_t R, std::size_t V>
OVSPEC_INLINE void add_spans(const BlockLayout& layout, const std::uint8_t* packed, std::size_t first,
                             std::size_t place, std::size_t inputs, const std::uint8_t* weights,
                             panels::Asked& asked, Vec (&acc)[V][R]) {
    for (std::size_t k = 0; k < inputs; k += span, place++) {
        const std::size_t some = inputs - k < span ? inputs - k : span;
        const std::uint8_t* integers = layout.integers_of(packed, place) + first * span;
        IVec sums[V][R];
        clear(sums);
        panels::for_wide_quads<format, V>(
            weights + k * panels::input_bytes(format), some / 4, asked,
            [&](const IVec(&weight)[V], std::size_t quad) __attribute__((always_inline)) {
#pragma GCC unroll 8
                for (std::size_t r = 0; r < R; r++) {
                    const IVec values = splat_bytes(integers + r * span + 4 * quad);
#pragma GCC unroll 8
                    for (std::size_t v = 0; v < V; v++)
                        sums[v][r] = dot(sums[v][r], weight[v], values);
                }
            });
        const float* units = layout.units_of(packed, place) + first;
#pragma GCC unroll 8
        for (std::size_t v = 0; v < V; v++)
#pragma GCC unroll 8
            for (std::size_t r = 0; r < R; r++)
                acc[v][r] = fused(__builtin_convertvector(sums[v][r], Vec), splat(units[r]), acc[v][r]);
    }
}

// Rows row to row + R of `rows`, all of one block.
template <WeightFormat format, std::size_t R>
__attribute__((noinline)) void rows_of(const LinearWeights& w, const std::uint8_t* panel,
                                       const BlockLayout& layout, const std::uint8_t* packed, std::size_t row,
                                       std::size_t rows, const PanelTarget& target) {
    panels::fetch_target(target, row, R);
    const std::uint8_t* block = packed + row / block_rows * layout.bytes;
    const std::size_t first = row % block_rows;
    constexpr std::size_t parts = panel_width / lanes, V = panels::vectors_together(R);
    const std::size_t at_once = V == parts ? layout.group_size : stretch;
    Vec total[parts][R] = {};
    const std::uint8_t* weights = panel + w.data_at();
    panels::Asked asked(panel, w.panel_bytes(), rows, most_rows, row);
    for (std::size_t g = 0; g < w.groups; g++) {
        Vec of_group[parts / V][V][R] = {};
        for (std::size_t k = 0; k < layout.group_size; k += at_once) {
            const std::size_t left = layout.group_size - k, some = left < at_once ? left : at_once;
            for (std::size_t p = 0; p < parts; p += V) {
                Vec acc[V][R];
                __builtin_memcpy(acc, of_group[p / V], sizeof(acc));
                add_spans<format, R, V>(layout, block, first, g * layout.spans + k / span, some,
                                        weights + 4 * lanes * p, asked, acc);
                __builtin_memcpy(of_group[p / V], acc, sizeof(acc));
            }
            weights += some * panels::input_bytes(format);
        }
        const float* sums = layout.sums_of(block, g) + first;
        for (std::size_t p = 0; p < parts; p++) {
            const panels::Scales scales(w, panel, g, p * lanes);
            for (std::size_t r = 0; r < R; r++)
                total[p][r] = fused(fused(-scales.zero_point, splat(sums[r]), of_group[p / V][p % V][r]),
                                    scales.scale, total[p][r]);
        }
    }
    for (std::size_t p = 0; p < parts; p++)
        for (std::size_t r = 0; r < R; r++)
            panels::write(target, row + r, p * lanes, total[p][r]);
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

} // namespace ovspec::OVSPEC_ISA::byte_path

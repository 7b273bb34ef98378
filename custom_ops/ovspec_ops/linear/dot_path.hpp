// Rows times panels with integer dot products: a vector holds four inputs of `lanes` neurons, and the digits
// of a row are spread over it.
#pragma once

#ifdef OVSPEC_DOT

#include "linear/digit_rows.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace dot_path {

using digit_rows::BlockLayout;

// Rows whose sums the registers hold.
constexpr std::size_t most_rows = lanes == 16 ? 8 : 4;
constexpr std::size_t quad_bytes = 4 * panel_width; // four inputs of all neurons
constexpr std::size_t ahead = 4096;                 // bytes that are asked for before they are read

OVSPEC_INLINE IVec spread(const std::uint8_t* digits) {
    return IVec{} + load_as<std::int32_t>(digits);
}

// Sums of both digits of R rows over one group, for the `lanes` neurons at `weights`.
template <WeightFormat format, std::size_t R>
OVSPEC_INLINE void sums_of(const std::uint8_t* weights, std::size_t quads, const std::uint8_t* high_digits,
                           const std::uint8_t* low_digits, std::size_t stride, bool asks, IVec* high,
                           IVec* low) {
    const auto add = [&](IVec weight, std::size_t quad) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (std::size_t r = 0; r < R; r++) {
            high[r] = dot(high[r], weight, spread(high_digits + r * stride + 4 * quad));
            low[r] = dot(low[r], weight, spread(low_digits + r * stride + 4 * quad));
        }
    };
    if constexpr (format == WeightFormat::u8) {
        for (std::size_t q = 0; q < quads; q++) {
            if (asks)
                __builtin_prefetch(weights + q * quad_bytes + ahead);
            add(load_as<IVec>(weights + q * quad_bytes), q);
        }
    } else {
        const IVec nibble = IVec{} + 0x0f0f0f0f;
        for (std::size_t q = 0; q < quads; q += 2) {
            if (asks)
                __builtin_prefetch(weights + q / 2 * quad_bytes + ahead);
            const IVec both = load_as<IVec>(weights + q / 2 * quad_bytes);
            add(both & nibble, q);
            add((IVec)((UVec)both >> 4) & nibble, q + 1);
        }
    }
}

// Rows first to first + R of a block.
template <WeightFormat format, std::size_t R>
__attribute__((noinline)) void rows_of(const LinearWeights& w, const std::uint8_t* panel,
                                       const BlockLayout& layout, const std::uint8_t* packed,
                                       std::size_t first, std::size_t row, bool asks,
                                       const PanelTarget& target) {
    const std::size_t size = w.groups == 1 ? w.padded() : w.group_size();
    const std::size_t group_bytes = size * panel_width / (format == WeightFormat::u4 ? 2 : 1);
    for (std::size_t part = 0; part < panel_width; part += lanes) {
        Vec total[R];
        for (std::size_t r = 0; r < R; r++)
            total[r] = Vec{};
        for (std::size_t g = 0; g < w.groups; g++) {
            IVec high[R], low[R];
#pragma GCC unroll 8
            for (std::size_t r = 0; r < R; r++)
                high[r] = low[r] = IVec{};
            sums_of<format, R>(panel + w.data_at() + g * group_bytes + 4 * part, size / 4,
                               layout.high(packed, first) + g * size, layout.low(packed, first) + g * size,
                               layout.stride, asks && part == 0, high, low);
            const digit_rows::Scales scales = digit_rows::scales_of(w, panel, g, part);
            for (std::size_t r = 0; r < R; r++)
                total[r] += digit_rows::scaled(high[r], low[r], scales, layout.high_sums(packed, g)[first + r],
                                               layout.low_sums(packed, g)[first + r]);
        }
        for (std::size_t r = 0; r < R; r++)
            digit_rows::write(target, row + r, part, total[r] * layout.units(packed)[first + r]);
    }
}

template <WeightFormat format>
OVSPEC_INLINE void product(const LinearWeights& w, std::size_t first, std::size_t count,
                           const std::uint8_t* packed, std::size_t rows, const PanelTarget* targets) {
    const BlockLayout layout(w, rows < block_rows ? rows : block_rows);
    for (std::size_t p = 0; p < count; p++) {
        const std::uint8_t* panel = w.panel(first + p);
        for (std::size_t row = 0; row < rows;) {
            const std::uint8_t* block = packed + row / block_rows * layout.bytes;
            const std::size_t in_block = row % block_rows;
            const std::size_t left = (rows < row - in_block + block_rows ? rows : row - in_block + block_rows) - row;
            const bool asks = row == 0;
            const auto take = [&](auto kernel, std::size_t some) __attribute__((always_inline)) {
                kernel(w, panel, layout, block, in_block, row, asks, targets[p]);
                row += some;
            };
            if (left >= most_rows)
                take(rows_of<format, most_rows>, most_rows);
            else if (left >= 4)
                take(rows_of<format, 4>, 4);
            else if (left >= 2)
                take(rows_of<format, 2>, 2);
            else
                take(rows_of<format, 1>, 1);
        }
    }
}

} // namespace dot_path
} // namespace OVSPEC_ISA
} // namespace ovspec

#endif

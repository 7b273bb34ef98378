// Sums of channels with down weights of 8 and 4 bits, for rows of 8 bits. Weights are interleaved as in
// integer_columns.hpp; a scale of the row belongs to neighbouring entries of a batch.
#pragma once

#include "common/byte_values.hpp"
#include "gated_mlp/integer_columns.hpp"

namespace ovspec::OVSPEC_ISA::byte_columns {

using integer_columns::batch;
using integer_columns::Batch;

constexpr std::size_t fours = byte_values::group / 4; // of entries that share a scale
constexpr std::size_t tile_rows = lanes == 16 ? 4 : 3;

// Of a batch of a packed row.
struct BatchUnits {
    float units[batch / byte_values::group];
    float sum; // of the values
    float unused[3];
};

// A packed row: BatchUnits of every batch, then the integers of all entries.
struct InnerLayout {
    std::size_t integers, bytes;

    explicit InnerLayout(const ChannelView& view) {
        std::size_t batches = 0;
        for (std::size_t i = 0; i < view.run_count; i++)
            batches += (view.runs[i].end - view.runs[i].begin + batch - 1) / batch;
        integers = integer_columns::round_up(batches * sizeof(BatchUnits), 64);
        bytes = integers + integer_columns::round_up(view.count, 64);
    }
};

OVSPEC_INLINE void pack(const ChannelView& view, const float* values, std::uint8_t* packed) {
    const InnerLayout layout(view);
    auto* units = (BatchUnits*)packed;
    byte_values::Rounder rounder;
    for (std::size_t i = 0; i < view.run_count; i++) {
        const ChannelRun& run = view.runs[i];
        for (std::size_t begin = run.begin; begin < run.end; begin += batch, units++) {
            const std::size_t end = run.end - begin < batch ? run.end : begin + batch;
            *units = BatchUnits{};
            float* unit = units->units;
            for (std::size_t k = begin; k < end; k += byte_values::group)
                *unit++ =
                    rounder.group_of(values + k, end - k < byte_values::group ? end - k : byte_values::group,
                                     packed + layout.integers + k);
            units->sum = rounder.take_sum();
        }
    }
    // Every result of a row that is not finite is NaN.
    ((BatchUnits*)packed)->sum += sum(rounder.poison);
}

// acc[r * 2 + t]: sums of R rows for two vectors of outputs, of `count` fours of entries.
template <std::size_t R>
__attribute__((noinline)) void products(const std::uint8_t* first, const std::uint8_t* second,
                                        std::size_t count, const std::uint8_t* const* integers,
                                        const BatchUnits* const* units, integer_columns::Ahead& ahead,
                                        Vec* acc) {
    Vec total[2 * R];
    clear(total);
    for (std::size_t k = 0; k < count;) {
        const std::size_t end = count - k < fours ? count : k + fours, group = k / fours;
        IVec sums[2 * R];
        clear(sums);
        for (; k < end; k++) {
            ahead.step();
            const IVec a = load_as<IVec>(first + k * 64), b = load_as<IVec>(second + k * 64);
#pragma GCC unroll 8
            for (std::size_t r = 0; r < R; r++) {
                const IVec x = splat_bytes(integers[r] + 4 * k);
                sums[2 * r] = dot(sums[2 * r], a, x);
                sums[2 * r + 1] = dot(sums[2 * r + 1], b, x);
            }
        }
#pragma GCC unroll 8
        for (std::size_t r = 0; r < R; r++) {
            const Vec unit = splat(units[r]->units[group]);
#pragma GCC unroll 2
            for (std::size_t i = 2 * r; i < 2 * r + 2; i++)
                total[i] = fused(__builtin_convertvector(sums[i], Vec), unit, total[i]);
        }
    }
#pragma GCC unroll 16
    for (std::size_t i = 0; i < 2 * R; i++)
        acc[i] = total[i];
}

// Adds R rows' products to y.
template <std::size_t R>
OVSPEC_INLINE void add(const Batch& batch, std::size_t integers_at, const std::uint8_t* const* rows, float* y,
                       std::size_t stride) {
    const std::uint8_t* integers[R];
    const BatchUnits* units[R];
    for (std::size_t r = 0; r < R; r++) {
        integers[r] = rows[r] + integers_at + batch.begin;
        units[r] = (const BatchUnits*)rows[r] + batch.index;
    }
    for (std::size_t h = 0; h < batch.count; h += 2 * lanes) {
        Vec acc[2 * R];
        products<R>(batch.weights(h), batch.weights(h + lanes), (batch.end - batch.begin) / 4, integers,
                    units, batch.ahead, acc);
        for (std::size_t t = 0; t < 2 && h + t * lanes < batch.count; t++) {
            const integer_columns::Outputs outputs(batch, h + t * lanes);
            for (std::size_t r = 0; r < R; r++)
                outputs.add(acc[2 * r + t], units[r]->sum, 1.0f, y + r * stride + h + t * lanes);
        }
    }
}

OVSPEC_INLINE void down(const ChannelMatrix& m, const ChannelView& view, std::size_t first, std::size_t count,
                        const std::uint8_t* const* rows, std::size_t row_count, float* y,
                        std::size_t stride) {
    const std::size_t at = InnerLayout(view).integers;
    integer_columns::for_batches(m, view, first, count, [&](const Batch& batch) {
        float* to = y + (batch.first - first);
        std::size_t row = 0;
        for (; row + tile_rows <= row_count; row += tile_rows)
            add<tile_rows>(batch, at, rows + row, to + row * stride, stride);
        for (; row + 2 <= row_count; row += 2)
            add<2>(batch, at, rows + row, to + row * stride, stride);
        if (row < row_count)
            add<1>(batch, at, rows + row, to + row * stride, stride);
    });
}

} // namespace ovspec::OVSPEC_ISA::byte_columns

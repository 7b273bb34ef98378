// Rows of f32 times gate or up weights of any format. The weights of a few channels become numbers in scratch
// memory, a block of inputs at a time, once for several rows.
#pragma once

#include "common/float_rows.hpp"
#include "common/simd.hpp"
#include "gated_mlp/kernel.hpp"
#include "gated_mlp/lane_scales.hpp"
#include "gated_mlp/row_layout.hpp"

namespace ovspec::OVSPEC_ISA::number_rows {

constexpr std::size_t width = 64;         // weights of a vector in memory, see row_layout.hpp
constexpr std::size_t parts = 16 / lanes; // of ours in one of memory
constexpr std::size_t pair_steps = 8;     // vectors of numbers in `lanes` words of 4-bit weights
constexpr std::size_t block_steps = 128;  // vectors of a channel's numbers that stay in the L1 cache
constexpr std::size_t block_rows = 16;
// Rows and channels of a tile: as many sums as the registers hold.
constexpr std::size_t tile_rows = 4, tile_channels = 3;

constexpr std::size_t scratch_floats = tile_channels * block_steps * lanes;

OVSPEC_INLINE std::size_t packed_bytes(const ChannelMatrix& m) {
    if (m.format != WeightFormat::u4)
        return float_rows::packed_bytes(m.size);
    return row_size(m.groups, m.size / m.groups).vectors * width * sizeof(float);
}

// A chunk of a row in the order of 4-bit weights: `[parts, pairs of vectors, half of a byte, byte, lanes]`.
OVSPEC_INLINE void pack_chunk(const float* values, const RowChunk& chunk, std::size_t group_size, float* to) {
    const std::size_t run = chunk.run();
    for (std::size_t p = 0; p < parts; p++) {
        const float* lane_values[lanes];
        std::size_t in_run[lanes];
        for (std::size_t i = 0; i < lanes; i++) {
            const std::size_t lane = p * lanes + i;
            lane_values[i] = values + lane / chunk.lanes() * group_size;
            in_run[i] = lane % chunk.lanes() * 4;
        }
        for (std::size_t first = 0; first < chunk.vectors * run; first += run)
            for (std::size_t byte = 0; byte < 4; byte++, to += lanes)
                for (std::size_t i = 0; i < lanes; i++) {
                    const std::size_t at = first + in_run[i] + byte;
                    to[i] = at < group_size ? lane_values[i][at] : 0.0f;
                }
    }
}

OVSPEC_INLINE void pack(const ChannelMatrix& m, const float* values, std::uint8_t* packed) {
    if (m.format != WeightFormat::u4)
        return float_rows::pack(values, m.size, packed);
    const std::size_t group_size = m.size / m.groups;
    auto* to = (float*)packed;
    for (std::size_t first = 0; first < m.groups;) {
        const RowChunk chunk = row_chunk(first, m.groups, group_size);
        pack_chunk(values + first * group_size, chunk, group_size, to);
        to += chunk.vectors * width;
        first += chunk.groups;
    }
}

// Channels whose weights are multiplied together, and those that are prefetched meanwhile.
template <std::size_t N> struct Channels {
    const std::uint8_t *weights[N], *ahead[N];
    std::uint32_t ids[N];

    OVSPEC_INLINE_MEMBER Channels(const ChannelMatrix& m, const std::uint32_t* channels,
                                  const std::uint32_t* next) {
        for (std::size_t n = 0; n < N; n++) {
            ids[n] = channels[n];
            weights[n] = m.data + channels[n] * m.row_bytes;
            ahead[n] = m.data + next[n] * m.row_bytes;
        }
    }
};

// Scratch memory for a block of N channels' numbers.
template <std::size_t N> struct Numbers {
    float* of[N];

    OVSPEC_INLINE_MEMBER explicit Numbers(float* scratch) {
        for (std::size_t n = 0; n < N; n++)
            of[n] = scratch + n * block_steps * lanes;
    }
};

// Totals `[rows, N, lanes]` of N channels.
template <std::size_t N> struct Totals {
    Vec of[block_rows][N];
};

// Adds the products of R rows with `steps` vectors of N channels' numbers, times the lanes' scales.
template <std::size_t N, std::size_t R>
__attribute__((noinline)) void add_tile(const float* const* numbers, std::size_t steps,
                                        const float* const* rows, const Vec* scales, Vec (*totals)[N]) {
    Vec sums[R][N] = {};
    const float *number[N], *row[R];
    for (std::size_t n = 0; n < N; n++)
        number[n] = numbers[n];
    for (std::size_t r = 0; r < R; r++)
        row[r] = rows[r];
    for (std::size_t k = 0; k < steps; k++) {
        Vec weights[N];
#pragma GCC unroll 4
        for (std::size_t n = 0; n < N; n++)
            weights[n] = load(number[n] + k * lanes);
#pragma GCC unroll 4
        for (std::size_t r = 0; r < R; r++) {
            const Vec value = load(row[r] + k * lanes);
#pragma GCC unroll 4
            for (std::size_t n = 0; n < N; n++)
                sums[r][n] = fused(weights[n], value, sums[r][n]);
        }
    }
    for (std::size_t r = 0; r < R; r++)
        for (std::size_t n = 0; n < N; n++)
            totals[r][n] = fused(sums[r][n], scales[n], totals[r][n]);
}

// Rows of a call, at most block_rows.
struct Rows {
    const std::uint8_t* packed;
    std::size_t bytes, count;
};

// Adds a block to the totals of all rows, in tiles that differ by one row at most.
template <std::size_t N>
OVSPEC_INLINE void add_block(const float* const* numbers, std::size_t steps, const Rows& rows, std::size_t at,
                             const Vec* scales, Totals<N>& totals) {
    for_even_parts<tile_rows>(rows.count, [&](auto R, std::size_t first) __attribute__((always_inline)) {
        const float* of_tile[R];
        for (std::size_t r = 0; r < R; r++)
            of_tile[r] = (const float*)(rows.packed + (first + r) * rows.bytes) + at;
        add_tile<N, R>(numbers, steps, of_tile, scales, totals.of + first);
    });
}

// `pairs` words a lane of 4-bit weights as numbers less their zero points, which have integer_base added.
template <std::size_t N>
OVSPEC_INLINE void widen_u4(const Channels<N>& of, std::size_t at, std::size_t pairs, const Vec* zero_points,
                            const Numbers<N>& to) {
    for (std::size_t v = 0; v < pairs; v++, at += width)
#pragma GCC unroll 4
        for (std::size_t n = 0; n < N; n++) {
            const UVec words = load_as<UVec>(of.weights[n] + at);
            __builtin_prefetch(of.ahead[n] + at);
#pragma GCC unroll 8
            for (std::size_t i = 0; i < pair_steps; i++)
                store(to.of[n] + (v * pair_steps + i) * lanes,
                      less_zero_point(words >> (8 * (i % 4) + 4 * (i / 4)) & 15u, zero_points[n]));
        }
}

template <std::size_t N>
OVSPEC_INLINE void project_u4(const ChannelMatrix& m, const Channels<N>& of, const Rows& rows,
                              const Numbers<N>& numbers, Totals<N>& totals) {
    const std::size_t group_size = m.size / m.groups;
    std::size_t weights_at = 0, values_at = 0;
    for (std::size_t first = 0; first < m.groups;) {
        const RowChunk chunk = row_chunk(first, m.groups, group_size);
        const std::size_t pairs = chunk.vectors / 2;
        lane_scales::LaneScales read[N];
        for (std::size_t n = 0; n < N; n++)
            lane_scales::read(m, of.ids[n], chunk, read[n]);
        for (std::size_t p = 0; p < parts; p++) {
            Vec scales[N], zero_points[N];
            for (std::size_t n = 0; n < N; n++) {
                scales[n] = load(read[n].scale + p * lanes);
                zero_points[n] = load(read[n].zero_point + p * lanes) + integer_base;
            }
            constexpr std::size_t most = block_steps / pair_steps;
            for (std::size_t v = 0; v < pairs; v += most) {
                const std::size_t some = pairs - v < most ? pairs - v : most;
                widen_u4<N>(of, weights_at + v * width + p * 4 * lanes, some, zero_points, numbers);
                add_block<N>(numbers.of, some * pair_steps, rows, values_at, scales, totals);
                values_at += some * pair_steps * lanes;
            }
        }
        weights_at += pairs * width;
        first += chunk.groups;
    }
}

// `count` weights, lanes at most, from input k on; the lanes behind them hold any finite number, as rows are
// zero there.
template <WeightFormat format>
OVSPEC_INLINE Vec numbers_of(const std::uint8_t* weights, std::size_t k, std::size_t count, Vec zero_point) {
    if constexpr (format == WeightFormat::u8)
        return to_float(load_some<ByteVec>(weights + k, count)) - zero_point;
    else if constexpr (format == WeightFormat::f16)
        return from_f16(load_some<HalfVec>((const std::uint16_t*)weights + k, count));
    else
        return load_some((const float*)weights + k, count);
}

// Inputs begin to end of N channels as numbers; returns how many vectors of each.
template <WeightFormat format, std::size_t N>
OVSPEC_INLINE std::size_t widen(const Channels<N>& of, std::size_t begin, std::size_t end,
                                const Vec* zero_points, const Numbers<N>& to) {
    constexpr std::size_t bytes = format == WeightFormat::u8 ? 1 : format == WeightFormat::f16 ? 2 : 4;
    const std::size_t whole = (end - begin) / lanes, left = (end - begin) % lanes;
    for (std::size_t k = 0; k < whole; k++)
#pragma GCC unroll 4
        for (std::size_t n = 0; n < N; n++) {
            const std::size_t at = begin + k * lanes;
            if (k % (64 / bytes / lanes) == 0)
                __builtin_prefetch(of.ahead[n] + at * bytes);
            store(to.of[n] + k * lanes, numbers_of<format>(of.weights[n], at, lanes, zero_points[n]));
        }
    for (std::size_t n = 0; n < N && left != 0; n++)
        store(to.of[n] + whole * lanes,
              numbers_of<format>(of.weights[n], begin + whole * lanes, left, zero_points[n]));
    return whole + (left != 0);
}

template <WeightFormat format, std::size_t N>
OVSPEC_INLINE void project_in_order(const ChannelMatrix& m, const Channels<N>& of, const Rows& rows,
                                    const Numbers<N>& numbers, Totals<N>& totals) {
    constexpr std::size_t block = block_steps * lanes;
    Vec scales[N], zero_points[N];
    for (std::size_t n = 0; n < N; n++) {
        const bool scaled = format == WeightFormat::u8;
        scales[n] = splat(scaled ? scalar_f16(m.scales + 2 * of.ids[n]) : 1.0f);
        zero_points[n] = splat(scaled ? (float)m.zero_points[of.ids[n]] : 0.0f);
    }
    for (std::size_t begin = 0; begin < m.size; begin += block) {
        const std::size_t end = m.size - begin < block ? m.size : begin + block;
        if (format == WeightFormat::f32 && (end - begin) % lanes == 0) {
            const float* in_place[N];
            for (std::size_t n = 0; n < N; n++)
                in_place[n] = (const float*)of.weights[n] + begin;
            add_block<N>(in_place, (end - begin) / lanes, rows, begin, scales, totals);
            continue;
        }
        const std::size_t steps = widen<format, N>(of, begin, end, zero_points, numbers);
        add_block<N>(numbers.of, steps, rows, begin, scales, totals);
    }
}

// y[r * stride + n] of N channels.
template <std::size_t N>
OVSPEC_INLINE void project_some(const ChannelMatrix& m, const Channels<N>& of, const Rows& rows, float* y,
                                std::size_t stride, float* scratch) {
    const Numbers<N> numbers(scratch);
    Totals<N> totals;
    for (std::size_t r = 0; r < rows.count; r++)
        clear(totals.of[r]);
    if (m.format == WeightFormat::u4)
        project_u4<N>(m, of, rows, numbers, totals);
    else if (m.format == WeightFormat::u8)
        project_in_order<WeightFormat::u8, N>(m, of, rows, numbers, totals);
    else if (m.format == WeightFormat::f16)
        project_in_order<WeightFormat::f16, N>(m, of, rows, numbers, totals);
    else
        project_in_order<WeightFormat::f32, N>(m, of, rows, numbers, totals);
    for (std::size_t r = 0; r < rows.count; r++) {
        Vec lanes_of[4] = {};
        float sums[4];
        for (std::size_t n = 0; n < N; n++)
            lanes_of[n] = totals.of[r][n];
        sum_four(lanes_of, sums);
        __builtin_memcpy(y + r * stride, sums, N * sizeof(float));
    }
}

OVSPEC_INLINE void project(const ChannelMatrix& m, const ChannelSpan& span, const std::uint8_t* packed,
                           std::size_t row_count, float* y, std::size_t stride, float* scratch) {
    const std::size_t bytes = packed_bytes(m);
    for (std::size_t row = 0; row < row_count; row += block_rows) {
        const std::size_t some = row_count - row < block_rows ? row_count - row : block_rows;
        const Rows rows{packed + row * bytes, bytes, some};
        float* to = y + row * stride;
        std::size_t n = 0;
        for (; n + tile_channels <= span.count; n += tile_channels) {
            const std::size_t next = n + 2 * tile_channels <= span.known ? n + tile_channels : n;
            project_some<tile_channels>(m, {m, span.channels + n, span.channels + next}, rows, to + n, stride,
                                        scratch);
        }
        for (; n < span.count; n++)
            project_some<1>(m, {m, span.channels + n, span.channels + n}, rows, to + n, stride, scratch);
    }
}

} // namespace ovspec::OVSPEC_ISA::number_rows

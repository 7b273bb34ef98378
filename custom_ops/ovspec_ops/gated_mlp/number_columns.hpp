// Sums over channels with down weights of any format, in f32. The weights of some channels become numbers in
// scratch memory, for 128 outputs at a time and once for several rows.
#pragma once

#include "common/simd.hpp"
#include "gated_mlp/kernel.hpp"

namespace ovspec::OVSPEC_ISA::number_columns {

// Channels whose numbers for down_width outputs stay in the L1 cache.
constexpr std::size_t batch = 32;
constexpr std::size_t block_rows = 8;
constexpr std::size_t tile_rows = 4, tile_vectors = 2;
constexpr std::size_t vectors = down_width / lanes;

OVSPEC_INLINE bool in_order(WeightFormat format) {
    return format == WeightFormat::f32 || format == WeightFormat::f16;
}

// Outputs as their numbers lie in scratch memory. Of integers every word holds those of four outputs, and a
// vector of numbers the same byte of `lanes` words.
struct Order {
    std::uint8_t output[down_width];

    OVSPEC_INLINE_MEMBER explicit Order(WeightFormat format) {
        for (std::size_t i = 0; i < down_width; i++)
            output[i] = (std::uint8_t)i;
        if (in_order(format))
            return;
        std::size_t i = 0;
        for (std::size_t half = 0; half < 2; half++)
            for (std::size_t first = 0; first < 16; first += lanes)
                for (std::size_t byte = 0; byte < 4; byte++)
                    for (std::size_t word = first; word < first + lanes; word++)
                        output[i++] = (std::uint8_t)(half * 64 + word % 4 * 16 + word / 4 * 4 + byte);
    }
};

// Scales, and zero points with integer_base added, of a task's outputs and one group of channels.
struct OutputScales {
    float scale[task_width];
    float zero_point[task_width];

    OVSPEC_INLINE_MEMBER void read(const ChannelMatrix& m, std::size_t group, std::size_t first,
                                   std::size_t count, const Order& order) {
        const std::size_t entry = group * m.size + first;
        for (std::size_t block = 0; block < count; block += down_width) {
            float scales[down_width + lanes] = {}, zero_points[down_width + lanes] = {};
            const std::size_t some = count - block < down_width ? count - block : down_width;
            for (std::size_t h = 0; h < some; h += lanes) {
                const std::size_t left = some - h < lanes ? some - h : lanes, at = entry + block + h;
                store(scales + h, from_f16(load_some<HalfVec>((const std::uint16_t*)m.scales + at, left)));
                store(zero_points + h, to_float(load_some<ByteVec>(m.zero_points + at, left)));
            }
            for (std::size_t i = 0; i < down_width; i++) {
                scale[block + i] = scales[order.output[i]];
                zero_point[block + i] = zero_points[order.output[i]] + integer_base;
            }
        }
    }
};

// Numbers of one channel for down_width outputs, of which `count` exist.
OVSPEC_INLINE void widen(const ChannelMatrix& m, const std::uint8_t* channel, std::size_t first,
                         std::size_t count, const float* zero_points, float* to) {
    if (m.format == WeightFormat::u4) {
        for (std::size_t p = 0; p < 16 / lanes; p++) {
            const UVec words = load_as<UVec>(channel + first / 2 + p * 4 * lanes);
#pragma GCC unroll 8
            for (std::size_t i = 0; i < 8; i++) {
                const std::size_t at = (i / 4 * (64 / lanes) + p * 4 + i % 4) * lanes;
                store(to + at,
                      less_zero_point(words >> (8 * (i % 4) + 4 * (i / 4)) & 15u, load(zero_points + at)));
            }
        }
    } else if (m.format == WeightFormat::u8) {
        const std::size_t bytes = (count + 63) / 64 * 64; // whole blocks: inside one, outputs are reordered
        for (std::size_t at = 0; at < bytes; at += 4 * lanes) {
            const UVec words = load_as<UVec>(channel + first + at);
#pragma GCC unroll 4
            for (std::size_t i = 0; i < 4; i++)
                store(to + at + i * lanes,
                      less_zero_point(words >> (8 * i) & 255u, load(zero_points + at + i * lanes)));
        }
    } else {
        for (std::size_t h = 0; h < count; h += lanes) {
            const std::size_t left = count - h < lanes ? count - h : lanes;
            const std::size_t at = first + h;
            store(to + h, m.format == WeightFormat::f32
                              ? load_some((const float*)channel + at, left)
                              : from_f16(load_some<HalfVec>((const std::uint16_t*)channel + at, left)));
        }
    }
}

// Adds R rows' products with `channels` channels `[channels, down_width]` to totals `[rows, task_width]`.
template <std::size_t R>
__attribute__((noinline)) void add_tile(const float* numbers, std::size_t channels, const float* const* rows,
                                        const float* scales, float* totals) {
    const float* row[R];
    for (std::size_t r = 0; r < R; r++)
        row[r] = rows[r];
    for (std::size_t h = 0; h < down_width; h += tile_vectors * lanes) {
        Vec sums[R][tile_vectors] = {};
        const float* of_channel = numbers + h;
        for (std::size_t c = 0; c < channels; c++, of_channel += down_width) {
            Vec weights[tile_vectors];
#pragma GCC unroll 2
            for (std::size_t v = 0; v < tile_vectors; v++)
                weights[v] = load(of_channel + v * lanes);
#pragma GCC unroll 4
            for (std::size_t r = 0; r < R; r++) {
                const Vec value = splat(row[r][c]);
#pragma GCC unroll 2
                for (std::size_t v = 0; v < tile_vectors; v++)
                    sums[r][v] = fused(weights[v], value, sums[r][v]);
            }
        }
        for (std::size_t v = 0; v < tile_vectors; v++) {
            const std::size_t at = h + v * lanes;
            const Vec scale = scales ? load(scales + at) : splat(1.0f);
            for (std::size_t r = 0; r < R; r++) {
                float* to = totals + r * task_width + at;
                store(to, fused(sums[r][v], scale, load(to)));
            }
        }
    }
}

// Adds the products of a batch to the totals of all rows, in tiles that differ by one row at most.
OVSPEC_INLINE void add_batch(const float* numbers, std::size_t channels, const std::uint8_t* const* rows,
                             std::size_t row_count, std::size_t begin, const float* scales, float* totals) {
    for_even_parts<tile_rows>(row_count, [&](auto R, std::size_t first) __attribute__((always_inline)) {
        const float* of_tile[R];
        for (std::size_t r = 0; r < R; r++)
            of_tile[r] = (const float*)rows[first + r] + begin;
        add_tile<R>(numbers, channels, of_tile, scales, totals + first * task_width);
    });
}

// At most block_rows rows.
OVSPEC_INLINE void down_block(const ChannelMatrix& m, const ChannelView& view, std::size_t first,
                              std::size_t count, const std::uint8_t* const* rows, std::size_t row_count,
                              const Order& order, float* y, std::size_t stride) {
    const bool scaled = !in_order(m.format);
    const std::size_t bits = m.format == WeightFormat::u4    ? 4
                             : m.format == WeightFormat::u8  ? 8
                             : m.format == WeightFormat::f16 ? 16
                                                             : 32;
    OutputScales scales;
    float totals[block_rows * task_width] = {}, numbers[batch * down_width] = {};
    for (std::size_t i = 0; i < view.run_count; i++) {
        const ChannelRun& run = view.runs[i];
        if (scaled)
            scales.read(m, run.group, first, count, order);
        for (std::size_t begin = run.begin; begin < run.end; begin += batch) {
            const std::size_t channels = run.end - begin < batch ? run.end - begin : batch;
            for (std::size_t h = 0; h < count; h += down_width) {
                const std::size_t some = count - h < down_width ? count - h : down_width;
                for (std::size_t c = 0; c < channels; c++) {
                    const std::size_t entry = begin + c;
                    const std::size_t later = entry + batch < view.count ? entry + batch : entry;
                    const std::uint8_t* next = m.data + view.channels[later] * m.row_bytes;
                    for (std::size_t at = 0; at < some * bits / 8; at += 64)
                        __builtin_prefetch(next + (first + h) * bits / 8 + at);
                    widen(m, m.data + view.channels[entry] * m.row_bytes, first + h, some,
                          scales.zero_point + h, numbers + c * down_width);
                }
                add_batch(numbers, channels, rows, row_count, begin, scaled ? scales.scale + h : nullptr,
                          totals + h);
            }
        }
    }
    for (std::size_t r = 0; r < row_count; r++)
        for (std::size_t h = 0; h < count; h += down_width)
            for (std::size_t i = 0; i < down_width; i++)
                if (h + order.output[i] < count)
                    y[r * stride + h + order.output[i]] = totals[r * task_width + h + i];
}

OVSPEC_INLINE void down(const ChannelMatrix& m, const ChannelView& view, std::size_t first, std::size_t count,
                        const std::uint8_t* const* rows, std::size_t row_count, float* y,
                        std::size_t stride) {
    const Order order(m.format);
    for (std::size_t r = 0; r < row_count; r += block_rows)
        down_block(m, view, first, count, rows + r, row_count - r < block_rows ? row_count - r : block_rows,
                   order, y + r * stride, stride);
}

} // namespace ovspec::OVSPEC_ISA::number_columns

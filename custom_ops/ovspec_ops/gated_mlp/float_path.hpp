// Products in f32, for every format and instruction set: the weights of a few channels become f32 in scratch
// memory, once for all rows.
#pragma once

#include "common/float_rows.hpp"
#include "common/simd.hpp"
#include "gated_mlp/kernel.hpp"
#include "gated_mlp/row_layout.hpp"

namespace ovspec::OVSPEC_ISA::float_path {

constexpr std::size_t slack = 64; // floats that a vector may write past a row's end
constexpr std::size_t tile_rows = 3, tile_channels = 4;

// Writes `count` weights, and up to `slack` values more.
OVSPEC_INLINE void widen_f16(const std::uint8_t* from, std::size_t count, float* to) {
    const auto* halves = (const std::uint16_t*)from;
    std::size_t k = 0;
    for (; k + lanes <= count; k += lanes)
        store(to + k, from_f16(load_as<HalfVec>(halves + k)));
    if (k < count)
        store(to + k, from_f16(load_part<HalfVec>(halves + k, count - k)));
}

OVSPEC_INLINE void widen_u8(const std::uint8_t* from, std::size_t count, Vec scale, Vec shift, float* to) {
    std::size_t k = 0;
    for (; k + lanes <= count; k += lanes)
        store(to + k, fused(to_float(load_as<ByteVec>(from + k)), scale, -shift));
    if (k < count)
        store(to + k, fused(to_float(load_part<ByteVec>(from + k, count - k)), scale, -shift));
}

// One group of a chunk, whose runs are in the low and the high half of every vector in turn.
template <std::size_t run>
OVSPEC_INLINE void widen_group(const std::uint8_t* from, std::size_t count, Vec scale, Vec shift, float* to) {
    constexpr std::size_t step = run < lanes ? run : lanes;
    for (std::size_t k = 0; k < count; k += run) {
        const std::uint8_t* bytes = from + k / run / 2 * 64;
        const bool high = k / run % 2;
        for (std::size_t i = 0; i < run; i += step) {
            const ByteVec pairs = load_part<ByteVec>(bytes + i, step);
            store(to + k + i, fused(to_float(high ? pairs >> 4 : pairs & 15), scale, -shift));
        }
    }
}

OVSPEC_INLINE void widen_u4(const ChannelMatrix& m, std::size_t channel, float* to) {
    const std::uint8_t* data = m.data + channel * m.row_bytes;
    const std::size_t group_size = m.size / m.groups;
    for (std::size_t first = 0; first < m.groups;) {
        const RowChunk chunk = row_chunk(first, m.groups, group_size);
        for (std::size_t g = 0; g < chunk.groups; g++) {
            const std::size_t entry = channel * m.groups + first + g;
            const float factor = scalar_f16(m.scales + 2 * entry);
            const Vec scale = splat(factor), shift = splat(factor * (float)m.zero_points[entry]);
            const std::uint8_t* from = data + g * chunk.run();
            float* at = to + (first + g) * group_size;
            with_power<4, 64>(chunk.run(), [&](auto run) __attribute__((always_inline)) {
                widen_group<run>(from, group_size, scale, shift, at);
            });
        }
        data += chunk.vectors / 2 * 64;
        first += chunk.groups;
    }
}

// The weights of a channel of gate or up: where they lie, or in `scratch`.
OVSPEC_INLINE const float* weights_of(const ChannelMatrix& m, std::size_t channel, float* scratch) {
    const std::uint8_t* data = m.data + channel * m.row_bytes;
    if (m.format == WeightFormat::f32)
        return (const float*)data;
    if (m.format == WeightFormat::f16) {
        widen_f16(data, m.size, scratch);
    } else if (m.format == WeightFormat::u8) {
        const float scale = scalar_f16(m.scales + 2 * channel);
        widen_u8(data, m.size, splat(scale), splat(scale * (float)m.zero_points[channel]), scratch);
    } else {
        widen_u4(m, channel, scratch);
    }
    return scratch;
}

// y[r * stride + n] of N channels with R rows
template <std::size_t N, std::size_t R>
OVSPEC_INLINE void dots(const float* const* weights, const std::uint8_t* const* rows, std::size_t size,
                        float* y, std::size_t stride) {
    Vec acc[R * N];
    clear(acc);
    const auto add = [&](std::size_t k, std::size_t left) __attribute__((always_inline)) {
        Vec weight[N];
#pragma GCC unroll 4
        for (std::size_t n = 0; n < N; n++)
            weight[n] = left < lanes ? load_part<Vec>(weights[n] + k, left) : load(weights[n] + k);
#pragma GCC unroll 4
        for (std::size_t r = 0; r < R; r++) {
            const Vec x = load((const float*)rows[r] + k);
#pragma GCC unroll 4
            for (std::size_t n = 0; n < N; n++)
                acc[r * N + n] = fused(weight[n], x, acc[r * N + n]);
        }
    };
    std::size_t k = 0;
    for (; k + lanes <= size; k += lanes)
        add(k, lanes);
    if (k < size)
        add(k, size - k);
    for (std::size_t r = 0; r < R; r++)
        for (std::size_t n = 0; n < N; n++)
            y[r * stride + n] = sum(acc[r * N + n]);
}

template <std::size_t N>
OVSPEC_INLINE void project_some(const ChannelMatrix& m, const std::uint32_t* channels,
                                const std::uint8_t* packed, std::size_t row_count, float* y,
                                std::size_t stride, float* scratch) {
    const float* weights[N];
    for (std::size_t n = 0; n < N; n++)
        weights[n] = weights_of(m, channels[n], scratch + n * (m.size + slack));
    const std::size_t bytes = float_rows::packed_bytes(m.size);
    std::size_t r = 0;
    for (; r + tile_rows <= row_count; r += tile_rows) {
        const std::uint8_t* rows[tile_rows];
        for (std::size_t i = 0; i < tile_rows; i++)
            rows[i] = packed + (r + i) * bytes;
        dots<N, tile_rows>(weights, rows, m.size, y + r * stride, stride);
    }
    for (; r < row_count; r++) {
        const std::uint8_t* row = packed + r * bytes;
        dots<N, 1>(weights, &row, m.size, y + r * stride, stride);
    }
}

OVSPEC_INLINE void project(const ChannelMatrix& m, const ChannelSpan& span, const std::uint8_t* packed,
                           std::size_t row_count, float* y, std::size_t stride, float* scratch) {
    std::size_t n = 0;
    for (; n + tile_channels <= span.count; n += tile_channels)
        project_some<tile_channels>(m, span.channels + n, packed, row_count, y + n, stride, scratch);
    for (; n < span.count; n++)
        project_some<1>(m, span.channels + n, packed, row_count, y + n, stride, scratch);
}

// Scales and zero points of the outputs of a task, for one group of channels.
struct OutputScales {
    float scale[down_width + slack];
    float zero_point[down_width + slack];
};

OVSPEC_INLINE void read_scales(const ChannelMatrix& m, std::size_t group, std::size_t first,
                               std::size_t count, OutputScales& to) {
    const std::size_t entry = group * m.size + first;
    widen_f16(m.scales + 2 * entry, count, to.scale);
    widen_u8(m.zero_points + entry, count, splat(1.0f), Vec{}, to.zero_point);
}

// 64 bytes in the order of down's layout to 64 floats in the order of the outputs.
template <class Part> OVSPEC_INLINE void widen_block(const std::uint8_t* from, const Part& of, float* to) {
    for (std::size_t at = 0; at < 64; at += lanes) {
        const Vec values = to_float(of(load_as<ByteVec>(from + at)));
        for (std::size_t i = 0; i < lanes; i += 4) {
            const std::size_t unit = (at + i) / 4;
            __builtin_memcpy(to + unit % 4 * 16 + unit / 4 * 4, (const float*)&values + i, 4 * sizeof(float));
        }
    }
}

// The weights of a channel for the outputs of a task.
OVSPEC_INLINE void outputs_of(const ChannelMatrix& m, std::size_t channel, std::size_t first,
                              std::size_t count, const OutputScales& scales, float* to) {
    const std::uint8_t* data = m.data + channel * m.row_bytes;
    if (m.format == WeightFormat::f32) {
        __builtin_memcpy(to, (const float*)data + first, count * sizeof(float));
        return;
    }
    if (m.format == WeightFormat::f16)
        return widen_f16(data + 2 * first, count, to);
    if (m.format == WeightFormat::u8) {
        for (std::size_t at = 0; at < count; at += 64)
            widen_block(data + first + at, [](ByteVec x) { return x; }, to + at);
    } else {
        widen_block(data + first / 2, [](ByteVec x) { return x & 15; }, to);
        widen_block(data + first / 2, [](ByteVec x) { return x >> 4; }, to + 64);
    }
    for (std::size_t h = 0; h < count; h += lanes)
        store(to + h, (load(to + h) - load(scales.zero_point + h)) * load(scales.scale + h));
}

OVSPEC_INLINE void down(const ChannelMatrix& m, const ChannelView& view, std::size_t first, std::size_t count,
                        const std::uint8_t* const* rows, std::size_t row_count, float* y,
                        std::size_t stride) {
    float weights[run_step][down_width + slack];
    OutputScales scales;
    for (std::size_t i = 0; i < view.run_count; i++) {
        const ChannelRun& run = view.runs[i];
        if (m.format == WeightFormat::u8 || m.format == WeightFormat::u4)
            read_scales(m, run.group, first, count, scales);
        for (std::size_t k = run.begin; k < run.end; k += run_step) {
            for (std::size_t c = 0; c < run_step; c++)
                outputs_of(m, view.channels[k + c], first, count, scales, weights[c]);
            for (std::size_t r = 0; r < row_count; r++) {
                const float* x = (const float*)rows[r] + k;
                float* to = y + r * stride;
                const auto total = [&](std::size_t h) __attribute__((always_inline)) {
                    Vec sum = load(weights[0] + h) * x[0];
#pragma GCC unroll 3
                    for (std::size_t c = 1; c < run_step; c++)
                        sum = fused(load(weights[c] + h), splat(x[c]), sum);
                    return sum;
                };
                std::size_t h = 0;
                for (; h + lanes <= count; h += lanes)
                    store(to + h, load(to + h) + total(h));
                if (h < count)
                    store_part(to + h, load_part<Vec>(to + h, count - h) + total(h), count - h);
            }
        }
    }
}

} // namespace ovspec::OVSPEC_ISA::float_path

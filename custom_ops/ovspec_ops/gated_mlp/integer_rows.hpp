// Rows times gate or up weights of 8 and 4 bits, in integers. A lane sums weights of one group over the whole
// row (row_layout.hpp), so that scales are applied once per chunk.
#pragma once

#include "common/digits16.hpp"
#include "gated_mlp/kernel.hpp"
#include "gated_mlp/lane_scales.hpp"
#include "gated_mlp/row_layout.hpp"

namespace ovspec::OVSPEC_ISA::integer_rows {

constexpr std::size_t width = 64;           // weights of a vector in memory: one or two of ours
constexpr std::size_t parts = 16 / lanes;   // of ours in one of memory
constexpr std::size_t part = width / parts; // bytes
constexpr std::size_t staged = 16 * width;  // values that are split at once

// Rows and channels of a tile: as many sums as the registers hold.
constexpr std::size_t tile_rows = lanes == 16 ? 4 : 2, tile_channels = 3;

// A packed row: Header, per chunk the sums of its integers by lane, f32 `[16]`, then per vector of weights
// the high and the low digits that it is multiplied with.
using digits16::head_of, digits16::header, digits16::Header;

OVSPEC_INLINE RowSize size_of(const ChannelMatrix& m) {
    if (m.format == WeightFormat::u4)
        return row_size(m.groups, m.size / m.groups);
    return {(m.size + width - 1) / width, 1};
}

OVSPEC_INLINE std::size_t packed_bytes(const ChannelMatrix& m) {
    const RowSize size = size_of(m);
    return header + size.chunks * 16 * sizeof(float) + size.vectors * 2 * width;
}

// Digits of one group's values: run i of `run` bytes has its high ones in vector 2 i of `to`, its low ones in
// vector 2 i + 1.
OVSPEC_INLINE void scatter_group(const float* values, std::size_t count, std::size_t run, float inverse,
                                 std::uint8_t* to) {
    std::int8_t high[staged + lanes], low[staged + lanes];
    for (std::size_t k = 0; k < count; k += staged) {
        const std::size_t some = count - k < staged ? count - k : staged;
        digits16::split_all(values + k, some, inverse, high, low);
        for (std::size_t i = 0; i < some; i += run, to += 2 * width) {
            const std::size_t bytes = some - i < run ? some - i : run;
            __builtin_memcpy(to, high + i, bytes);
            __builtin_memcpy(to + width, low + i, bytes);
        }
    }
}

// Sums by lane of a chunk's integers; returns that of all.
OVSPEC_INLINE float sum_lanes(const std::uint8_t* digits, std::size_t vectors, float* sums) {
    const IVec ones = IVec{} + 0x01010101;
    Vec total = {};
    for (std::size_t p = 0; p < parts; p++) {
        IVec high = {}, low = {};
        for (std::size_t v = 0; v < vectors; v++) {
            const std::uint8_t* at = digits + v * 2 * width + p * part;
            high = dot(high, ones, load_as<IVec>(at));
            low = dot(low, ones, load_as<IVec>(at + width));
        }
        const Vec joint = digits16::joined(high, low);
        store(sums + p * lanes, joint);
        total += joint;
    }
    return sum(total);
}

OVSPEC_INLINE void pack(const ChannelMatrix& m, const float* values, std::uint8_t* packed) {
    const digits16::Unit unit = digits16::unit_of(values, m.size);
    const RowSize size = size_of(m);
    float* sums = (float*)(packed + header);
    std::uint8_t* to = packed + header + size.chunks * 16 * sizeof(float);
    __builtin_memset(to, 0, size.vectors * 2 * width);
    Header head = {unit.value, 0.0f};
    if (m.format == WeightFormat::u8) {
        scatter_group(values, m.size, width, unit.inverse, to);
        head.sum = sum_lanes(to, size.vectors, sums);
    } else {
        const std::size_t group_size = m.size / m.groups;
        for (std::size_t first = 0; first < m.groups; sums += 16) {
            const RowChunk chunk = row_chunk(first, m.groups, group_size);
            for (std::size_t g = 0; g < chunk.groups; g++)
                scatter_group(values + (first + g) * group_size, group_size, chunk.run(), unit.inverse,
                              to + g * chunk.run());
            head.sum += sum_lanes(to, chunk.vectors, sums);
            to += chunk.vectors * 2 * width;
            first += chunk.groups;
        }
    }
    __builtin_memcpy(packed, &head, sizeof(head));
}

// Sums of `count` vectors. Each is summed in the same order, whatever `count` is.
template <std::size_t count> OVSPEC_INLINE void sum_each(const Vec* v, float* sums) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i + 4 <= count; i += 4)
        sum_four(v + i, sums + i);
    constexpr std::size_t rest = count % 4;
    if constexpr (rest != 0) {
        Vec last[4] = {};
        float of_last[4];
        for (std::size_t i = 0; i < rest; i++)
            last[i] = v[count - rest + i];
        sum_four(last, of_last);
        __builtin_memcpy(sums + count - rest, of_last, rest * sizeof(float));
    }
}

// `part` bytes of a row of u8 weights, of which `left` remain.
OVSPEC_INLINE IVec load_weights(const std::uint8_t* from, std::size_t left) {
#if OVSPEC_LANES == 16 && defined(__AVX512F__)
    const __mmask64 mask = left < part ? ((__mmask64)1 << left) - 1 : ~(__mmask64)0;
    return (IVec)_mm512_maskz_loadu_epi8(mask, from);
#else
    return left < part ? load_part<IVec>(from, left) : load_as<IVec>(from);
#endif
}

// dots[r * N + n] of N channels with R rows. Not inlined: the
// compiler would have more values to keep in registers and spill the sums.
template <std::size_t N, std::size_t R>
__attribute__((noinline)) void tile_u8(const ChannelMatrix& m, const std::uint8_t* const* weights,
                                       const std::uint8_t* const* ahead, const std::uint8_t* const* rows,
                                       float* dots) {
    IVec high[R * N], low[R * N];
    clear(high);
    clear(low);
    constexpr std::size_t digits = header + 16 * sizeof(float);
    for (std::size_t p = 0; p < parts; p++)
        for (std::size_t k = p * part; k < m.size; k += width) {
            IVec weight[N];
#pragma GCC unroll 4
            for (std::size_t n = 0; n < N; n++) {
                weight[n] = load_weights(weights[n] + k, m.size - k);
                if (p == 0)
                    __builtin_prefetch(ahead[n] + k);
            }
#pragma GCC unroll 4
            for (std::size_t r = 0; r < R; r++) {
                const std::uint8_t* x = rows[r] + digits + (k - p * part) * 2 + p * part;
                const IVec high_digits = load_as<IVec>(x), low_digits = load_as<IVec>(x + width);
#pragma GCC unroll 4
                for (std::size_t n = 0; n < N; n++) {
                    high[r * N + n] = dot(high[r * N + n], weight[n], high_digits);
                    low[r * N + n] = dot(low[r * N + n], weight[n], low_digits);
                }
            }
        }
    Vec acc[R * N];
    digits16::join(high, low, acc);
    sum_each<R * N>(acc, dots);
}

// Applies the zero points and scales of u8, one per channel.
template <std::size_t N, std::size_t R>
OVSPEC_INLINE void scale_u8(const ChannelMatrix& m, const std::uint32_t* channels,
                            const std::uint8_t* const* rows, float* dots) {
    for (std::size_t n = 0; n < N; n++) {
        const std::size_t channel = channels[n];
        const float scale = scalar_f16(m.scales + 2 * channel), zero_point = m.zero_points[channel];
        for (std::size_t r = 0; r < R; r++) {
            const Header head = head_of(rows[r]);
            dots[r * N + n] = fused(-zero_point, head.sum, dots[r * N + n]) * (scale * head.unit);
        }
    }
}

// Sums of one chunk by lane: high and low of R * N, for part p of its vectors.
template <std::size_t N, std::size_t R>
__attribute__((noinline)) void chunk_u4(std::size_t vectors, const std::uint8_t* const* weights,
                                        const std::uint8_t* const* ahead, const std::uint8_t* const* rows,
                                        std::size_t weights_at, std::size_t digits_at, Vec* acc) {
    const IVec nibble = IVec{} + 0x0f0f0f0f;
    IVec high[R * N], low[R * N];
    clear(high);
    clear(low);
    for (std::size_t v = 0; v < vectors; v += 2) {
        IVec weight[N];
#pragma GCC unroll 4
        for (std::size_t n = 0; n < N; n++) {
            weight[n] = load_as<IVec>(weights[n] + weights_at) & nibble;
            __builtin_prefetch(ahead[n] + weights_at);
        }
        digits16::add_products<N, R>(weight, rows, digits_at, high, low);
#pragma GCC unroll 4
        for (std::size_t n = 0; n < N; n++)
            weight[n] = (IVec)((UVec)load_as<IVec>(weights[n] + weights_at) >> 4) & nibble;
        digits16::add_products<N, R>(weight, rows, digits_at + 2 * width, high, low);
        weights_at += width;
        digits_at += 4 * width;
    }
    digits16::join(high, low, acc);
}

template <std::size_t N, std::size_t R>
OVSPEC_INLINE void tile_u4(const ChannelMatrix& m, const std::uint32_t* channels,
                           const std::uint8_t* const* weights, const std::uint8_t* const* ahead,
                           const std::uint8_t* const* rows, float* dots) {
    const std::size_t group_size = m.size / m.groups;
    std::size_t weights_at = 0, sums_at = header;
    std::size_t digits_at = header + row_size(m.groups, group_size).chunks * 16 * sizeof(float);
    Vec total[R * N];
    clear(total);
    for (std::size_t first = 0; first < m.groups;) {
        const RowChunk chunk = row_chunk(first, m.groups, group_size);
        lane_scales::LaneScales scales[N];
        for (std::size_t n = 0; n < N; n++)
            lane_scales::read(m, channels[n], chunk, scales[n]);
        for (std::size_t p = 0; p < parts; p++) {
            Vec acc[R * N];
            chunk_u4<N, R>(chunk.vectors, weights, ahead, rows, weights_at + p * part, digits_at + p * part,
                           acc);
            for (std::size_t n = 0; n < N; n++) {
                const Vec scale = load(scales[n].scale + p * lanes);
                const Vec zero_point = load(scales[n].zero_point + p * lanes);
                for (std::size_t r = 0; r < R; r++) {
                    const Vec sums = load((const float*)(rows[r] + sums_at) + p * lanes);
                    total[r * N + n] =
                        fused(fused(-zero_point, sums, acc[r * N + n]), scale, total[r * N + n]);
                }
            }
        }
        weights_at += chunk.vectors / 2 * width;
        digits_at += chunk.vectors * 2 * width;
        sums_at += 16 * sizeof(float);
        first += chunk.groups;
    }
    sum_each<R * N>(total, dots);
    for (std::size_t r = 0; r < R; r++)
        for (std::size_t n = 0; n < N; n++)
            dots[r * N + n] *= head_of(rows[r]).unit;
}

template <WeightFormat format, std::size_t N, std::size_t R>
OVSPEC_INLINE void tile(const ChannelMatrix& m, const std::uint32_t* channels,
                        const std::uint8_t* const* weights, const std::uint8_t* const* ahead,
                        const std::uint8_t* const* rows, float* dots) {
    if constexpr (format == WeightFormat::u8) {
        tile_u8<N, R>(m, weights, ahead, rows, dots);
        scale_u8<N, R>(m, channels, rows, dots);
    } else {
        tile_u4<N, R>(m, channels, weights, ahead, rows, dots);
    }
}

} // namespace ovspec::OVSPEC_ISA::integer_rows

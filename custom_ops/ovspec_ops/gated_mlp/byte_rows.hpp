// Rows of 8 bits times gate or up weights of 8 and 4 bits. The weights lie as for integer_rows.hpp; a scale
// of the row belongs to the values that one lane reads in `span` vectors.
#pragma once

#include "common/byte_values.hpp"
#include "gated_mlp/integer_rows.hpp"

namespace ovspec::OVSPEC_ISA::byte_rows {

using integer_rows::part;
using integer_rows::parts;
using integer_rows::width;

constexpr std::size_t span = byte_values::group / 4; // vectors

// Rows and channels of a tile: as many sums as the registers hold.
constexpr std::size_t tile_rows = lanes == 16 ? 8 : 4, tile_channels = lanes == 16 ? 3 : 2;

// The chunk of groups from `first` on, whose sums are scaled together.
OVSPEC_INLINE RowChunk chunk_at(const ChannelMatrix& m, std::size_t first) {
    if (m.format == WeightFormat::u8)
        return {0, 1, (m.size + width - 1) / width};
    return row_chunk(first, m.groups, m.size / m.groups);
}

// A chunk of a packed row: by lane the sums of its values f32 `[16]`, then per span the scales f32 `[16]`,
// then for each vector of weights the integers that it is multiplied with.
struct ChunkLayout {
    std::size_t spans, integers, bytes;

    explicit ChunkLayout(const RowChunk& chunk)
        : spans((chunk.vectors + span - 1) / span), integers((1 + spans) * 16 * sizeof(float)),
          bytes(integers + chunk.vectors * width) {}
};

OVSPEC_INLINE std::size_t packed_bytes(const ChannelMatrix& m) {
    std::size_t bytes = 0;
    for (std::size_t first = 0; first < m.groups;) {
        const RowChunk chunk = chunk_at(m, first);
        bytes += ChunkLayout(chunk).bytes;
        first += chunk.groups;
    }
    return bytes;
}

// The values that `count` vectors of a chunk's weights are multiplied with, from vector `begin` on; zeros
// where the weights are padding.
template <std::size_t run>
OVSPEC_INLINE void arrange(const float* values, const RowChunk& chunk, std::size_t group_size,
                           std::size_t begin, std::size_t count, float* to) {
    const bool ends = (begin + count) * run > group_size;
    if (ends)
        __builtin_memset(to, 0, count * width * sizeof(float));
    for (std::size_t g = 0; g < chunk.groups; g++) {
        const float* group = values + (chunk.first + g) * group_size;
        for (std::size_t v = 0; v < count; v++) {
            const std::size_t at = (begin + v) * run;
            float* slot = to + v * width + g * run;
            if (!ends || at + run <= group_size)
                __builtin_memcpy(slot, group + at, run * sizeof(float));
            else if (at < group_size)
                __builtin_memcpy(slot, group + at, (group_size - at) * sizeof(float));
        }
    }
}

// Scales by lane of `count` vectors of values, and their integers; adds the values' sums to `sums`.
OVSPEC_INLINE void round_span(const float* values, std::size_t count, float* sums, float* scales,
                              std::uint8_t* integers) {
    constexpr std::size_t step = width / lanes;
    float most[width], poison[width], inverse[width];
    for (std::size_t i = 0; i < step; i++) {
        byte_values::Range range;
        for (std::size_t v = 0; v < count; v++)
            range.see(load(values + v * width + i * lanes));
        store(most + i * lanes, range.most);
        store(poison + i * lanes, range.poison);
    }
    for (std::size_t lane = 0; lane < 16; lane++) {
        float peak = 0.0f, bad = 0.0f;
        for (std::size_t i = 4 * lane; i < 4 * lane + 4; i++) {
            peak = most[i] > peak ? most[i] : peak;
            bad += poison[i];
        }
        const byte_values::Unit unit(peak, bad);
        scales[lane] = unit.value;
        for (std::size_t i = 4 * lane; i < 4 * lane + 4; i++)
            inverse[i] = unit.inverse;
    }
    IVec totals[parts] = {};
    for (std::size_t v = 0; v < count; v++) {
        for (std::size_t i = 0; i < step; i++)
            byte_values::round(load(values + v * width + i * lanes), load(inverse + i * lanes),
                               integers + v * width + i * lanes);
        for (std::size_t p = 0; p < parts; p++)
            totals[p] = dot(totals[p], IVec{} + 0x01010101, load_as<IVec>(integers + v * width + p * part));
    }
    for (std::size_t p = 0; p < parts; p++)
        store(sums + p * lanes, fused(__builtin_convertvector(totals[p], Vec), load(scales + p * lanes),
                                      load(sums + p * lanes)));
}

OVSPEC_INLINE void pack(const ChannelMatrix& m, const float* values, std::uint8_t* packed) {
    alignas(64) float arranged[span * width];
    for (std::size_t first = 0; first < m.groups;) {
        const RowChunk chunk = chunk_at(m, first);
        const ChunkLayout layout(chunk);
        auto* sums = (float*)packed;
        __builtin_memset(sums, 0, 16 * sizeof(float));
        for (std::size_t s = 0; s < layout.spans; s++) {
            const std::size_t begin = s * span;
            const std::size_t count = chunk.vectors - begin < span ? chunk.vectors - begin : span;
            with_power<4, 64>(chunk.run(), [&](auto run) __attribute__((always_inline)) {
                arrange<run>(values, chunk, m.size / m.groups, begin, count, arranged);
            });
            round_span(arranged, count, sums, sums + (1 + s) * 16, packed + layout.integers + begin * width);
        }
        packed += layout.bytes;
        first += chunk.groups;
    }
}

OVSPEC_INLINE std::size_t beyond(std::size_t size, std::size_t passed) {
    return size > passed ? size - passed : 0;
}

// Scales and zero points of a chunk of one channel by lane.
OVSPEC_INLINE void read_scales(const ChannelMatrix& m, std::size_t channel, const RowChunk& chunk,
                               lane_scales::LaneScales& to) {
    if (m.format == WeightFormat::u4)
        return lane_scales::read(m, channel, chunk, to);
    for (std::size_t p = 0; p < parts; p++) {
        store(to.scale + p * lanes, splat(scalar_f16(m.scales + 2 * channel)));
        store(to.zero_point + p * lanes, splat((float)m.zero_points[channel]));
    }
}

// Position of a tile in a chunk: where its integers and their scales start in a packed row, and where its
// weights start in a channel.
struct Place {
    std::size_t scales, integers, weights;
    std::size_t left; // bytes of u8 weights in the row from there on
};

// Adds the integer products of `vectors` vectors, by lane, to acc[r * N + n].
template <WeightFormat format, std::size_t N, std::size_t R, bool ends>
OVSPEC_INLINE void add_products(const Place& place, std::size_t vectors, const std::uint8_t* const* weights,
                                const std::uint8_t* const* ahead, const std::uint8_t* const* rows,
                                IVec* acc) {
    const IVec nibble = IVec{} + 0x0f0f0f0f;
    std::size_t from = place.weights, at = place.integers;
    const auto add = [&](const IVec* weight) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (std::size_t r = 0; r < R; r++) {
            IVec x = load_as<IVec>(rows[r] + at);
            asm volatile("" : "+v"(x));
#pragma GCC unroll 4
            for (std::size_t n = 0; n < N; n++)
                acc[r * N + n] = dot(acc[r * N + n], weight[n], x);
        }
        at += width;
    };
    for (std::size_t v = 0; v < vectors; v += format == WeightFormat::u4 ? 2 : 1) {
        IVec weight[N], upper[N];
#pragma GCC unroll 4
        for (std::size_t n = 0; n < N; n++) {
            if constexpr (format == WeightFormat::u4) {
                const IVec both = load_as<IVec>(weights[n] + from);
                weight[n] = both & nibble;
                upper[n] = (IVec)((UVec)both >> 4) & nibble;
            } else if constexpr (ends) {
                weight[n] = integer_rows::load_weights(weights[n] + from, beyond(place.left, v * width));
            } else {
                weight[n] = load_as<IVec>(weights[n] + from);
            }
            __builtin_prefetch(ahead[n] + from);
        }
        add(weight);
        if constexpr (format == WeightFormat::u4)
            add(upper);
        from += width;
    }
}

// Sums by lane of a chunk: acc[r * N + n] of N channels with R rows. Not inlined: the
// compiler would have more values to keep in registers and spill the sums.
template <WeightFormat format, std::size_t N, std::size_t R>
__attribute__((noinline)) void products(std::size_t vectors, Place place, const std::uint8_t* const* weights,
                                        const std::uint8_t* const* ahead, const std::uint8_t* const* rows,
                                        Vec* acc) {
    Vec total[R * N];
    clear(total);
    for (std::size_t v = 0; v < vectors; v += span) {
        const std::size_t some = vectors - v < span ? vectors - v : span;
        IVec sums[R * N];
        clear(sums);
        if (format == WeightFormat::u8 && place.left < some * width)
            add_products<format, N, R, true>(place, some, weights, ahead, rows, sums);
        else
            add_products<format, N, R, false>(place, some, weights, ahead, rows, sums);
#pragma GCC unroll 8
        for (std::size_t r = 0; r < R; r++) {
            const Vec scale = load((const float*)(rows[r] + place.scales));
#pragma GCC unroll 4
            for (std::size_t n = 0; n < N; n++)
                total[r * N + n] =
                    fused(__builtin_convertvector(sums[r * N + n], Vec), scale, total[r * N + n]);
        }
        place.scales += 16 * sizeof(float);
        place.integers += span * width;
        place.weights += format == WeightFormat::u4 ? span * width / 2 : span * width;
        place.left = beyond(place.left, span * width);
    }
#pragma GCC unroll 32
    for (std::size_t i = 0; i < R * N; i++)
        acc[i] = total[i];
}

// dots[r * N + n] of N channels with R rows.
template <WeightFormat format, std::size_t N, std::size_t R>
OVSPEC_INLINE void tile(const ChannelMatrix& m, const std::uint32_t* channels,
                        const std::uint8_t* const* weights, const std::uint8_t* const* ahead,
                        const std::uint8_t* const* rows, float* dots) {
    Vec total[R * N];
    clear(total);
    std::size_t row_at = 0, weights_at = 0;
    for (std::size_t first = 0; first < m.groups;) {
        const RowChunk chunk = chunk_at(m, first);
        const ChunkLayout layout(chunk);
        lane_scales::LaneScales scales[N];
        for (std::size_t n = 0; n < N; n++)
            read_scales(m, channels[n], chunk, scales[n]);
        for (std::size_t p = 0; p < parts; p++) {
            const std::size_t lane = p * lanes * sizeof(float);
            const Place place{row_at + 16 * sizeof(float) + lane, row_at + layout.integers + p * part,
                              weights_at + p * part, beyond(m.size, p * part)};
            Vec acc[R * N];
            products<format, N, R>(chunk.vectors, place, weights, ahead, rows, acc);
            for (std::size_t n = 0; n < N; n++) {
                const Vec scale = load(scales[n].scale + p * lanes);
                const Vec zero_point = load(scales[n].zero_point + p * lanes);
                for (std::size_t r = 0; r < R; r++) {
                    const Vec sums = load((const float*)(rows[r] + row_at + lane));
                    total[r * N + n] =
                        fused(fused(-zero_point, sums, acc[r * N + n]), scale, total[r * N + n]);
                }
            }
        }
        row_at += layout.bytes;
        weights_at += format == WeightFormat::u4 ? chunk.vectors / 2 * width : chunk.vectors * width;
        first += chunk.groups;
    }
    integer_rows::sum_each<R * N>(total, dots);
}

} // namespace ovspec::OVSPEC_ISA::byte_rows

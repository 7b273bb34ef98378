// Rows times gate or up weights of 8 and 4 bits, with AMX tiles: 16 channels times the two digits of 8 rows,
// 64 weights at a time.
#pragma once

#include "common/digits16.hpp"
#include "common/tiles.hpp"
#include "common/transpose.hpp"
#include "gated_mlp/kernel.hpp"
#include "gated_mlp/row_layout.hpp"

namespace ovspec::OVSPEC_ISA::tile_rows {

constexpr std::size_t width = 64;
constexpr std::size_t tile_channels = 16;
constexpr std::size_t tile_bytes = 16 * 64;
constexpr std::size_t columns = 2 * row_block; // high digits of the rows, then their low ones

// Weights of 4 bits only in groups of whole tiles.
OVSPEC_INLINE bool serves(const ChannelMatrix& m) {
    return m.format == WeightFormat::u8 || (m.format == WeightFormat::u4 && m.size / m.groups % width == 0);
}

OVSPEC_INLINE std::size_t slabs_of(const ChannelMatrix& m) {
    return (m.size + width - 1) / width;
}

// A packed block of rows: units f32 `[16]`, per group the sums of every column's digits f32 `[groups, 16]`,
// then per 64 inputs a tile.
struct BlockLayout {
    std::size_t sums, tiles, bytes;

    explicit BlockLayout(const ChannelMatrix& m)
        : sums(64), tiles(64 + m.groups * columns * sizeof(float)), bytes(tiles + slabs_of(m) * tile_bytes) {}
};

OVSPEC_INLINE void pack(const ChannelMatrix& m, const float* const* values, std::size_t count,
                        std::uint8_t* packed) {
    const BlockLayout layout(m);
    float* units = (float*)packed;
    float inverse[row_block];
    for (std::size_t r = 0; r < row_block; r++) {
        const digits16::Unit unit = r < count ? digits16::unit_of(values[r], m.size) : digits16::Unit{0, 0};
        units[r] = unit.value;
        inverse[r] = unit.inverse;
    }
    auto* sums = (float*)(packed + layout.sums);
    __builtin_memset(sums, 0, m.groups * columns * sizeof(float));
    const IVec ones = IVec{} + 0x01010101;
    for (std::size_t slab = 0; slab < slabs_of(m); slab++) {
        const std::size_t k = slab * width, left = m.size - k < width ? m.size - k : width;
        alignas(64) std::int8_t digits[columns][width] = {};
        for (std::size_t r = 0; r < count; r++)
            digits16::split_all(values[r] + k, left, inverse[r], digits[r], digits[row_block + r]);
        transpose(digits, sizeof(IVec), (IVec*)(packed + layout.tiles + slab * tile_bytes), 1);
        IVec total = {};
        for (std::size_t quad = 0; quad < 16; quad++)
            total = dot(total, ones, load_as<IVec>(packed + layout.tiles + slab * tile_bytes + quad * 64));
        float* to = sums + k / (m.size / m.groups) * columns;
        store(to, load(to) + __builtin_convertvector(total, Vec));
    }
}

// x: 8 vectors with one weight a byte, each with 8 bytes of each of 8 groups. Writes the 64 bytes of a group
// in their order, `step` bytes behind those of the group before: 8 x 8 units of 8 bytes are transposed.
OVSPEC_INLINE void gather_eighths(const __m512i* x, std::uint8_t* to, std::size_t step) {
    __m512i a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm512_unpacklo_epi64(x[i], x[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi64(x[i], x[i + 1]);
    }
    // a[2 i + p]: units p, p + 2, p + 4, p + 6 of vectors 2 i and 2 i + 1
#pragma GCC unroll 2
    for (int p = 0; p < 2; p++) {
        b[p] = _mm512_shuffle_i64x2(a[p], a[2 + p], 0x88);     // units p, p + 4 of vectors 0 to 3
        b[2 + p] = _mm512_shuffle_i64x2(a[p], a[2 + p], 0xdd); // p + 2, p + 6
        b[4 + p] = _mm512_shuffle_i64x2(a[4 + p], a[6 + p], 0x88);
        b[6 + p] = _mm512_shuffle_i64x2(a[4 + p], a[6 + p], 0xdd);
    }
#pragma GCC unroll 4
    for (int u = 0; u < 4; u++) { // unit u and unit u + 4
        _mm512_storeu_si512(to + u * step, _mm512_shuffle_i64x2(b[u], b[4 + u], 0x88));
        _mm512_storeu_si512(to + (u + 4) * step, _mm512_shuffle_i64x2(b[u], b[4 + u], 0xdd));
    }
}

// 16 groups: 16 x 16 units of 4 bytes.
OVSPEC_INLINE void gather_sixteenths(const __m512i* x, std::uint8_t* to, std::size_t step) {
    IVec columns_of[16];
    transpose(x, sizeof(IVec), columns_of, 1);
#pragma GCC unroll 16
    for (int u = 0; u < 16; u++)
        __builtin_memcpy(to + u * step, &columns_of[u], sizeof(IVec));
}

OVSPEC_INLINE __m512i nibbles(const std::uint8_t* from, bool high) {
    const __m512i pairs = _mm512_loadu_si512(from);
    return _mm512_and_si512(high ? _mm512_srli_epi16(pairs, 4) : pairs, _mm512_set1_epi8(15));
}

// A channel's weights of 4 bits, one byte each, in their natural order.
OVSPEC_INLINE void unpack(const ChannelMatrix& m, const std::uint8_t* from, std::uint8_t* to) {
    const std::size_t group_size = m.size / m.groups;
    for (std::size_t first = 0; first < m.groups;) {
        const RowChunk chunk = row_chunk(first, m.groups, group_size);
        std::uint8_t* at = to + first * group_size;
        if (chunk.groups == 16 || chunk.groups == 8) {
            // group_size is a multiple of 64: whole squares
            for (std::size_t v = 0; v < chunk.vectors; v += chunk.groups) {
                __m512i x[16];
#pragma GCC unroll 8
                for (std::size_t i = 0; i < chunk.groups; i += 2) {
                    x[i] = nibbles(from + (v + i) * 32, false);
                    x[i + 1] = nibbles(from + (v + i) * 32, true);
                }
                if (chunk.groups == 16)
                    gather_sixteenths(x, at + v * 4, group_size);
                else
                    gather_eighths(x, at + v * 8, group_size);
            }
        } else {
            const std::size_t run = chunk.run();
            alignas(64) std::uint8_t bytes[64];
            for (std::size_t v = 0; v * run < group_size; v++) {
                _mm512_store_si512(bytes, nibbles(from + v / 2 * 64, v % 2));
                for (std::size_t g = 0; g < chunk.groups; g++)
                    __builtin_memcpy(at + g * group_size + v * run, bytes + g * run, run);
            }
        }
        from += chunk.vectors * 32;
        first += chunk.groups;
    }
}

// `size` bytes and zeros up to a whole tile.
OVSPEC_INLINE void copy(const std::uint8_t* from, std::size_t size, std::uint8_t* to) {
    for (std::size_t k = 0; k < size; k += width) {
        const __mmask64 mask = size - k < width ? ((__mmask64)1 << (size - k)) - 1 : ~(__mmask64)0;
        _mm512_store_si512(to + k, _mm512_maskz_loadu_epi8(mask, from + k));
    }
}

// Scales and zero points of 16 channels for one of their groups.
struct GroupScales {
    float scale[tile_channels];
    float shift[tile_channels]; // scale times zero point
};

OVSPEC_INLINE void read_scales(const ChannelMatrix& m, const std::uint32_t* channels, GroupScales* to) {
    for (std::size_t n = 0; n < tile_channels; n++) {
        const std::size_t at = channels[n] * m.groups;
        for (std::size_t g = 0; g < m.groups; g += lanes) {
            const std::size_t left = m.groups - g < lanes ? m.groups - g : lanes;
            const auto mask = (__mmask16)((1u << left) - 1);
            const Vec scale = from_f16((HalfVec)_mm256_maskz_loadu_epi16(mask, m.scales + 2 * (at + g)));
            const Vec zero_point = to_float((ByteVec)_mm_maskz_loadu_epi8(mask, m.zero_points + at + g));
            const Vec shift = scale * zero_point;
            for (std::size_t i = 0; i < left; i++) {
                to[g + i].scale[n] = scale[i];
                to[g + i].shift[n] = shift[i];
            }
        }
    }
}

// total[n] += (sums of channel n) * scale - (sums of the columns) * shift
OVSPEC_INLINE void add_group(const IVec* sums, const GroupScales& scales, Vec column_sums, Vec* total) {
#pragma GCC unroll 16
    for (std::size_t n = 0; n < tile_channels; n++)
        total[n] = fused(__builtin_convertvector(sums[n], Vec), splat(scales.scale[n]),
                         fused(-column_sums, splat(scales.shift[n]), total[n]));
}

// Prefetches 64 bytes of each of the next 16 channels, `at` bytes from their start.
OVSPEC_INLINE void ask(const std::uint8_t* const* next, std::size_t at) {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < tile_channels; i++)
        __builtin_prefetch(next[i] + at);
}

// 16 channels, of which `count` are wanted, with a block of rows. `weights`: bytes in natural order, `stride`
// apart, whole tiles. `next`: channels of u8 weights to ask for meanwhile, or none.
OVSPEC_INLINE void block(const ChannelMatrix& m, const GroupScales* scales, const std::uint8_t* weights,
                         std::size_t stride, const std::uint8_t* packed, std::size_t rows, float* y,
                         std::size_t y_stride, std::size_t count, const std::uint8_t* const* next) {
    const BlockLayout layout(m);
    const std::size_t slabs = m.groups == 1 ? slabs_of(m) : m.size / m.groups / width;
    Vec total[tile_channels] = {};
    const std::uint8_t* x = packed + layout.tiles;
    for (std::size_t g = 0; g < m.groups; g++) {
        alignas(64) IVec first[tile_channels], second[tile_channels];
        // Two sums: each product waits for the one before it.
        _tile_zero(0);
        _tile_zero(1);
        std::size_t slab = 0;
        for (; slab + 2 <= slabs; slab += 2) {
            if (next) {
                ask(next, slab * width);
                ask(next, (slab + 1) * width);
            }
            OVSPEC_LOAD_TILE(2, weights, stride);
            OVSPEC_LOAD_TILE(4, x, 64);
            _tile_dpbusd(0, 2, 4);
            OVSPEC_LOAD_TILE(3, weights + width, stride);
            OVSPEC_LOAD_TILE(5, x + tile_bytes, 64);
            _tile_dpbusd(1, 3, 5);
            weights += 2 * width;
            x += 2 * tile_bytes;
        }
        if (slab < slabs) {
            OVSPEC_LOAD_TILE(2, weights, stride);
            OVSPEC_LOAD_TILE(4, x, 64);
            _tile_dpbusd(0, 2, 4);
            weights += width;
            x += tile_bytes;
        }
        _tile_stored(0, first, 64);
        _tile_stored(1, second, 64);
#pragma GCC unroll 16
        for (std::size_t n = 0; n < tile_channels; n++)
            first[n] += second[n];
        add_group(first, scales[g], load((const float*)(packed + layout.sums) + g * columns), total);
    }
    IVec by_column[columns];
    transpose(total, sizeof(IVec), by_column, 1);
    for (std::size_t r = 0; r < rows; r++) {
        const Vec dots = fused((Vec)by_column[r], splat(256.0f), (Vec)by_column[row_block + r]) *
                         ((const float*)packed)[r];
        if (count == tile_channels)
            store(y + r * y_stride, dots);
        else
            store_part(y + r * y_stride, dots, count);
    }
}

OVSPEC_INLINE std::size_t scratch_bytes(const ChannelMatrix& m) {
    return tile_channels * slabs_of(m) * width + m.groups * sizeof(GroupScales) + 64;
}

// Whether 16 channels are contiguous, so that a tile can load them where they are. Comparing the
// first with the last is not enough: a run is filled up with copies of its last channel.
OVSPEC_INLINE bool neighbours(const std::uint32_t* ids) {
    bool all = true;
    for (std::uint32_t i = 1; i < tile_channels; i++)
        all = all && ids[i] == ids[0] + i;
    return all;
}

OVSPEC_INLINE void project(const ChannelMatrix& m, const ChannelSpan& span, const std::uint8_t* packed,
                           std::size_t rows, float* y, std::size_t stride, float* scratch) {
    const tiles::Session session(0);
    const std::size_t bytes = BlockLayout(m).bytes, row_bytes = slabs_of(m) * width;
    auto* copied = (std::uint8_t*)(((std::size_t)scratch + 63) & ~(std::size_t)63);
    auto* scales = (GroupScales*)(copied + tile_channels * row_bytes);
    for (std::size_t n = 0; n < span.count; n += tile_channels) {
        const std::size_t some = span.count - n < tile_channels ? span.count - n : tile_channels;
        std::uint32_t ids[tile_channels];
        for (std::size_t i = 0; i < tile_channels; i++)
            ids[i] = span.channels[n + (i < some ? i : some - 1)];
        const std::uint8_t *from[tile_channels], *next[tile_channels];
        for (std::size_t i = 0; i < tile_channels; i++) {
            from[i] = m.data + ids[i] * m.row_bytes;
            const std::size_t later = n + tile_channels + i;
            next[i] = later < span.known ? m.data + span.channels[later] * m.row_bytes : from[i];
        }
        read_scales(m, ids, scales);
        const std::uint8_t* weights = copied;
        std::size_t weight_stride = row_bytes;
        const bool direct = m.format == WeightFormat::u8 && m.size % width == 0 && neighbours(ids);
        if (direct) {
            weights = from[0];
            weight_stride = m.row_bytes;
        }
        for (std::size_t i = 0; i < tile_channels && !direct; i++) {
            for (std::size_t at = 0; at < m.row_bytes; at += 64)
                __builtin_prefetch(next[i] + at);
            if (m.format == WeightFormat::u4)
                unpack(m, from[i], copied + i * row_bytes);
            else
                copy(from[i], m.size, copied + i * row_bytes);
        }
        for (std::size_t r = 0; r < rows; r += row_block)
            block(m, scales, weights, weight_stride, packed + r / row_block * bytes,
                  rows - r < row_block ? rows - r : row_block, y + r * stride + n, stride, some,
                  direct && r == 0 ? next : nullptr);
    }
}

} // namespace ovspec::OVSPEC_ISA::tile_rows

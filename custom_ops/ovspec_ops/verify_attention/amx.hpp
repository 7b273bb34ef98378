// The products of integer.hpp with AMX tiles: 16 tokens times 16 rows of 64 channels, or 16 rows times 16
// channels of 64 tokens, in one instruction. The bytes of keys and the parts of queries lie as the tiles want
// them.
#pragma once

#ifdef OVSPEC_AMX

#include "verify_attention/integer.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace tiles {

constexpr std::size_t tile_rows = 16;
constexpr std::size_t tile_bytes = 64; // of a row

// Tiles 0 to 5 are full: sums and operands. 6 and 7 are operands for the channels that are left.
struct alignas(64) Configuration {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};

    explicit Configuration(std::size_t rest) {
        for (int tile = 0; tile < 6; tile++) {
            row_bytes[tile] = tile_bytes;
            rows[tile] = tile_rows;
        }
        if (rest == 0)
            return;
        row_bytes[6] = (std::uint16_t)rest;
        rows[6] = tile_rows;
        row_bytes[7] = tile_bytes;
        rows[7] = (std::uint8_t)(rest / 4);
    }
};

// Tiles in use for keys of `size` channels. Other libraries keep their own configuration between calls, so it
// is put back.
class Session {
public:
    explicit Session(std::size_t size) {
        _tile_storeconfig(before_);
        const Configuration own(size % tile_bytes);
        _tile_loadconfig(&own);
    }
    ~Session() {
        if (before_[0])
            _tile_loadconfig(before_);
        else
            _tile_release();
    }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

private:
    alignas(64) std::uint8_t before_[64];
};

// Keys of a block times parts of queries: sums[t][p][lane] for its 32 tokens.
template <bool half>
OVSPEC_INLINE void score_tiles(const std::uint8_t* keys, std::size_t stride, std::size_t size,
                               const IVec* parts, IVec* sums) {
    constexpr std::size_t P = half ? 1 : 2, part_bytes = P * sizeof(IVec);
    const std::uint8_t* second = keys + tile_rows * stride;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    std::size_t d = 0;
    for (; d + tile_bytes <= size; d += tile_bytes) {
        const IVec* part = parts + d / 4 * P;
        _tile_loadd(4, keys + d, stride);
        _tile_loadd(5, part, part_bytes);
        _tile_dpbusd(0, 4, 5);
        if constexpr (half) {
            _tile_loadd(4, second + d, stride);
            _tile_dpbusd(2, 4, 5);
        } else {
            _tile_loadd(5, part + 1, part_bytes);
            _tile_dpbusd(1, 4, 5);
            _tile_loadd(4, second + d, stride);
            _tile_dpbusd(3, 4, 5);
            _tile_loadd(5, part, part_bytes);
            _tile_dpbusd(2, 4, 5);
        }
    }
    if (d < size) {
        const IVec* part = parts + d / 4 * P;
        _tile_loadd(6, keys + d, stride);
        _tile_loadd(7, part, part_bytes);
        _tile_dpbusd(0, 6, 7);
        if constexpr (half) {
            _tile_loadd(6, second + d, stride);
            _tile_dpbusd(2, 6, 7);
        } else {
            _tile_loadd(7, part + 1, part_bytes);
            _tile_dpbusd(1, 6, 7);
            _tile_loadd(6, second + d, stride);
            _tile_dpbusd(3, 6, 7);
            _tile_loadd(7, part, part_bytes);
            _tile_dpbusd(2, 6, 7);
        }
    }
    _tile_stored(0, sums, part_bytes);
    _tile_stored(2, sums + tile_rows * P, part_bytes);
    if constexpr (!half) {
        _tile_stored(1, sums + 1, part_bytes);
        _tile_stored(3, sums + tile_rows * P + 1, part_bytes);
    }
}

// 16 vectors of 16 lanes, `step` apart, become their columns.
OVSPEC_INLINE void transpose(const IVec* from, std::size_t step, IVec* to) {
    __m512i a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        a[i] = (__m512i)from[i * step];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i low = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
        const __m512i high = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        const __m512i low2 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        const __m512i high2 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
        to[i] = (IVec)_mm512_shuffle_i32x4(low, low2, 0x88);
        to[i + 4] = (IVec)_mm512_shuffle_i32x4(high, high2, 0x88);
        to[i + 8] = (IVec)_mm512_shuffle_i32x4(low, low2, 0xdd);
        to[i + 12] = (IVec)_mm512_shuffle_i32x4(high, high2, 0xdd);
    }
}

// Parts of weights, in tiles 4 (half: of both bytes) and 5, times the values of 16 channels: sums[p][row];
// half: the rows' high bytes, then their low ones. A vector holds the channels.
template <bool half> OVSPEC_INLINE void value_tile(const std::uint8_t* values, std::size_t step, IVec* sums) {
    _tile_loadd(2, values, step);
    _tile_zero(0);
    _tile_dpbsud(0, 4, 2);
    _tile_stored(0, sums, sizeof(IVec));
    if constexpr (!half) {
        _tile_zero(1);
        _tile_dpbsud(1, 5, 2);
        _tile_stored(1, sums + tile_rows, sizeof(IVec));
    }
}

} // namespace tiles
} // namespace OVSPEC_ISA
} // namespace ovspec

#endif

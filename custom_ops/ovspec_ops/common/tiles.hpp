// AMX tiles: their configuration, and the transposition that brings rows into their layout.
#pragma once

#ifdef OVSPEC_AMX

#include "common/simd.hpp"
#ifdef OVSPEC_EMULATED_TILES
#include "common/emulated_tiles.hpp"
#endif

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

    // Tiles 0 to 3, sums, and 4 and 5, operands, of `count` rows; 6 and 7, the other operands, are full.
    static Configuration of_rows(std::size_t count) {
        Configuration c(tile_bytes);
        for (int tile = 0; tile < 6; tile++)
            c.rows[tile] = (std::uint8_t)count;
        return c;
    }
};

// Configures tiles for keys of `size` channels and restores the configuration before: other libraries keep
// theirs between calls.
class Session {
public:
    explicit Session(std::size_t size) : Session(Configuration(size % tile_bytes)) {}
    explicit Session(const Configuration& own) {
        _tile_storeconfig(before_);
        asm volatile("" : : "m"(own)); // GCC's intrinsic declares that it reads eight bytes, not all 64
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

} // namespace tiles
} // namespace OVSPEC_ISA
} // namespace ovspec

#endif

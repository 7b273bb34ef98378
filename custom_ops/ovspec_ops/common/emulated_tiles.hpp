// The AMX instructions that the kernels use, emulated: lets a processor without AMX run and test their code.
#pragma once

#include "common/simd.hpp"

namespace ovspec::OVSPEC_ISA::emulated_tiles {

// The layout that _tile_loadconfig reads.
struct Configuration {
    std::uint8_t palette, start_row, reserved[14];
    std::uint16_t row_bytes[16];
    std::uint8_t rows[16];
};

struct State {
    Configuration configuration;
    std::uint8_t tiles[8][16][64];
};

static thread_local State state;

static inline void configure(const void* from) {
    __builtin_memset(&state, 0, sizeof(state));
    if (from)
        __builtin_memcpy(&state.configuration, from, sizeof(Configuration));
}

static inline void load(int tile, const void* from, std::size_t stride) {
    __builtin_memset(state.tiles[tile], 0, sizeof(state.tiles[tile]));
    for (std::size_t row = 0; row < state.configuration.rows[tile]; row++)
        __builtin_memcpy(state.tiles[tile][row], (const std::uint8_t*)from + row * stride,
                         state.configuration.row_bytes[tile]);
}

static inline void store(int tile, void* to, std::size_t stride) {
    for (std::size_t row = 0; row < state.configuration.rows[tile]; row++)
        __builtin_memcpy((std::uint8_t*)to + row * stride, state.tiles[tile][row],
                         state.configuration.row_bytes[tile]);
}

// sums[row][column] += left[row][4 k + byte] * right[k][4 column + byte]; Left and Right: the types of the
// bytes. Columns beyond those of the tile are zeros, so that all 16 are computed at once.
template <class Left, class Right> static inline void multiply(int sums, int left, int right) {
    const std::size_t rows = state.configuration.rows[sums], depth = state.configuration.row_bytes[left];
    std::int32_t bytes[64][16];
    for (std::size_t at = 0; at < depth; at++)
        for (std::size_t column = 0; column < 16; column++)
            bytes[at][column] = (Right)state.tiles[right][at / 4][4 * column + at % 4];
    for (std::size_t row = 0; row < rows; row++) {
        Left a[64];
        std::int32_t sum[16]; // of its own: the compiler may keep it in registers
        __builtin_memcpy(a, state.tiles[left][row], sizeof(a));
        __builtin_memcpy(sum, state.tiles[sums][row], sizeof(sum));
        for (std::size_t at = 0; at < depth; at++)
            for (std::size_t column = 0; column < 16; column++)
                sum[column] += a[at] * bytes[at][column];
        __builtin_memcpy(state.tiles[sums][row], sum, sizeof(sum));
    }
}

} // namespace ovspec::OVSPEC_ISA::emulated_tiles

// Compilers define some of these as macros.
#undef _tile_loadconfig
#undef _tile_storeconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbusd
#undef _tile_dpbsud
#undef _tile_dpbuud
#undef _tile_dpbssd
#define OVSPEC_TILES ::ovspec::OVSPEC_ISA::emulated_tiles
#define _tile_loadconfig(from) OVSPEC_TILES::configure(from)
#define _tile_storeconfig(to)                                                                                \
    __builtin_memcpy(to, &OVSPEC_TILES::state.configuration, sizeof(OVSPEC_TILES::Configuration))
#define _tile_release() OVSPEC_TILES::configure(nullptr)
#define _tile_zero(tile)                                                                                     \
    __builtin_memset(OVSPEC_TILES::state.tiles[tile], 0, sizeof(OVSPEC_TILES::state.tiles[tile]))
#define _tile_loadd(tile, from, stride) OVSPEC_TILES::load(tile, from, stride)
#define _tile_stored(tile, to, stride) OVSPEC_TILES::store(tile, to, stride)
#define _tile_dpbusd(sums, left, right) OVSPEC_TILES::multiply<std::uint8_t, std::int8_t>(sums, left, right)
#define _tile_dpbsud(sums, left, right) OVSPEC_TILES::multiply<std::int8_t, std::uint8_t>(sums, left, right)
#define _tile_dpbuud(sums, left, right) OVSPEC_TILES::multiply<std::uint8_t, std::uint8_t>(sums, left, right)
#define _tile_dpbssd(sums, left, right) OVSPEC_TILES::multiply<std::int8_t, std::int8_t>(sums, left, right)

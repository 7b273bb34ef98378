// The products of integer.hpp with AMX tiles: 16 tokens times 16 rows of 64 channels, or 16 rows times 16
// channels of 64 tokens, in one instruction. The bytes of keys and the parts of queries lie as the tiles want
// them.
#pragma once

#include "common/tiles.hpp"
#include "verify_attention/integer.hpp"

namespace ovspec::OVSPEC_ISA::tiles {

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
        OVSPEC_LOAD_TILE(4, keys + d, stride);
        OVSPEC_LOAD_TILE(5, part, part_bytes);
        _tile_dpbusd(0, 4, 5);
        if constexpr (half) {
            OVSPEC_LOAD_TILE(4, second + d, stride);
            _tile_dpbusd(2, 4, 5);
        } else {
            OVSPEC_LOAD_TILE(5, part + 1, part_bytes);
            _tile_dpbusd(1, 4, 5);
            OVSPEC_LOAD_TILE(4, second + d, stride);
            _tile_dpbusd(3, 4, 5);
            OVSPEC_LOAD_TILE(5, part, part_bytes);
            _tile_dpbusd(2, 4, 5);
        }
    }
    if (d < size) {
        const IVec* part = parts + d / 4 * P;
        OVSPEC_LOAD_TILE(6, keys + d, stride);
        OVSPEC_LOAD_TILE(7, part, part_bytes);
        _tile_dpbusd(0, 6, 7);
        if constexpr (half) {
            OVSPEC_LOAD_TILE(6, second + d, stride);
            _tile_dpbusd(2, 6, 7);
        } else {
            OVSPEC_LOAD_TILE(7, part + 1, part_bytes);
            _tile_dpbusd(1, 6, 7);
            OVSPEC_LOAD_TILE(6, second + d, stride);
            _tile_dpbusd(3, 6, 7);
            OVSPEC_LOAD_TILE(7, part, part_bytes);
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

// Parts of weights, in tiles 4 (half: of both bytes) and 5, times the values of 16 channels: sums[p][row];
// half: the rows' high bytes, then their low ones. A vector holds the channels.
template <bool half> OVSPEC_INLINE void value_tile(const std::uint8_t* values, std::size_t step, IVec* sums) {
    OVSPEC_LOAD_TILE(2, values, step);
    _tile_zero(0);
    _tile_dpbsud(0, 4, 2);
    _tile_stored(0, sums, sizeof(IVec));
    if constexpr (!half) {
        _tile_zero(1);
        _tile_dpbsud(1, 5, 2);
        _tile_stored(1, sums + tile_rows, sizeof(IVec));
    }
}

} // namespace ovspec::OVSPEC_ISA::tiles

// AMX tiles: their configuration.
#pragma once

#include "common/simd.hpp"
#ifdef OVSPEC_EMULATED_TILES
#include "common/emulated_tiles.hpp"
#endif

// Loads a tile behind all stores before it. GCC's intrinsic does not say that it reads memory: without the
// barrier GCC may move stores of what the tile holds behind it, and drops those that nothing else reads.
// A macro, because the intrinsic takes the tile's number as text.
#define OVSPEC_LOAD_TILE(tile, from, stride)                                                                 \
    do {                                                                                                     \
        asm volatile("" : : : "memory");                                                                     \
        _tile_loadd(tile, from, stride);                                                                     \
    } while (false)

namespace ovspec::OVSPEC_ISA::tiles {

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

    // Tiles 0 to 3, sums, and 4 and 5, operands, of `count` rows; the operands, 6 and 7 as well, have `depth`
    // bytes to multiply.
    static Configuration of_rows(std::size_t count, std::size_t depth = tile_bytes) {
        Configuration c(tile_bytes);
        for (int tile = 0; tile < 6; tile++)
            c.rows[tile] = (std::uint8_t)count;
        c.row_bytes[4] = c.row_bytes[5] = (std::uint16_t)depth;
        c.rows[6] = c.rows[7] = (std::uint8_t)(depth / 4);
        return c;
    }
};

// Configures tiles. The destructor restores the earlier configuration, because other libraries keep theirs
// between calls. `size`: channels of a key, whose last part has tiles of its own.
class Session {
public:
    explicit Session(std::size_t size) : Session(Configuration(size % tile_bytes)) {}
    explicit Session(const Configuration& own) {
        _tile_storeconfig(before_);
        // GCC's intrinsics declare that they write and read eight bytes, not all 64.
        asm volatile("" : "+m"(before_) : "m"(own));
        _tile_loadconfig(&own);
    }
    ~Session() {
        asm volatile("" : : "m"(before_));
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

} // namespace ovspec::OVSPEC_ISA::tiles

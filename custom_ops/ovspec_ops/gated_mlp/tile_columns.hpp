// Sums of channels with down weights of 8 and 4 bits, with AMX tiles: the two digits of 8 rows times 16
// outputs, 64 channels at a time.
#pragma once

#include "common/tiles.hpp"
#include "gated_mlp/integer_columns.hpp"

namespace ovspec::OVSPEC_ISA::tile_columns {

using integer_columns::Batch;

constexpr std::size_t width = 64;                             // channels of a tile
constexpr std::size_t slabs = integer_columns::batch / width; // of a batch
static_assert(slabs == 2, "one tile each");

// Digits of a block of rows for a batch of channels: `[2][16, 64]`, the rows' high digits, then their low
// ones.
struct alignas(64) Digits {
    std::int8_t bytes[slabs][2 * row_block][width];
};

OVSPEC_INLINE void copy_digits(const Batch& batch, const std::uint8_t* const* rows, std::size_t count,
                               Digits& to) {
    for (std::size_t slab = 0; slab < slabs; slab++)
        for (std::size_t r = 0; r < row_block; r++)
            for (std::size_t digit = 0; digit < 2; digit++) {
                const std::size_t at = batch.begin + slab * width;
                const std::size_t left = r < count && at < batch.end ? batch.end - at : 0;
                const __mmask64 mask = left < width ? ((__mmask64)1 << left) - 1 : ~(__mmask64)0;
                const std::uint8_t* from =
                    left == 0 ? rows[0] : rows[r] + batch.layout.digits + digit * batch.layout.stride + at;
                _mm512_store_si512(to.bytes[slab][digit * row_block + r],
                                   _mm512_maskz_loadu_epi8(mask, from));
            }
}

// Adds up to row_block rows' products to y.
OVSPEC_INLINE void add(const Batch& batch, const std::uint8_t* const* rows, std::size_t row_count, float* y,
                       std::size_t stride) {
    Digits digits;
    copy_digits(batch, rows, row_count, digits);
    float units[row_block], sums[row_block];
    for (std::size_t r = 0; r < row_count; r++) {
        units[r] = load_as<float>(rows[r]);
        sums[r] = batch.run_sum(rows[r]);
    }
    const bool both = batch.end - batch.begin > width;
    OVSPEC_LOAD_TILE(2, digits.bytes[0], width);
    if (both)
        OVSPEC_LOAD_TILE(3, digits.bytes[1], width);
    for (std::size_t h = 0; h < batch.count; h += lanes) {
        const std::uint8_t* weights = batch.weights(h);
        alignas(64) IVec products[2 * row_block];
        _tile_zero(0);
        OVSPEC_LOAD_TILE(4, weights, 64);
        _tile_dpbsud(0, 2, 4);
        if (both) {
            OVSPEC_LOAD_TILE(5, weights + 16 * 64, 64);
            _tile_dpbsud(0, 3, 5);
        }
        for (std::size_t i = 0; i < lanes; i++)
            batch.ahead.step();
        _tile_stored(0, products, 64);
        const integer_columns::Outputs outputs(batch, h);
        for (std::size_t r = 0; r < row_count; r++)
            outputs.add(digits16::joined(products[r], products[row_block + r]), sums[r], units[r],
                        y + r * stride + h);
    }
}

OVSPEC_INLINE void down(const ChannelMatrix& m, const ChannelView& view, std::size_t first, std::size_t count,
                        const std::uint8_t* const* rows, std::size_t row_count, float* y,
                        std::size_t stride) {
    const tiles::Session session(0);
    integer_columns::for_batches(m, view, first, count, [&](const Batch& batch) {
        for (std::size_t r = 0; r < row_count; r += row_block)
            add(batch, rows + r, row_count - r < row_block ? row_count - r : row_block,
                y + r * stride + (batch.first - first), stride);
    });
}

} // namespace ovspec::OVSPEC_ISA::tile_columns

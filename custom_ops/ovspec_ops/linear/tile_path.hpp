// Rows times panels with AMX tiles: the digits of up to 16 rows times 16 neurons, 64 inputs at a time.
#pragma once

#ifdef OVSPEC_AMX

#include "common/tiles.hpp"
#include "linear/digit_rows.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace tile_path {

using digit_rows::BlockLayout;

constexpr std::size_t slab = 64; // inputs of a tile
constexpr std::size_t tile_bytes = slab * panel_width;
constexpr std::size_t most_panels = 2; // that meet a tile of rows together
// Up to here the digits of a row's two halves share a tile.
constexpr std::size_t shared_rows = block_rows / 2;

OVSPEC_INLINE bool serves(const LinearWeights& w) {
    return w.groups == 1 || w.group_size() % slab == 0;
}

// Inputs of a group, filled up.
OVSPEC_INLINE std::size_t group_inputs(const LinearWeights& w) {
    return w.groups == 1 ? w.padded() : w.group_size();
}

// Sums `[rows, most_panels, 16]`, and weights of 4 bits of a group once they are bytes.
OVSPEC_INLINE std::size_t scratch_bytes(const LinearWeights& w, std::size_t rows) {
    const std::size_t sums = rows * most_panels * panel_width * sizeof(float);
    return sums + (w.format == WeightFormat::u4 ? most_panels * group_inputs(w) * panel_width : 0) + 64;
}

// 64 neurons' weights a vector, two inputs' quads in every byte.
OVSPEC_INLINE void widen(const std::uint8_t* from, std::size_t bytes, std::uint8_t* to) {
    const __m512i nibble = _mm512_set1_epi8(15);
    for (std::size_t at = 0; at < bytes; at += 64) {
        const __m512i both = _mm512_loadu_si512(from + at);
        _mm512_store_si512(to + 2 * at, _mm512_and_si512(both, nibble));
        _mm512_store_si512(to + 2 * at + 64, _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble));
    }
}

// Panels' weights of one group as tiles, one after the other.
struct GroupTiles {
    const std::uint8_t* panels[most_panels];
    std::size_t count; // tiles of a panel
};

struct alignas(64) Products {
    std::int32_t high[most_panels][block_rows][panel_width];
    std::int32_t low[most_panels][block_rows][panel_width];
};

OVSPEC_INLINE void ask(const std::uint8_t* from) {
#pragma GCC unroll 16
    for (std::size_t line = 0; line < tile_bytes; line += 64)
        _mm_prefetch((const char*)from + line, _MM_HINT_T0);
}

// Tiles 0 to 3 hold sums, 4 and 5 rows, 6 and 7 weights.
template <std::size_t P>
OVSPEC_INLINE void shared_products(const GroupTiles& tiles, const BlockLayout& layout,
                                   const std::uint8_t* digits, std::size_t asks, Products& to) {
    _tile_zero(0);
    if (P > 1)
        _tile_zero(1);
    for (std::size_t k = 0; k < tiles.count; k++) {
        _tile_loadd(4, digits + k * slab, layout.stride);
        const std::uint8_t* at = tiles.panels[0] + k * tile_bytes;
        if (asks)
            ask(at + asks);
        _tile_loadd(6, at, 64);
        _tile_dpbsud(0, 4, 6);
        if (P > 1) {
            at = tiles.panels[1] + k * tile_bytes;
            if (asks)
                ask(at + asks);
            _tile_loadd(7, at, 64);
            _tile_dpbsud(1, 4, 7);
        }
    }
    // High digits' sums, then those of low ones: `rows` of each.
    alignas(64) std::int32_t both[block_rows][panel_width];
    const std::size_t bytes = layout.rows * sizeof(both[0]);
    _tile_stored(0, both, 64);
    __builtin_memcpy(to.high[0], both, bytes);
    __builtin_memcpy(to.low[0], both + layout.rows, bytes);
    if (P > 1) {
        _tile_stored(1, both, 64);
        __builtin_memcpy(to.high[1], both, bytes);
        __builtin_memcpy(to.low[1], both + layout.rows, bytes);
    }
}

template <std::size_t P>
OVSPEC_INLINE void split_products(const GroupTiles& tiles, const BlockLayout& layout,
                                  const std::uint8_t* digits, std::size_t asks, Products& to) {
    _tile_zero(0);
    _tile_zero(1);
    if (P > 1) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (std::size_t k = 0; k < tiles.count; k++) {
        _tile_loadd(4, digits + k * slab, layout.stride);
        _tile_loadd(5, digits + layout.rows * layout.stride + k * slab, layout.stride);
        const std::uint8_t* at = tiles.panels[0] + k * tile_bytes;
        if (asks)
            ask(at + asks);
        _tile_loadd(6, at, 64);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 5, 6);
        if (P > 1) {
            at = tiles.panels[1] + k * tile_bytes;
            if (asks)
                ask(at + asks);
            _tile_loadd(7, at, 64);
            _tile_dpbsud(2, 4, 7);
            _tile_dpbsud(3, 5, 7);
        }
    }
    _tile_stored(0, to.high[0], 64);
    _tile_stored(1, to.low[0], 64);
    if (P > 1) {
        _tile_stored(2, to.high[1], 64);
        _tile_stored(3, to.low[1], 64);
    }
}

// Weights of one group of P panels: where they are, or in `widened`.
template <WeightFormat format, std::size_t P>
OVSPEC_INLINE GroupTiles tiles_of(const LinearWeights& w, const std::uint8_t* panel, std::size_t group,
                                  std::uint8_t* widened) {
    const std::size_t bytes = group_inputs(w) * panel_width;
    GroupTiles tiles{{}, bytes / tile_bytes};
    for (std::size_t p = 0; p < P; p++) {
        const std::uint8_t* data = panel + p * w.panel_bytes() + w.data_at();
        tiles.panels[p] = data;
        if (format == WeightFormat::u4) {
            const std::uint8_t* from = data + group * bytes / 2;
            for (std::size_t at = 0; at < bytes / 2; at += 64)
                _mm_prefetch((const char*)from + at + bytes, _MM_HINT_T0);
            widen(from, bytes / 2, widened + p * bytes);
            tiles.panels[p] = widened + p * bytes;
        }
    }
    return tiles;
}

template <WeightFormat format, std::size_t P>
__attribute__((noinline)) void panels_of(const LinearWeights& w, const std::uint8_t* panel,
                                         const BlockLayout& layout, const std::uint8_t* packed,
                                         std::size_t rows, const PanelTarget* targets, float* scratch) {
    constexpr std::size_t width = most_panels * panel_width;
    constexpr std::size_t ahead = 4096;
    std::uint8_t* widened = (std::uint8_t*)(scratch + rows * width);
    Products products;
    for (std::size_t g = 0; g < w.groups; g++) {
        const GroupTiles tiles = tiles_of<format, P>(w, panel, g, widened);
        digit_rows::Scales scales[P];
        for (std::size_t p = 0; p < P; p++)
            scales[p] = digit_rows::scales_of(w, panel + p * w.panel_bytes(), g, 0);
        for (std::size_t row = 0; row < rows; row += layout.rows) {
            const std::uint8_t* block = packed + row / block_rows * layout.bytes;
            const std::uint8_t* digits = layout.high(block, 0) + g * w.group_size();
            const std::size_t asks = format == WeightFormat::u8 && row == 0 ? ahead : 0;
            if (layout.rows <= shared_rows)
                shared_products<P>(tiles, layout, digits, asks, products);
            else
                split_products<P>(tiles, layout, digits, asks, products);
            const std::int32_t *high_sums = layout.high_sums(block, g), *low_sums = layout.low_sums(block, g);
            const std::size_t some = rows - row < layout.rows ? rows - row : layout.rows;
            for (std::size_t r = 0; r < some; r++)
                for (std::size_t p = 0; p < P; p++) {
                    float* sum = scratch + (row + r) * width + p * panel_width;
                    const Vec share =
                        digit_rows::scaled(load_as<IVec>(products.high[p][r]),
                                           load_as<IVec>(products.low[p][r]), scales[p], high_sums[r],
                                           low_sums[r]);
                    const Vec total = g == 0 ? share : load(sum) + share;
                    if (g + 1 == w.groups)
                        digit_rows::write(targets[p], row + r, 0, total * layout.units(block)[r]);
                    else
                        store(sum, total);
                }
        }
    }
}

template <WeightFormat format>
OVSPEC_INLINE void product(const LinearWeights& w, std::size_t first, std::size_t count,
                           const std::uint8_t* packed, std::size_t rows, const PanelTarget* targets,
                           float* scratch) {
    const BlockLayout layout(w, rows < block_rows ? rows : block_rows);
    const std::size_t in_tile = layout.rows <= shared_rows ? 2 * layout.rows : layout.rows;
    const tiles::Session session(tiles::Configuration::of_rows(in_tile));
    float* aligned = (float*)(((std::uintptr_t)scratch + 63) / 64 * 64);
    std::size_t p = 0;
    for (; p + 2 <= count; p += 2)
        panels_of<format, 2>(w, w.panel(first + p), layout, packed, rows, targets + p, aligned);
    if (p < count)
        panels_of<format, 1>(w, w.panel(first + p), layout, packed, rows, targets + p, aligned);
}

} // namespace tile_path
} // namespace OVSPEC_ISA
} // namespace ovspec

#endif

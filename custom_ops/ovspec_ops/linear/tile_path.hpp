// Rows times panels with AMX tiles: the digits of up to 16 rows times 32 neurons, 64 inputs at a time, or 32
// where groups are not made of whole tiles.
#pragma once

#include "common/tiles.hpp"
#include "linear/digit_rows.hpp"
#include "linear/panels.hpp"

namespace ovspec::OVSPEC_ISA::tile_path {

using digit_rows::BlockLayout;
using digit_rows::DigitSums;
using digit_rows::half_slab;
using digit_rows::slab;

constexpr std::size_t tile_width = 16; // neurons
constexpr std::size_t halves = panel_width / tile_width;
constexpr std::size_t quad_bytes = 4 * panel_width;
constexpr std::size_t ahead = 4096; // bytes that are asked for before they are read
// Up to here the high and the low digits of all rows share a tile.
constexpr std::size_t shared_rows = block_rows / 2;

// Inputs of a tile.
OVSPEC_INLINE std::size_t depth_of(const LinearWeights& w) {
    return w.groups == 1 || w.group_size() % slab == 0 ? slab : half_slab;
}

// Whether tiles are faster than vectors, which give the same bits. Measured on SmolLM2: with 8-bit weights a
// pass of three rows takes 0.91 of the time of vectors. 4-bit weights must be unpacked for tiles: a pass of
// four rows takes 1.1 of that time. Tiles of half the depth are faster for full blocks of rows only.
OVSPEC_INLINE bool serves(const LinearWeights& w, std::size_t rows) {
    if (depth_of(w) == half_slab)
        return w.group_size() % half_slab == 0 && rows > block_rows;
    return rows > (w.format == WeightFormat::u8 ? 2 : 4);
}

// A panel, and sizes that cost divisions.
struct Panel {
    const LinearWeights& w;
    const std::uint8_t* head;
    const std::uint8_t* data;
    std::size_t bytes, groups;
    std::size_t inputs; // of a group, filled up

    Panel(const LinearWeights& weights, std::size_t index)
        : w(weights), head(weights.panel(index)), data(head + weights.data_at()),
          bytes(weights.panel_bytes()), groups(weights.groups),
          inputs(weights.groups == 1 ? weights.padded() : weights.group_size()) {}
};

// The rows of a call.
struct PackedRows {
    BlockLayout layout;
    const std::uint8_t* packed;
    std::size_t count;

    const std::uint8_t* block(std::size_t row) const { return packed + row / block_rows * layout.bytes; }
};

// Weights of 4 bits unpacked to bytes: of the whole panel where more than one block of rows uses them,
// else of this group and the next.
OVSPEC_INLINE std::size_t scratch_bytes(const LinearWeights& w, std::size_t rows) {
    if (w.format != WeightFormat::u4)
        return 0;
    const std::size_t held = rows > block_rows || w.groups == 1 ? w.groups : 2;
    return held * (w.padded() / w.groups) * panel_width + 64;
}

// Into the second cache: the first one has few places for lines that are on their way.
OVSPEC_INLINE void ask(const std::uint8_t* from, std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += 64)
        _mm_prefetch((const char*)from + at, _MM_HINT_T1);
}

// What to ask for meanwhile: `step` bytes with every tile, from `from` on.
struct Meanwhile {
    const std::uint8_t* from;
    std::size_t step;
};

// Two quads of inputs lie in the two halves of every byte.
OVSPEC_INLINE void widen(const std::uint8_t* from, std::size_t bytes, std::uint8_t* to) {
    const __m512i nibble = _mm512_set1_epi8(15);
    for (std::size_t at = 0; at < bytes; at += quad_bytes, to += 2 * quad_bytes) {
        ask(from + at + ahead, quad_bytes);
        const __m512i a = _mm512_loadu_si512(from + at), b = _mm512_loadu_si512(from + at + 64);
        _mm512_store_si512(to, _mm512_and_si512(a, nibble));
        _mm512_store_si512(to + 64, _mm512_and_si512(b, nibble));
        _mm512_store_si512(to + 128, _mm512_and_si512(_mm512_srli_epi16(a, 4), nibble));
        _mm512_store_si512(to + 192, _mm512_and_si512(_mm512_srli_epi16(b, 4), nibble));
    }
}

// Weights of one group as bytes: where they are, or in `widened`.
template <WeightFormat format>
OVSPEC_INLINE const std::uint8_t* bytes_of(const Panel& panel, std::size_t group, std::uint8_t* widened) {
    const std::size_t bytes = panel.inputs * panels::input_bytes(format);
    const std::uint8_t* held = panel.data + group * bytes;
    if constexpr (format == WeightFormat::u8)
        return held;
    widen(held, bytes, widened);
    return widened;
}

// Sums of digits times weights, `[16, 16]` a tile: of high and of low digits, or of the rows' high digits and
// then their low ones in one.
struct alignas(64) Products {
    typedef std::int32_t Row[tile_width];

    Row sums[halves][2][block_rows];

    const Row* high(std::size_t half) const { return sums[half][0]; }
    const Row* low(std::size_t half, std::size_t rows) const {
        return rows <= shared_rows ? sums[half][0] + rows : sums[half][1];
    }
};

// The digits of a block of rows, in tiles of `depth` inputs.
template <std::size_t depth> struct Digits {
    const BlockLayout& layout;
    const std::uint8_t* first;

    OVSPEC_INLINE_MEMBER const std::uint8_t* at(std::size_t tile) const {
        return first + tile * depth / slab * layout.slab_bytes + tile * depth % slab;
    }
};

// Tiles 0 to 3 hold sums, 4 and 5 rows, 6 and 7 weights. `begin` to `end`: tiles of the block's digits.
template <std::size_t depth>
OVSPEC_INLINE void shared_products(const std::uint8_t* weights, Digits<depth> digits, std::size_t begin,
                                   std::size_t end, Meanwhile meanwhile, Products& to) {
    _tile_zero(0);
    _tile_zero(1);
    for (std::size_t k = begin; k < end; k++, weights += depth * panel_width) {
        ask(meanwhile.from + (k - begin) * meanwhile.step, meanwhile.step);
        OVSPEC_LOAD_TILE(4, digits.at(k), slab);
        OVSPEC_LOAD_TILE(6, weights, quad_bytes);
        OVSPEC_LOAD_TILE(7, weights + quad_bytes / 2, quad_bytes);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
    }
    _tile_stored(0, to.sums[0][0], 64);
    _tile_stored(1, to.sums[1][0], 64);
}

template <std::size_t depth>
OVSPEC_INLINE void split_products(const std::uint8_t* weights, Digits<depth> digits, std::size_t begin,
                                  std::size_t end, Meanwhile meanwhile, Products& to) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (std::size_t k = begin; k < end; k++, weights += depth * panel_width) {
        ask(meanwhile.from + (k - begin) * meanwhile.step, meanwhile.step);
        OVSPEC_LOAD_TILE(4, digits.at(k), slab);
        OVSPEC_LOAD_TILE(6, weights, quad_bytes);
        _tile_dpbsud(0, 4, 6);
        OVSPEC_LOAD_TILE(5, digits.at(k) + digits.layout.low(), slab);
        _tile_dpbsud(1, 5, 6);
        OVSPEC_LOAD_TILE(7, weights + quad_bytes / 2, quad_bytes);
        _tile_dpbsud(2, 4, 7);
        _tile_dpbsud(3, 5, 7);
    }
    _tile_stored(0, to.sums[0][0], 64);
    _tile_stored(1, to.sums[0][1], 64);
    _tile_stored(2, to.sums[1][0], 64);
    _tile_stored(3, to.sums[1][1], 64);
}

// One block's products with one group, which have yet to join its sums `[16, 32]`.
struct Step {
    std::size_t group, row;
};

template <WeightFormat format>
OVSPEC_INLINE void finish(const Panel& panel, const PackedRows& rows, const Step& step,
                          const Products& products, const PanelTarget& target, float* sums) {
    const std::size_t in_block = rows.layout.rows, left = rows.count - step.row;
    const std::size_t some = left < in_block ? left : in_block;
    const std::uint8_t* block = rows.block(step.row);
    const DigitSums& digit_sums = rows.layout.group_sums(block, step.group);
    const bool last = step.group + 1 == panel.groups;
    for (std::size_t half = 0; half < halves; half++) {
        const auto scales = digit_rows::scales_of<format>(panel.w, panel.head, step.group, half * tile_width);
        const Products::Row *high = products.high(half), *low = products.low(half, in_block);
        float* sum = sums + half * tile_width;
        const auto joined = [&](Vec total, std::size_t r) __attribute__((always_inline)) {
            return scales.add(total, load_as<IVec>(high[r]), load_as<IVec>(low[r]), digit_sums, r);
        };
        if (step.group == 0)
            for (std::size_t r = 0; r < some; r++)
                store(sum + r * panel_width, joined(Vec{}, r));
        else
            for (std::size_t r = 0; r < some; r++)
                store(sum + r * panel_width, joined(load(sum + r * panel_width), r));
        if (last)
            for (std::size_t r = 0; r < some; r++)
                panels::write(target, step.row + r, half * tile_width,
                              load(sum + r * panel_width) * rows.layout.units(block)[r]);
    }
}

// While the tiles of one step are at work, the products of the one before become sums, and the weights of the
// next group become bytes.
template <WeightFormat format, std::size_t depth>
__attribute__((noinline)) void panel_of(const Panel& panel, const PackedRows& rows, const PanelTarget& target,
                                        std::uint8_t* widened) {
    const BlockLayout& layout = rows.layout;
    const std::size_t group_tiles = panel.inputs / depth, group_bytes = panel.inputs * panel_width;
    const bool many = rows.count > block_rows;
    const std::size_t held = many ? panel.groups : 2;
    const auto bytes_at = [&](std::size_t g) { return widened + g % held * group_bytes; };
    // Many rows take their time: a part of the next panel comes with each tile of each block. Few do not.
    const std::size_t steps = group_tiles * panel.groups * ((rows.count + block_rows - 1) / block_rows);
    Meanwhile meanwhile{panel.data + ahead, format == WeightFormat::u8 ? depth * panel_width : 0};
    if (many)
        meanwhile = {panel.head + panel.bytes, (panel.bytes / steps + 64) / 64 * 64};
    Products products[2];
    alignas(64) float sums[block_rows * panel_width];
    Step before{};
    std::size_t turn = 0;
    const std::uint8_t* next = bytes_of<format>(panel, 0, bytes_at(0));
    for (std::size_t row = 0; row < rows.count; row += layout.rows) {
        const Digits<depth> digits{layout, rows.block(row) + layout.digits};
        for (std::size_t g = 0; g < panel.groups; g++) {
            const std::uint8_t* weights = next;
            const std::size_t begin = g * group_tiles, end = begin + group_tiles;
            if (layout.rows <= shared_rows)
                shared_products(weights, digits, begin, end, meanwhile, products[turn % 2]);
            else
                split_products(weights, digits, begin, end, meanwhile, products[turn % 2]);
            meanwhile.from += group_tiles * meanwhile.step;
            const std::size_t following = (g + 1) % panel.groups;
            const bool widened_before = format == WeightFormat::u4 && (row != 0 || following == 0);
            next = widened_before ? bytes_at(following)
                                  : bytes_of<format>(panel, following, bytes_at(following));
            if (turn > 0)
                finish<format>(panel, rows, before, products[(turn - 1) % 2], target, sums);
            before = {g, row};
            turn++;
        }
    }
    finish<format>(panel, rows, before, products[(turn - 1) % 2], target, sums);
}

template <WeightFormat format>
OVSPEC_INLINE void product(const LinearWeights& w, std::size_t first, std::size_t count,
                           const std::uint8_t* packed, std::size_t row_count, const PanelTarget* targets,
                           float* scratch) {
    const PackedRows rows{BlockLayout(w, row_count < block_rows ? row_count : block_rows), packed, row_count};
    const std::size_t in_block = rows.layout.rows, depth = depth_of(w);
    const tiles::Session session(
        tiles::Configuration::of_rows(in_block <= shared_rows ? 2 * in_block : in_block, depth));
    std::uint8_t* widened = (std::uint8_t*)(((std::uintptr_t)scratch + 63) / 64 * 64);
    for (std::size_t p = 0; p < count; p++)
        if (depth == slab)
            panel_of<format, slab>(Panel(w, first + p), rows, targets[p], widened);
        else
            panel_of<format, half_slab>(Panel(w, first + p), rows, targets[p], widened);
}

} // namespace ovspec::OVSPEC_ISA::tile_path

// Blocks of any precision through products of floats.
#pragma once

#include "common/cache_rows.hpp"
#include "verify_attention/unit.hpp"
#include "verify_attention/wide.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace float_path {

constexpr std::size_t unit_blocks = 1;
constexpr std::size_t unit_slots = (unit_blocks + blocks_behind) * block_size;

// A thread's scratch, for every head of an item.
struct HeadScratch {
    float* queries; // per group `[k_size, lanes of the group]`, scaled
    std::size_t floats;

    HeadScratch(const Geometry& g, const VerifyCall& call, float* at) {
        Parts parts{at};
        queries = parts.take(g.padded * call.keys.size);
        floats = parts.floats;
    }
};

// A thread's scratch, for all heads.
struct Scratch {
    float* scores;  // per group `[slots, lanes of the group]`
    float* ordered; // of a tree: of one group `[32, lanes of the group]`, by position
    float* corrections;
    std::uint32_t* visible; // of every row, the slots of the block that it sees, as bits
    float* block;           // a block of keys or values as f32
    std::size_t floats;

    Scratch(const Geometry& g, const VerifyCall&, float* at) {
        Parts parts{at};
        scores = parts.take(g.padded * unit_slots);
        ordered = parts.take(2 * lanes * block_size);
        corrections = parts.take(g.padded);
        visible = (std::uint32_t*)parts.take(g.padded);
        block = parts.take(block_size * larger(g.key_stride, g.value_stride));
        floats = parts.floats;
    }
};

static void prepare_queries(const VerifyCall& call, const VerifyHead& head, const Geometry& g,
                            const HeadScratch& scratch, const Scratch&) {
    const Queries queries(call, head);
    const std::size_t size = call.keys.size;
    for (std::size_t r = 0; r < g.padded; r++) {
        const bool real = r < g.rows;
        const float* from = queries.row(real ? r : 0);
        const std::size_t first = r / g.unit * g.unit, width = g.width(first);
        float* to = scratch.queries + first * size + (r - first);
        for (std::size_t d = 0; d < size; d++)
            to[d * width] = real ? from[d] * call.scale : 0.0f;
    }
}

// The block as f32 rows: the cache itself where it is f32, else converted into `buffer`.
struct FloatBlock {
    const float* data;
    std::size_t stride;
};

static FloatBlock float_block(const CacheView& cache, const std::uint8_t* at, std::size_t tokens,
                              float* buffer, std::size_t stride) {
    if (cache.format == CacheFormat::f32)
        return {(const float*)at, cache.size};
    with_rows(cache, at, [&](const auto& rows) {
        const std::size_t full = cache.size / lanes * lanes;
        for (std::size_t t = 0; t < tokens; t++) {
            const auto row = rows.row(t);
            float* to = buffer + t * stride;
            for (std::size_t d = 0; d < full; d += lanes)
                store(to + d, value(row, d));
            if (full < cache.size)
                store(to + full, value_part(row, full, cache.size - full));
        }
    });
    return {buffer, stride};
}

struct Chunk {
    const VerifyCall& call;
    const VerifySequence& sequence;
    const Geometry& g;
    const HeadScratch& own;
    const Scratch& scratch;
    const Partial& partial;
    std::int32_t window;

    float* scores(std::size_t first, std::size_t block, std::size_t width) const {
        return scratch.scores + first * unit_slots + block * block_size * width;
    }
};

template <std::size_t V>
void score_group(const Chunk& c, std::size_t b, const FloatBlock& keys, std::size_t first,
                 Prefetch prefetch) {
    const std::size_t size = c.call.keys.size;
    wide::score_block<V>(keys.data, keys.stride, c.own.queries + first * size, size,
                         c.scores(first, b, V * lanes), prefetch);
}

template <std::size_t V> void weigh_group(const Chunk& c, const Unit& unit, bool masked, std::size_t first) {
    constexpr std::size_t width = V * lanes;
    float *scores = c.scores(first, 0, width), *maxima = c.partial.maxima + first,
          *sums = c.partial.sums + first;
    Vec* corrections = (Vec*)(c.scratch.corrections + first);
    if (unit.gaps) {
        float* ordered = c.scratch.ordered;
        order_scores(c.sequence, c.g, c.call.group, c.window, unit, first, width, scores, width, ordered);
        wide::softmax<V>(ordered, unit.positions(), maxima, sums, corrections);
        spread_weights(c.sequence, c.g, c.call.group, c.window, unit, first, width, ordered, width, scores);
        return;
    }
    const std::size_t tokens = unit.blocks[0].tokens;
    if (masked)
        wide::mask_scores<V>(scores, tokens, c.scratch.visible + first);
    wide::softmax<V>(scores, tokens, maxima, sums, corrections);
}

template <std::size_t V>
void value_group(const Chunk& c, const Block& block, std::size_t b, const FloatBlock& values,
                 std::size_t first, Prefetch prefetch) {
    const std::size_t size = c.call.values.size;
    Vec corrections[V];
    for (std::size_t v = 0; v < V; v++) // of a unit's blocks the first one scales older output
        corrections[v] = b == 0 ? load(c.scratch.corrections + first + v * lanes) : splat(1.0f);
    wide::add_values<V>(values.data, values.stride, c.scores(first, b, V * lanes), block.tokens, size,
                        corrections, c.partial.out + first * size, prefetch);
}

// Calls pairs(first) for groups of two vectors of rows, one(first) for the last one of one vector.
template <class Pairs, class One>
OVSPEC_INLINE void each_group(const Geometry& g, const Pairs& pairs, const One& one) {
    std::size_t first = 0;
    for (; first + 2 * lanes <= g.padded; first += 2 * lanes)
        pairs(first);
    if (first < g.padded)
        one(first);
}

static void attend_unit(const Chunk& c, const Unit& unit, const Block& next) {
    Prefetch ahead(c.call.values, unit.blocks[0].values);
    for (std::size_t b = 0; b < unit.count; b++) {
        const Block& block = unit.blocks[b];
        const FloatBlock keys =
            float_block(c.call.keys, block.keys, block.tokens, c.scratch.block, c.g.key_stride);
        each_group(
            c.g,
            [&](std::size_t first) {
                score_group<2>(c, b, keys, first, ahead);
                ahead.bytes_per_token = 0;
            },
            [&](std::size_t first) { score_group<1>(c, b, keys, first, ahead); });
    }
    const bool masked = !unit.gaps && find_visible(c.sequence, c.g, c.call.group, c.window, unit.blocks[0],
                                                   c.scratch.visible);
    each_group(
        c.g, [&](std::size_t first) { weigh_group<2>(c, unit, masked, first); },
        [&](std::size_t first) { weigh_group<1>(c, unit, masked, first); });
    ahead = Prefetch(c.call.keys, next.keys);
    for (std::size_t b = 0; b < unit.count; b++) {
        const Block& block = unit.blocks[b];
        const FloatBlock values =
            float_block(c.call.values, block.values, block.tokens, c.scratch.block, c.g.value_stride);
        each_group(
            c.g,
            [&](std::size_t first) {
                value_group<2>(c, block, b, values, first, ahead);
                ahead.bytes_per_token = 0;
            },
            [&](std::size_t first) { value_group<1>(c, block, b, values, first, ahead); });
    }
}

static void attend(const VerifyCall& call, const Visit& visit, const Geometry& g, const Partial& partial,
                   const HeadScratch& own, const Scratch& scratch) {
    const std::int32_t window = call.window > 0 ? call.window : no_window;
    const Chunk c{call, *visit.head.sequence, g, own, scratch, partial, window};
    for (std::size_t entry = visit.begin; entry < visit.end; entry += unit_blocks)
        attend_unit(c, Unit(call, visit, entry, unit_blocks), visit.block(call, entry + unit_blocks));
}

} // namespace float_path
} // namespace OVSPEC_ISA
} // namespace ovspec

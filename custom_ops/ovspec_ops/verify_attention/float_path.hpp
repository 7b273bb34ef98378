// Blocks of any precision through products of floats: wide.hpp for many rows, narrow.hpp for few.
#pragma once

#include "verify_attention/geometry.hpp"
#include "verify_attention/narrow.hpp"
#include "verify_attention/wide.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace float_path {

// A thread's scratch, for every head of an item.
struct HeadScratch {
    float* queries;    // narrow: `[rows, key_stride]`; wide: per group `[k_size, lanes of the group]`; scaled
    float* query_sums; // narrow
    std::size_t floats;

    HeadScratch(const Geometry& g, const VerifyCall& call, float* at) {
        Parts parts{at};
        queries = parts.take(g.path == Path::narrow ? g.rows * g.key_stride : g.padded * call.keys.size);
        query_sums = parts.take(g.padded);
        floats = parts.floats;
    }
};

// A thread's scratch, for all heads.
struct Scratch {
    float* scores; // narrow: `[rows, 32]`; wide: per group `[32, lanes of the group]`
    float* corrections;
    std::uint32_t* visible; // of every row, the slots of the block that it sees, as bits
    float* block;           // wide: a block of keys or values as f32
    std::size_t floats;

    Scratch(const Geometry& g, const VerifyCall&, float* at) {
        Parts parts{at};
        scores = parts.take(g.padded * block_size);
        corrections = parts.take(g.padded);
        visible = (std::uint32_t*)parts.take(g.padded);
        block = parts.take(g.path == Path::narrow ? 0 : block_size * larger(g.key_stride, g.value_stride));
        floats = parts.floats;
    }
};

static void prepare_queries(const VerifyCall& call, const VerifyHead& head, const Geometry& g,
                            const HeadScratch& scratch, const Scratch&) {
    const Queries queries(call, head);
    const std::size_t size = call.keys.size;
    for (std::size_t r = 0; r < (g.path == Path::narrow ? g.rows : g.padded); r++) {
        const bool real = r < g.rows;
        const float* from = queries.row(real ? r : 0);
        if (g.path == Path::narrow) {
            float* to = scratch.queries + r * g.key_stride;
            float total = 0.0f;
            for (std::size_t d = 0; d < g.key_stride; d++) {
                to[d] = d < size ? from[d] * call.scale : 0.0f;
                total += to[d];
            }
            scratch.query_sums[r] = total;
        } else {
            const std::size_t first = r / g.unit * g.unit, width = g.width(first);
            float* to = scratch.queries + first * size + (r - first);
            for (std::size_t d = 0; d < size; d++)
                to[d * width] = real ? from[d] * call.scale : 0.0f;
        }
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

    bool find_visible(const Block& b) const {
        return OVSPEC_ISA::find_visible(sequence, g, call.group, window, b, scratch.visible);
    }
};

template <std::size_t V>
void score_group(const Chunk& c, const Block& b, const FloatBlock& keys, bool masked, std::size_t first,
                 Prefetch prefetch) {
    const std::size_t size = c.call.keys.size;
    float* scores = c.scratch.scores + first * block_size;
    wide::score_block<V>(keys.data, keys.stride, c.own.queries + first * size, size, scores, prefetch);
    if (masked)
        wide::mask_scores<V>(scores, b.tokens, c.scratch.visible + first);
    wide::softmax<V>(scores, b.tokens, c.partial.maxima + first, c.partial.sums + first,
                     (Vec*)(c.scratch.corrections + first));
}

template <std::size_t V>
void value_group(const Chunk& c, const Block& b, const FloatBlock& values, std::size_t first,
                 Prefetch prefetch) {
    const std::size_t size = c.call.values.size;
    wide::add_values<V>(values.data, values.stride, c.scratch.scores + first * block_size, b.tokens, size,
                        (const Vec*)(c.scratch.corrections + first), c.partial.out + first * size, prefetch);
}

static void attend_block_wide(const Chunk& c, const Block& b, const Block& next) {
    const std::size_t pair = 2 * lanes;
    Prefetch ahead(c.call.values, b.values);
    const FloatBlock keys = float_block(c.call.keys, b.keys, b.tokens, c.scratch.block, c.g.key_stride);
    const bool masked = c.find_visible(b);
    std::size_t first = 0;
    for (; first + pair <= c.g.padded; first += pair, ahead.bytes_per_token = 0)
        score_group<2>(c, b, keys, masked, first, ahead);
    if (first < c.g.padded)
        score_group<1>(c, b, keys, masked, first, ahead);
    ahead = Prefetch(c.call.keys, next.keys);
    const FloatBlock values =
        float_block(c.call.values, b.values, b.tokens, c.scratch.block, c.g.value_stride);
    for (first = 0; first + pair <= c.g.padded; first += pair, ahead.bytes_per_token = 0)
        value_group<2>(c, b, values, first, ahead);
    if (first < c.g.padded)
        value_group<1>(c, b, values, first, ahead);
}

template <std::size_t R> void attend_block_narrow(const Chunk& c, const Block& b, const Block& next) {
    with_rows(c.call.keys, b.keys, [&](const auto& rows) {
        narrow::score_block<R>(rows, b.tokens, c.own.queries, c.g.key_stride, c.own.query_sums,
                               c.call.keys.size, c.scratch.scores, Prefetch(c.call.values, b.values));
    });
    const bool masked = c.find_visible(b);
    for (std::size_t r = 0; r < R; r++) {
        float* scores = c.scratch.scores + r * block_size;
        if (masked)
            narrow::mask_scores(scores, c.scratch.visible[r]);
        c.scratch.corrections[r] = narrow::softmax(scores, c.partial.maxima + r, c.partial.sums + r);
    }
    with_rows(c.call.values, b.values, [&](const auto& rows) {
        narrow::add_values<R>(rows, b.tokens, c.scratch.scores, c.scratch.corrections, c.call.values.size,
                              c.partial.out, c.g.value_stride, Prefetch(c.call.keys, next.keys));
    });
}

// attend_block_narrow<rows> for the row count of this call
template <std::size_t R> void attend_block_narrow_rows(const Chunk& c, const Block& b, const Block& next) {
    if (c.g.rows == R)
        return attend_block_narrow<R>(c, b, next);
    if constexpr (R > 1)
        attend_block_narrow_rows<R - 1>(c, b, next);
}

static void attend(const VerifyCall& call, const Visit& visit, const Geometry& g, const Partial& partial,
                   const HeadScratch& own, const Scratch& scratch) {
    const std::int32_t window = call.window > 0 ? call.window : no_window;
    const Chunk c{call, *visit.head.sequence, g, own, scratch, partial, window};
    Block block = visit.block(call, visit.begin);
    for (std::size_t entry = visit.begin; entry < visit.end; entry++) {
        const Block next = visit.block(call, entry + 1);
        if (g.path == Path::narrow)
            attend_block_narrow_rows<narrow::max_rows>(c, block, next);
        else
            attend_block_wide(c, block, next);
        block = next;
    }
}

} // namespace float_path
} // namespace OVSPEC_ISA
} // namespace ovspec

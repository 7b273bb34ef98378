// u8 caches through products of bytes (integer.hpp). Two blocks at a time, so that what is done per output
// entry is done half as often; every group of rows passes over the same bytes, which stay in the first-level
// cache.
//
// Scores. By token, sum of (u - z_t) s_t q = s_t (sum of u q - z_t sum of q): the queries are made 16-bit
// numbers once per head. By channel, sum of (u_d - z_d) s_d q_d: the scale goes into the query of every
// block, the zero points into a sum per row. Values. The weights of a token include its scale; they are made
// 16-bit numbers relative to the largest scale of the two blocks and to the row's largest weight in them, so
// that a block far below a row's maximum is as exact as any other.
#pragma once

#ifdef OVSPEC_DOT

#include "verify_attention/integer_scores.hpp"
#include "verify_attention/integer_values.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace integer_path {

template <bool half> void attend_group(const Chunk& c, Pair& pair, std::size_t first) {
    constexpr std::size_t width = half ? half_lanes : lanes;
    const Scratch& s = c.scratch;
    for (std::size_t b = 0; b < pair.count; b++) {
        score_block<half>(c, pair, b, first);
        if (pair.masked[b])
            mask_scores<half>(s.scores + b * block_size * width, s.visible + b * c.g.padded + first);
    }
    Vec older, newer, bias;
    softmax<half>(s.scores, pair.slots(), c.partial.maxima + first, c.partial.sums + first, &older, &newer,
                  pair.fetch);
    pack_weights<half>(s.scores, pair.slots(), s.value_scales, s.value_zeros, s.weight_parts, &bias,
                       pair.fetch);
    add_values<half>(c, pair, first, &older, &newer, &bias);
}

// The two blocks from entry `next` on, while `count` blocks are worked on: values are needed first.
static Fetch next_pair(const VerifyCall& call, const Geometry& g, const Visit& visit, std::size_t next,
                       std::size_t count) {
    std::size_t ticks = read_ticks(call.values.size);
    for (std::size_t first = 0; first < g.grouped; first += lanes)
        ticks += pair_blocks * score_ticks(g.width(first) < lanes, call.keys.size) +
                 value_ticks(g.width(first), call.values.size);
    Fetch fetch(ticks * count / pair_blocks);
    const Block blocks[pair_blocks] = {visit.block(call, next), visit.block(call, next + 1)};
    for (const Block& block : blocks)
        fetch.add(block.values, call.values.block_bytes);
    for (const Block& block : blocks)
        fetch.add(block.keys, call.keys.block_bytes);
    return fetch;
}

static void attend(const VerifyCall& call, const Visit& visit, const Geometry& g, const Partial& partial,
                   const HeadScratch& own, const Scratch& scratch) {
    const Chunk c{call, g, own, scratch, partial};
    const std::int32_t window = call.window > 0 ? call.window : no_window;
    if (call.keys.format == CacheFormat::u8_channel)
        find_units(c, visit);
    for (std::size_t entry = visit.begin; entry < visit.end; entry += pair_blocks) {
        const std::size_t count = smaller(pair_blocks, visit.end - entry);
        Pair pair{{}, count, {}, 0.0f, next_pair(call, g, visit, entry + count, count)};
        for (std::size_t b = 0; b < pair.count; b++) {
            pair.blocks[b] = visit.block(call, entry + b);
            pair.masked[b] = find_visible(*visit.head.sequence, g, call.group, window, pair.blocks[b],
                                          scratch.visible + b * g.padded);
        }
        read_pair(c, pair);
        for (std::size_t first = 0; first < g.grouped; first += lanes)
            if (g.width(first) < lanes)
                attend_group<true>(c, pair, first);
            else
                attend_group<false>(c, pair, first);
    }
}

} // namespace integer_path
} // namespace OVSPEC_ISA
} // namespace ovspec

#endif

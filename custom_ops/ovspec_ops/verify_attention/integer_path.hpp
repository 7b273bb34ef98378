// u8 caches through products of bytes (integer.hpp). Two blocks at a time, so that what is done per output
// entry is done half as often; every group of rows passes over the same bytes, which stay in the first-level
// cache.
//
// Scores. By token, sum of (u - z_t) s_t q = s_t (sum of u q - z_t sum of q): the queries are made 16-bit
// numbers once per head. By channel, sum of (u_d - z_d) s_d q_d: the scale goes into the query of every
// block, the zero points into a sum per row. Values. The weights of a token include its scale; they are made
// 16-bit numbers relative to the largest scale that the row sees in the two blocks and to its largest weight
// in them, so that a block far below a row's maximum is as exact as any other, and tokens that a row does not
// see change nothing.
#pragma once

#include "verify_attention/integer_few.hpp"
#include "verify_attention/integer_scores.hpp"
#include "verify_attention/integer_values.hpp"

namespace ovspec::OVSPEC_ISA::integer_path {

// Slots of the pair up to the last one that a row of the group sees, in eights. Those behind it have weights
// of 0, which change no bit of a sum.
static std::size_t group_slots(const Chunk& c, const Pair& pair, std::size_t first, std::size_t width) {
    if (c.sequence.tree)
        return pair.unit.slots();
    const std::size_t last_row = (smaller(first + width, c.g.rows) - 1) / c.call.group;
    const std::int32_t end = c.sequence.positions[last_row] + 1;
    std::size_t slots = 0;
    for (std::size_t b = 0; b < pair.unit.count; b++) {
        const std::int32_t tokens = end - pair.unit.blocks[b].first_key;
        if (tokens > 0)
            slots = b * block_size + smaller(block_size, round_up((std::size_t)tokens, 8));
    }
    return slots;
}

// Masks the first `slots` scores of a group, of a tree puts them in the order of positions; returns the
// scores to go on with and the largest value scale that each row sees.
template <bool half>
float* visible_scores(const Chunk& c, const Pair& pair, std::size_t first, std::size_t slots, Vec* largest) {
    constexpr std::size_t width = half ? half_lanes : lanes;
    const Scratch& s = c.scratch;
    *largest = Vec{};
    if (pair.unit.gaps) {
        order_scores(c.sequence, c.g, c.call.group, pair.unit, first, width, s.scores, width, s.ordered);
        for (std::size_t i = 0; i < width; i++)
            each_visible(c.sequence, smaller(first + i, c.g.rows - 1) / c.call.group, pair.unit,
                         [&](std::size_t slot, std::size_t) {
                             const float x =
                                 s.value_scales[slot] < 0.0f ? -s.value_scales[slot] : s.value_scales[slot];
                             (*largest)[i] = x > (*largest)[i] ? x : (*largest)[i];
                         });
        *largest = load_rows<half>((const float*)largest);
        return s.ordered;
    }
    for (std::size_t b = 0; b * block_size < slots; b++) {
        const Vec here = pair.masked[b] ? mask_scores<half>(s.scores + b * block_size * width,
                                                            smaller(block_size, slots - b * block_size),
                                                            s.visible + b * c.g.padded + first,
                                                            s.value_scales + b * block_size)
                                        : splat(pair.largest_scale[b]);
        *largest = max(max_of_rows<half>(here), *largest);
    }
    return s.scores;
}

template <bool half> void attend_group(const Chunk& c, Pair& pair, std::size_t first) {
    constexpr std::size_t width = half ? half_lanes : lanes;
    const Scratch& s = c.scratch;
    const std::size_t slots = group_slots(c, pair, first, width);
    if (slots == 0)
        return;
    for (std::size_t b = 0; b * block_size < slots; b++)
        score_block<half>(c, pair, b, smaller(block_size, slots - b * block_size), first);
    Vec largest;
    softmax::Factors factors;
    Bias bias;
    float* scores = visible_scores<half>(c, pair, first, slots, &largest);
    weigh<half>(scores, smaller(slots, pair.unit.positions()), c.partial.maxima + first,
                c.partial.sums + first, &factors, pair.fetch);
    if (pair.unit.gaps)
        spread_weights(c.sequence, c.g, c.call.group, pair.unit, first, width, s.ordered, width, s.scores);
    const Vec factor = largest > 1e-30f ? max_weight / largest : Vec{};
    pack_weights<half>(s.scores, slots, s.value_scales, s.value_zeros, &factor, c.guarded, s.weight_parts,
                       &bias, pair.fetch);
    if (pair.unit.gaps) {
        for (std::size_t i = 0; i < width; i++)
            bias.centred[i] = bias_of(c.sequence, smaller(first + i, c.g.rows - 1) / c.call.group, pair.unit,
                                      s.ordered + i, width, factor[i], s.value_scales, s.value_zeros, centre);
        bias.centred = load_rows<half>((const float*)&bias.centred);
    }
    factors.newer *= largest / max_weight; // what one unit of a 16-bit weight is worth
    add_values<half>(c, pair, slots, first, &factors.older, &factors.newer, &bias);
}

// The two blocks from entry `next` on, while `count` blocks are worked on: values are needed first.
static Fetch next_pair(const VerifyCall& call, const Geometry& g, const Visit& visit, std::size_t next,
                       std::size_t count) {
    std::size_t ticks = read_ticks(call.values.size);
    if (g.few)
        ticks += few_ticks(g.rows, call.keys.size, call.values.size);
    for (std::size_t first = 0; first < g.grouped && !g.few; first += lanes)
        ticks += pair_blocks * score_ticks(g.width(first) < lanes, call.keys.size) +
                 value_ticks(g.width(first), call.values.size);
    Fetch fetch(ticks * count / pair_blocks);
    const Block blocks[pair_blocks] = {visit.block(call, next), visit.block(call, next + 1)};
    for (const Block& block : blocks)
        fetch.add(block.values, call.values.block_bytes);
    for (const Block& block : blocks)
        fetch.add(block.keys, call.keys.block_bytes);
    fetch.look_up_pages();
    return fetch;
}

static void attend(const VerifyCall& call, const Visit& visit, const Geometry& g, const Partial& partial,
                   const HeadScratch& own, const Scratch& scratch) {
    const Chunk c{call, g, own, scratch, partial, *visit.head.sequence, visit.guarded};
    for (std::size_t entry = visit.begin; entry < visit.end; entry += pair_blocks) {
        const Unit unit(call, visit, entry, pair_blocks);
        Pair pair{unit, next_pair(call, g, visit, entry + unit.entries, unit.entries)};
        for (std::size_t b = 0; b < unit.entries && !unit.gaps; b++)
            pair.masked[b] =
                find_visible(c.sequence, g, call.group, unit.blocks[b], scratch.visible + b * g.padded);
        read_pair(c, pair);
        if (g.few) {
            attend_few(c, pair);
            continue;
        }
        for (std::size_t first = 0; first < g.grouped; first += lanes)
            if (g.width(first) < lanes)
                attend_group<true>(c, pair, first);
            else
                attend_group<false>(c, pair, first);
    }
}

} // namespace ovspec::OVSPEC_ISA::integer_path

// Blocks of any precision through products of floats, one block at a time. Few rows have tokens and channels
// in the lanes, many rows are in the lanes themselves; the bits are the same.
#pragma once

#include "verify_attention/float_scores.hpp"
#include "verify_attention/float_values.hpp"
#include "verify_attention/softmax.hpp"
#include "verify_attention/unit.hpp"

namespace ovspec::OVSPEC_ISA::float_path {

constexpr std::size_t unit_blocks = 1;
constexpr std::size_t unit_slots = (unit_blocks + blocks_behind) * block_size;

// A thread's scratch, for every head of an item.
struct HeadScratch {
    float* queries; // scaled; few: of every row, see score_few; else per group `[k_size, lanes of the group]`
    float* sums;    // of every row's query
    std::size_t floats;

    HeadScratch(const Geometry& g, const VerifyCall& call, float* at) {
        Parts parts{at};
        queries = parts.take(g.few ? g.grouped * call.keys.size * scores::tokens_together
                                   : g.padded * call.keys.size);
        sums = parts.take(g.padded);
        floats = parts.floats;
    }
};

// Scales and zero points of a unit's slots.
struct Parameters {
    float *scales, *zeros;
};

// A thread's scratch, for all heads.
struct Scratch {
    float* scores;             // few: `[grouped, slots]`; else per group `[slots, lanes of the group]`
    float* ordered;            // of a tree: of one row or group, `[32, lanes of the group]`, by position
    float *corrections, *bias; // of every row: values::Older
    std::uint32_t* visible;    // of every row, the slots of the block that it sees, as bits
    float* block;              // a block of keys or values as f32
    Parameters keys, values;
    std::size_t floats;

    Scratch(const Geometry& g, const VerifyCall&, float* at) {
        Parts parts{at};
        scores = parts.take(g.padded * unit_slots);
        ordered = parts.take(2 * lanes * block_size);
        corrections = parts.take(g.padded);
        bias = parts.take(g.padded);
        for (std::size_t r = 0; at && r < g.padded; r++)
            bias[r] = 0.0f;
        visible = (std::uint32_t*)parts.take(g.padded);
        block = parts.take(block_size * larger(g.key_stride, g.value_stride));
        keys = {parts.take(unit_slots), parts.take(unit_slots)};
        values = {parts.take(unit_slots), parts.take(unit_slots)};
        floats = parts.floats;
    }
};

static void prepare_queries(const VerifyCall& call, const VerifyHead& head, const Geometry& g,
                            const HeadScratch& own, const Scratch&) {
    constexpr std::size_t sums = channel_sums, copies = scores::tokens_together;
    const Queries queries(call, head);
    const std::size_t size = call.keys.size;
    for (std::size_t r = 0; r < g.grouped; r++) {
        const float* from = queries.row(r < g.rows ? r : 0);
        const std::size_t first = r / g.unit * g.unit, width = g.width(first);
        float total = 0.0f;
        for (std::size_t d = 0; d < size; d++) {
            const float x = r < g.rows ? from[d] * call.scale : 0.0f;
            total += x;
            if (!g.few)
                own.queries[first * size + d * width + (r - first)] = x;
            for (std::size_t i = 0; g.few && i < copies; i++)
                own.queries[(r * size + d / sums * sums) * copies + i * sums + d % sums] = x;
        }
        own.sums[r] = total;
    }
}

// The block as f32 rows: the cache itself where it is f32, else converted into `buffer`; by token without
// scales and zero points.
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
                store(to + d, row.raw(d));
            if (full < cache.size)
                store(to + full, row.raw_part(full, cache.size - full));
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
    bool guarded;

    float* scores(std::size_t first, std::size_t block, std::size_t width) const {
        return scratch.scores + first * unit_slots + block * block_size * width;
    }
};

// Scales and zero points of the slots of block `b`, where a cache has them by token.
static scores::Affine read_affine(const CacheView& cache, const std::uint8_t* block, std::size_t tokens,
                                  std::size_t b, const Parameters& to) {
    if (cache.format != CacheFormat::u8_token)
        return {nullptr, nullptr};
    const std::size_t slot = b * block_size;
    read_parameters(cache, block, tokens, to.scales + slot, to.zeros + slot);
    return {to.scales + slot, to.zeros + slot};
}

template <std::size_t V>
void score_group(const Chunk& c, std::size_t b, const FloatBlock& keys, const scores::Affine& affine,
                 std::size_t first, Fetch& fetch) {
    const std::size_t size = c.call.keys.size;
    scores::score_rows<V>(keys.data, keys.stride, c.own.queries + first * size, c.own.sums + first, size,
                          affine, c.scores(first, b, V * lanes), fetch);
}

// Scores of V vectors of rows become weights.
template <std::size_t V> void weigh_group(const Chunk& c, const Unit& unit, bool masked, std::size_t first) {
    constexpr std::size_t width = V * lanes;
    const Scratch& s = c.scratch;
    const bool affine = c.call.values.format == CacheFormat::u8_token;
    float *scores = c.scores(first, 0, width), *ordered = scores;
    if (unit.gaps) {
        ordered = s.ordered;
        order_scores(c.sequence, c.g, c.call.group, unit, first, width, scores, width, ordered);
    }
    for (std::size_t v = 0; v < width; v += lanes) {
        UVec left = load_as<UVec>(s.visible + first + v);
        for (std::size_t t = 0; masked && t < block_size; t++) {
            float* at = scores + t * width + v;
            store(at, (left & 1u) != 0u ? load(at) : splat(minus_infinity));
            left >>= 1;
        }
        const auto factors = softmax::step<softmax::RowLanes, softmax::Weights::of_all>(
            ordered + v, unit.positions(), width, c.partial.maxima + first + v, c.partial.sums + first + v,
            softmax::no_tick);
        store(s.corrections + first + v, factors.older);
    }
    if (unit.gaps)
        spread_weights(c.sequence, c.g, c.call.group, unit, first, width, ordered, width, scores);
    for (std::size_t v = 0; affine && v < width; v += lanes) {
        Vec bias[4] = {};
        for (std::size_t t = 0; t < unit.slots(); t += 4)
#pragma GCC unroll 4
            for (std::size_t i = 0; i < 4; i++) {
                float* at = scores + (t + i) * width + v;
                Vec scale = splat(s.values.scales[t + i]), zero = splat(s.values.zeros[t + i]);
                if (c.guarded)
                    guard(load(at), scale, zero);
                const Vec weight = load(at) * scale;
                bias[i] = fused(weight, zero, bias[i]);
                store(at, weight);
            }
        store(s.bias + first + v, (bias[0] + bias[2]) + (bias[1] + bias[3]));
    }
    for (std::size_t i = 0; affine && unit.gaps && i < width; i++)
        s.bias[first + i] = bias_of(c.sequence, smaller(first + i, c.g.rows - 1) / c.call.group, unit,
                                    ordered + i, width, 1.0f, s.values.scales, s.values.zeros, 0.0f);
}

// The same of one row.
static void weigh_row(const Chunk& c, const Unit& unit, bool masked, std::size_t row) {
    const Scratch& s = c.scratch;
    float *scores = s.scores + row * unit_slots, *ordered = scores;
    if (unit.gaps) {
        ordered = s.ordered;
        order_scores(c.sequence, c.g, c.call.group, unit, row, 1, scores, 1, ordered);
    }
    if (masked)
        mask_slots(scores, s.visible[row]);
    const auto factors = softmax::step_rows<softmax::Weights::of_all, 1>(
        ordered, 0, unit.positions(), c.partial.maxima + row, c.partial.sums + row);
    s.corrections[row] = factors.older[0];
    if (unit.gaps)
        spread_weights(c.sequence, c.g, c.call.group, unit, row, 1, ordered, 1, scores);
    if (c.call.values.format != CacheFormat::u8_token)
        return;
    softmax::FourSums bias;
    for (std::size_t t = 0; t < unit.slots(); t += lanes) {
        Vec scale = load(s.values.scales + t), zero = load(s.values.zeros + t);
        if (c.guarded)
            guard(load(scores + t), scale, zero);
        const Vec weight = load(scores + t) * scale;
        bias.add_products(weight, zero);
        store(scores + t, weight);
    }
    s.bias[row] = unit.gaps ? bias_of(c.sequence, smaller(row, c.g.rows - 1) / c.call.group, unit, ordered, 1,
                                      1.0f, s.values.scales, s.values.zeros, 0.0f)
                            : bias.total();
}

// Older output is scaled with the first block of a unit alone.
static void go_on(const Chunk& c) {
    for (std::size_t r = 0; r < c.g.padded; r++) {
        c.scratch.corrections[r] = 1.0f;
        c.scratch.bias[r] = 0.0f;
    }
}

// Calls use(Count<V>, first) for groups of V vectors of rows: two, but for the last one.
template <class Use> OVSPEC_INLINE void each_group(const Geometry& g, const Use& use) {
    std::size_t first = 0;
    for (; first + 2 * lanes <= g.padded; first += 2 * lanes)
        use(Count<2>(), first);
    if (first < g.padded)
        use(Count<1>(), first);
}

template <std::size_t V>
void value_group(const Chunk& c, const Block& block, std::size_t b, const FloatBlock& values,
                 std::size_t first, Fetch& fetch) {
    const std::size_t size = c.call.values.size;
    const values::Older older{c.scratch.corrections + first, c.scratch.bias + first};
    const float* weights = c.scores(first, b, V * lanes);
    if (c.guarded)
        return values::add_guarded({values.data, values.stride, block.tokens, size}, V * lanes,
                                   {weights, 1, V * lanes}, older,
                                   {c.partial.out + first * size, 1, V * lanes});
    values::add_rows<V>(values.data, values.stride, weights, block.tokens, size, older,
                        c.partial.out + first * size, fetch);
}

static void attend_many(const Chunk& c, const Unit& unit, bool masked, Fetch values_ahead, Fetch keys_ahead) {
    const Scratch& s = c.scratch;
    for (std::size_t b = 0; b < unit.count; b++) {
        const Block& block = unit.blocks[b];
        const FloatBlock keys = float_block(c.call.keys, block.keys, block.tokens, s.block, c.g.key_stride);
        const auto affine = read_affine(c.call.keys, block.keys, block.tokens, b, s.keys);
        each_group(
            c.g, [&](auto V, std::size_t first) { score_group<V>(c, b, keys, affine, first, values_ahead); });
        read_affine(c.call.values, block.values, block.tokens, b, s.values);
    }
    each_group(c.g, [&](auto V, std::size_t first) { weigh_group<V>(c, unit, masked, first); });
    for (std::size_t b = 0; b < unit.count; b++) {
        const Block& block = unit.blocks[b];
        const FloatBlock values =
            float_block(c.call.values, block.values, block.tokens, s.block, c.g.value_stride);
        each_group(
            c.g, [&](auto V, std::size_t first) { value_group<V>(c, block, b, values, first, keys_ahead); });
        go_on(c);
    }
}

template <std::size_t R>
void attend_few(const Chunk& c, const Unit& unit, bool masked, Fetch values_ahead, Fetch keys_ahead) {
    const Scratch& s = c.scratch;
    for (std::size_t b = 0; b < unit.count; b++) {
        const Block& block = unit.blocks[b];
        const auto affine = read_affine(c.call.keys, block.keys, block.tokens, b, s.keys);
        with_rows(c.call.keys, block.keys, [&](const auto& keys) {
            scores::score_few<R>(keys, c.own.queries, c.own.sums, c.call.keys.size, affine,
                                 s.scores + b * block_size, unit_slots, values_ahead);
        });
        read_affine(c.call.values, block.values, block.tokens, b, s.values);
    }
    for (std::size_t r = 0; r < R; r++)
        weigh_row(c, unit, masked, r);
    for (std::size_t b = 0; b < unit.count; b++) {
        const Block& block = unit.blocks[b];
        if (c.guarded) {
            const FloatBlock values =
                float_block(c.call.values, block.values, block.tokens, s.block, c.g.value_stride);
            values::add_guarded({values.data, values.stride, block.tokens, c.call.values.size}, R,
                                {s.scores + b * block_size, unit_slots, 1}, {s.corrections, s.bias},
                                {c.partial.out, c.g.value_stride, 1});
            go_on(c);
            continue;
        }
        with_rows(c.call.values, block.values, [&](const auto& values) {
            values::add_few<R>(values, block.tokens, s.scores + b * block_size, unit_slots,
                               c.call.values.size, {s.corrections, s.bias}, c.partial.out, c.g.value_stride,
                               keys_ahead);
        });
        go_on(c);
    }
}

// attend_few<rows>, of the powers of two up to R
template <std::size_t R, class... Arguments>
OVSPEC_INLINE void attend_rows(std::size_t rows, const Arguments&... arguments) {
    if (rows == R)
        return attend_few<R>(arguments...);
    if constexpr (R > 1)
        attend_rows<R / 2>(rows, arguments...);
}

// Ticks of the scores and of the values of a block.
OVSPEC_INLINE std::size_t score_ticks(const Geometry& g, std::size_t size) {
    if (g.few)
        return scores::few_ticks(g.grouped, size);
    std::size_t ticks = 0;
    each_group(g, [&](auto V, std::size_t) { ticks += scores::score_ticks<V>; });
    return ticks;
}

OVSPEC_INLINE std::size_t value_ticks(const Geometry& g, std::size_t size) {
    if (g.few)
        return values::few_ticks(g.grouped, size);
    std::size_t ticks = 0;
    each_group(g, [&](auto V, std::size_t) { ticks += values::value_ticks<V>(size); });
    return ticks;
}

static void attend(const VerifyCall& call, const Visit& visit, const Geometry& g, const Partial& partial,
                   const HeadScratch& own, const Scratch& scratch) {
    const Chunk c{call, *visit.head.sequence, g, own, scratch, partial, visit.guarded};
    for (std::size_t entry = visit.begin; entry < visit.end; entry += unit_blocks) {
        const Unit unit(call, visit, entry, unit_blocks);
        Fetch values(score_ticks(g, call.keys.size)), keys(value_ticks(g, call.values.size));
        values.add(unit.blocks[0].values, call.values.block_bytes);
        keys.add(visit.block(call, entry + unit_blocks).keys, call.keys.block_bytes);
        const bool masked =
            !unit.gaps && find_visible(c.sequence, g, call.group, unit.blocks[0], scratch.visible);
        if (g.few)
            attend_rows<few_float_rows>(g.grouped, c, unit, masked, values, keys);
        else
            attend_many(c, unit, masked, values, keys);
    }
}

} // namespace ovspec::OVSPEC_ISA::float_path

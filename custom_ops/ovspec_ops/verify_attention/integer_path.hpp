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

#include "verify_attention/amx.hpp"
#include "verify_attention/geometry.hpp"
#include "verify_attention/integer.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace integer_path {

using namespace integer;

constexpr std::size_t pair_blocks = 2;
constexpr std::size_t pair_slots = pair_blocks * block_size;

// Sums of 16-bit numbers times zero points take the rounded number times this and the exact one times the
// rest, so that a rounding error counts as often as a byte is far from the middle. (A zero point may be any
// number: where all values are nearly the same, their scale is tiny and their zero point huge.)
constexpr float centre = 128.0f;

// Parts of a thread's scratch.
struct Scratch {
    float* queries;       // by channel: per group `[k_size, lanes]`, scaled; half: the rows twice
    IVec* query_parts;    // per group `[k_size / 4, 2]`; by channel: of one group and block
    float* query_units;   // per row: what one unit of its 16-bit query is worth
    float* query_sums;    // per row: sum of its 16-bit query; by channel: unused
    float* scales;        // by channel: largest of the chunk, `[k_size]`
    float* scores;        // `[64, rows of the group]`
    IVec* weight_parts;   // `[16, 2]`
    std::uint8_t* values; // `[16, value_stride, 4]`: four tokens of a channel, as dot() takes them
    IVec* sums;           // amx: of a block's scores or of 16 channels, `[64]`
    IVec* weight_rows;    // amx: weight_parts by row, `[2, 16]`
    float *key_scales, *key_zeros, *value_scales, *value_zeros; // `[64]`
    std::uint32_t* visible;                                     // per block and row, the slots that it sees
    std::size_t value_stride;
    std::size_t floats;

    static std::size_t group_floats(std::size_t size) { return size * lanes; }
    static std::size_t group_parts(std::size_t size) { return size / 4 * 2; }

    Scratch(const Geometry& g, const VerifyCall& call, float* at) : floats(0) {
        const auto take = [&](std::size_t count) {
            float* part = at ? at + floats : nullptr;
            floats += round_up(count, 16);
            return part;
        };
        const bool by_channel = call.keys.format == CacheFormat::u8_channel;
        const std::size_t groups = g.padded / lanes, size = call.keys.size;
        value_stride = round_up(call.values.size, 4 * lanes);
        queries = take((by_channel ? groups : 1) * group_floats(size));
        query_parts = (IVec*)take((by_channel ? 1 : groups) * group_parts(size) * lanes);
        query_units = take(g.padded);
        query_sums = take(g.padded);
        scales = take(size);
        scores = take(pair_slots * lanes);
        weight_parts = (IVec*)take(pair_slots / 4 * 2 * lanes);
        values = (std::uint8_t*)take(pair_slots / 4 * value_stride);
        sums = (IVec*)take(integer_rows_first ? pair_slots * lanes : 0);
        weight_rows = (IVec*)take(integer_rows_first ? 32 * lanes : 0);
        key_scales = take(pair_slots);
        key_zeros = take(pair_slots);
        value_scales = take(pair_slots);
        value_zeros = take(pair_slots);
        visible = (std::uint32_t*)take(pair_blocks * g.padded);
    }
};

OVSPEC_INLINE Vec magnitude(Vec x) {
    return max(x, -x);
}

// Queries of one group as 16-bit numbers in units of 1 / `factor`, by channel times the block's scales.
// Returns their sum, by channel times the zero points.
template <bool half, bool by_channel>
OVSPEC_INLINE Vec pack_queries(const float* queries, std::size_t size, Vec factor, const float* scales,
                               const float* zeros, IVec* parts) {
    Vec sum = {}, centred = {};
    for (std::size_t d = 0; d < size; d += 4) {
        UVec x[4];
#pragma GCC unroll 4
        for (std::size_t i = 0; i < 4; i++) {
            Vec q = load(queries + (d + i) * lanes) * factor;
            if constexpr (by_channel)
                q *= scales[d + i];
            const Vec shifted = q + rounder;
            x[i] = (UVec)shifted;
            sum += shifted - rounder;
            if constexpr (by_channel)
                centred += q * (zeros[d + i] - centre);
        }
        store_parts<half>(parts + d / 4 * (half ? 1 : 2), x[0], x[1], x[2], x[3]);
    }
    if constexpr (by_channel)
        return sum * centre + centred;
    return sum;
}

// Units and factors of a group's queries: the largest entry, times the channel's largest scale, becomes
// max_query.
template <bool by_channel>
OVSPEC_INLINE Vec query_factor(const float* queries, std::size_t size, const float* scales, Vec* unit) {
    Vec largest = {};
    for (std::size_t d = 0; d < size; d++) {
        const Vec q = magnitude(load(queries + d * lanes));
        largest = max(by_channel ? q * scales[d] : q, largest);
    }
    const float most = max_query(size);
    *unit = largest * (1.0f / most);
    return largest > 1e-30f ? most / largest : Vec{};
}

template <bool half>
OVSPEC_INLINE void spread_queries(const VerifyCall& call, const Queries& from, const Geometry& g,
                                  std::size_t first, float* to) {
    constexpr std::size_t width = half ? half_lanes : lanes;
    for (std::size_t i = 0; i < lanes; i++) {
        const std::size_t r = first + i % width;
        const float* row = from.row(r < g.rows ? r : 0);
        for (std::size_t d = 0; d < from.size; d++)
            to[d * lanes + i] = r < g.rows ? row[d] * call.scale : 0.0f;
    }
}

template <bool half>
void prepare_group(const VerifyCall& call, const Queries& from, const Geometry& g, const Scratch& scratch,
                   std::size_t first) {
    const std::size_t size = call.keys.size, group = first / lanes;
    if (call.keys.format == CacheFormat::u8_channel)
        return spread_queries<half>(call, from, g, first,
                                    scratch.queries + group * Scratch::group_floats(size));
    spread_queries<half>(call, from, g, first, scratch.queries);
    Vec unit;
    const Vec factor = query_factor<false>(scratch.queries, size, nullptr, &unit);
    const Vec sum = pack_queries<half, false>(scratch.queries, size, factor, nullptr, nullptr,
                                              scratch.query_parts + group * Scratch::group_parts(size));
    store(scratch.query_units + first, unit);
    store(scratch.query_sums + first, sum);
}

static void prepare_queries(const VerifyCall& call, const VerifyHead& head, const Geometry& g,
                            const Scratch& scratch) {
    const Queries from(call, head);
    for (std::size_t first = 0; first < g.grouped; first += lanes)
        if (g.width(first) < lanes)
            prepare_group<true>(call, from, g, scratch, first);
        else
            prepare_group<false>(call, from, g, scratch, first);
}

// One or two blocks.
struct Pair {
    Block blocks[pair_blocks];
    // Of the pair that comes next, or of this one where there is none.
    const std::uint8_t* next_keys[pair_blocks];
    const std::uint8_t* next_values[pair_blocks];
    std::size_t count;
    bool masked[pair_blocks];
    float value_unit; // what one unit of a 16-bit weight is worth

    std::size_t slots() const { return count * block_size; }
};

struct Chunk {
    const VerifyCall& call;
    const Geometry& g;
    const Scratch& scratch;
    const Partial& partial;
};

// Scales and zero points of a block's rows; 0 for slots that hold nothing.
static void read_parameters(const CacheView& cache, const std::uint8_t* block, std::size_t tokens,
                            float* scales, float* zeros) {
    for (std::size_t t = 0; t < tokens; t++) {
        scales[t] = load_as<float>(block + t * cache.row_bytes);
        zeros[t] = load_as<float>(block + t * cache.row_bytes + 4);
    }
    for (std::size_t t = tokens; t < block_size; t++)
        scales[t] = zeros[t] = 0.0f;
}

// What all groups share: parameters of the tokens, and the values' bytes in dot()'s order.
static void read_pair(const Chunk& c, Pair& pair) {
    const CacheView &keys = c.call.keys, &values = c.call.values;
    const Scratch& s = c.scratch;
    for (std::size_t b = 0; b < pair.count; b++) {
        const Block& block = pair.blocks[b];
        const std::size_t slot = b * block_size;
        read_parameters(values, block.values, block.tokens, s.value_scales + slot, s.value_zeros + slot);
        if (keys.format == CacheFormat::u8_token)
            read_parameters(keys, block.keys, block.tokens, s.key_scales + slot, s.key_zeros + slot);
        for (std::size_t t = 0; t < block_size; t += 4) {
            const std::uint8_t* row = block.values + t * values.row_bytes + 8;
            const std::uint8_t* rows[4] = {row, row + values.row_bytes, row + 2 * values.row_bytes,
                                           row + 3 * values.row_bytes};
            std::uint8_t* to = s.values + (slot + t) * s.value_stride;
            for (std::size_t d = 0; d < values.size; d += 4 * lanes)
                interleave(rows, d, values.size - d, to + 4 * d);
        }
    }
    Vec largest = {};
    for (std::size_t t = 0; t < pair.slots(); t += lanes)
        largest = max(magnitude(load(s.value_scales + t)), largest);
    const float most = max_lane(largest);
    pair.value_unit = most / max_weight;
    const float factor = most > 1e-30f ? max_weight / most : 0.0f;
    for (std::size_t t = 0; t < pair.slots(); t += lanes)
        store(s.value_scales + t, load(s.value_scales + t) * factor);
}

// Products of a block's keys with query parts, as dot_rows has them.
template <bool half, class Use>
OVSPEC_INLINE void key_products(const Chunk& c, const std::uint8_t* keys, std::size_t stride,
                                const IVec* parts, const std::uint8_t* ahead, std::size_t fetched,
                                Use&& use) {
    const std::size_t size = c.call.keys.size;
#ifdef OVSPEC_AMX
    constexpr std::size_t step = half ? 2 : 1;
    IVec* sums = c.scratch.sums;
    tiles::score_tiles<half>(keys, stride, size, parts, sums);
    for (std::size_t t = 0; t < block_size; t += step, ahead += fetched * step / block_size) {
        for (std::size_t i = 0; i < fetched * step / block_size; i += 128)
            __builtin_prefetch(ahead + i); // the processor fetches the line beside it
        if constexpr (half)
            use(t, __builtin_convertvector(
                       (lower_halves(sums[t], sums[t + 1]) << 8) + upper_halves(sums[t], sums[t + 1]), Vec));
        else
            use(t, __builtin_convertvector((sums[2 * t] << 8) + sums[2 * t + 1], Vec));
    }
#else
    const std::uint8_t* const places[2] = {ahead, ahead + fetched / 2};
    dot_rows<half>(keys, stride, 4, parts, size / 4, block_size, places, fetched / 2, use);
#endif
}

// A function of its own, as the other steps of a group: what the compiler keeps in registers across a step
// makes it spill sums of the products.
template <bool half>
__attribute__((noinline)) void score_block(const Chunk& c, const Pair& pair, std::size_t b,
                                           std::size_t first) {
    const CacheView& keys = c.call.keys;
    const Block& block = pair.blocks[b];
    const Scratch& s = c.scratch;
    constexpr std::size_t width = half ? half_lanes : lanes;
    const std::size_t size = keys.size, group = first / lanes, slot = b * block_size;
    const std::size_t fetched = first == 0 ? keys.block_bytes : 0;
    const Vec unit = load(s.query_units + first);
    float* scores = s.scores + slot * width;
    if (keys.format == CacheFormat::u8_token) {
        const Vec sum = load(s.query_sums + first);
        const float *scales = s.key_scales + slot, *zeros = s.key_zeros + slot;
        key_products<half>(
            c, block.keys + 8, keys.row_bytes, s.query_parts + group * Scratch::group_parts(size),
            pair.next_keys[b], fetched, [&](std::size_t t, Vec x) __attribute__((always_inline)) {
                const Vec scale = per_token<half>(scales + t), zero = per_token<half>(zeros + t);
                store(scores + t * width, (x - zero * sum) * (scale * unit));
            });
    } else {
        const float* scales = (const float*)block.keys;
        const Vec factor = unit > 1e-35f ? 1.0f / unit : Vec{};
        const Vec sum = pack_queries<half, true>(s.queries + group * Scratch::group_floats(size), size,
                                                 factor, scales, scales + size, s.query_parts);
        key_products<half>(c, block.keys + 8 * size, size, s.query_parts, pair.next_keys[b], fetched,
                           [&](std::size_t t, Vec x) __attribute__((always_inline)) {
                               store(scores + t * width, (x - sum) * unit);
                           });
    }
}

// Slots that a row does not see get -infinity.
template <bool half> OVSPEC_INLINE void mask_scores(float* scores, const std::uint32_t* visible) {
    constexpr std::size_t width = half ? half_lanes : lanes, step = half ? 2 : 1;
    UVec left = (UVec)load_rows<half>((const float*)visible);
    if constexpr (half)
        left = (UVec)lower_halves((IVec)left, (IVec)(left >> 1));
    for (std::size_t t = 0; t < block_size; t += step) {
        float* at = scores + t * width;
        store(at, (left & 1u) != 0u ? load(at) : splat(minus_infinity));
        left >>= step;
    }
}

// Folds a vector of half groups: the two tokens that it holds become one value per row, twice.
template <bool half> OVSPEC_INLINE Vec max_of_rows(Vec x) {
    return half ? max(x, swap_halves(x)) : x;
}

template <bool half> OVSPEC_INLINE Vec sum_of_rows(Vec x) {
    return half ? x + swap_halves(x) : x;
}

// Online softmax over the slots of a pair. Scores become weights relative to the rows' maxima in the pair;
// `older` and `newer` are the factors of the output so far and of what these weights give.
template <bool half>
__attribute__((noinline)) void softmax(float* scores, std::size_t slots, float* maxima, float* sums,
                                       Vec* older, Vec* newer) {
    const std::size_t floats = slots * (half ? half_lanes : lanes);
    Vec best[2] = {splat(no_maximum), splat(no_maximum)};
    for (std::size_t i = 0; i < floats; i += 2 * lanes) {
        best[0] = max(load(scores + i), best[0]);
        best[1] = max(load(scores + i + lanes), best[1]);
    }
    const Vec here = max_of_rows<half>(max(best[0], best[1]));
    const Vec before = load_rows<half>(maxima), now = max(here, before);
    *older = exp_nonpositive(before - now);
    *newer = exp_nonpositive(here - now);
    Vec total[2] = {};
    for (std::size_t i = 0; i < floats; i += 2 * lanes)
#pragma GCC unroll 2
        for (std::size_t v = 0; v < 2; v++) {
            const Vec weight = exp_nonpositive(load(scores + i + v * lanes) - here);
            store(scores + i + v * lanes, weight);
            total[v] += weight;
        }
    store_rows<half>(maxima, now);
    store_rows<half>(sums, load_rows<half>(sums) * *older + sum_of_rows<half>(total[0] + total[1]) * *newer);
}

// Weights times the values' scales as 16-bit numbers; `bias` is their sum times the zero points.
template <bool half>
__attribute__((noinline)) void pack_weights(const float* weights, std::size_t slots, const float* scales,
                                            const float* zeros, IVec* parts, Vec* bias) {
    constexpr std::size_t width = half ? half_lanes : lanes;
    Vec sum = {}, centred = {};
    for (std::size_t t = 0; t < slots; t += 4) {
        UVec x[4];
#pragma GCC unroll 4
        for (std::size_t i = 0; i < 4; i++) {
            const Vec weight = load_rows<half>(weights + (t + i) * width) * scales[t + i];
            const Vec shifted = weight + rounder;
            x[i] = (UVec)shifted;
            sum += shifted - rounder;
            centred += weight * (zeros[t + i] - centre);
        }
        store_parts<half>(parts + t / 4 * (half ? 1 : 2), x[0], x[1], x[2], x[3]);
    }
    *bias = sum * centre + centred;
}

// out = out * older + (values of the pair times their weights - bias) * newer
template <bool half>
__attribute__((noinline)) void add_values(const Chunk& c, const Pair& pair, std::size_t first,
                                          const Vec* older_, const Vec* newer_, const Vec* bias) {
    constexpr std::size_t width = half ? half_lanes : lanes;
    const Scratch& s = c.scratch;
    const std::size_t size = c.call.values.size, fetched = first == 0 ? c.call.values.block_bytes : 0;
    const Vec older = *older_, newer = *newer_ * pair.value_unit, constant = *bias * newer;
#ifdef OVSPEC_AMX
    constexpr std::size_t P = half ? 1 : 2;
    for (std::size_t k = pair.slots() / 4; k < pair_slots / 4; k++)
        for (std::size_t p = 0; p < P; p++)
            s.weight_parts[k * P + p] = IVec{};
    for (std::size_t p = 0; p < P; p++)
        tiles::transpose(s.weight_parts + p, P, s.weight_rows + p * lanes);
    _tile_loadd(4, s.weight_rows, sizeof(IVec));
    if constexpr (!half)
        _tile_loadd(5, s.weight_rows + lanes, sizeof(IVec));
    const std::size_t stride = c.g.value_stride, step = 2 * fetched / (stride / lanes * width);
    std::size_t at = 0; // of the two blocks that are fetched
    for (std::size_t d = 0; d < size; d += lanes) {
        tiles::value_tile<half>(s.values + 4 * d, 4 * s.value_stride, s.sums);
        float* out = c.partial.out + first * stride + d;
        for (std::size_t r = 0; r < width; r++, at += step) {
            for (std::size_t i = 0; i < step; i += 128)
                __builtin_prefetch(at < fetched ? pair.next_values[0] + at + i
                                                : pair.next_values[1] + at - fetched + i);
            const Vec x = __builtin_convertvector((s.sums[r] << 8) + s.sums[width + r], Vec);
            store(out + r * stride, x * newer[r] + (load(out + r * stride) * older[r] - constant[r]));
        }
    }
#else
    float* out = c.partial.out + first * size;
    dot_rows<half>(s.values, 4, 4 * s.value_stride, s.weight_parts, pair.slots() / 4, size, pair.next_values,
                   fetched, [&](std::size_t d, Vec x) __attribute__((always_inline)) {
                       float* at = out + d * width;
                       store(at, x * newer + (load(at) * older - constant));
                   });
#endif
}

template <bool half> void attend_group(const Chunk& c, const Pair& pair, std::size_t first) {
    constexpr std::size_t width = half ? half_lanes : lanes;
    const Scratch& s = c.scratch;
    for (std::size_t b = 0; b < pair.count; b++) {
        score_block<half>(c, pair, b, first);
        if (pair.masked[b])
            mask_scores<half>(s.scores + b * block_size * width, s.visible + b * c.g.padded + first);
    }
    Vec older, newer, bias;
    softmax<half>(s.scores, pair.slots(), c.partial.maxima + first, c.partial.sums + first, &older, &newer);
    pack_weights<half>(s.scores, pair.slots(), s.value_scales, s.value_zeros, s.weight_parts, &bias);
    add_values<half>(c, pair, first, &older, &newer, &bias);
}

// By channel: the units of the queries, from the largest scale that each channel has in the chunk.
static void find_units(const Chunk& c, const VerifyHead& head, std::size_t begin, std::size_t end) {
    const Scratch& s = c.scratch;
    const std::size_t size = c.call.keys.size;
    for (std::size_t d = 0; d < size; d++)
        s.scales[d] = 0.0f;
    for (std::size_t entry = begin; entry < end; entry++) {
        const float* scales = (const float*)block_at(c.call, head, entry).keys;
        for (std::size_t d = 0; d < size; d++) {
            const float x = scales[d] < 0.0f ? -scales[d] : scales[d];
            s.scales[d] = x > s.scales[d] ? x : s.scales[d];
        }
    }
    for (std::size_t first = 0; first < c.g.grouped; first += lanes) {
        Vec unit;
        query_factor<true>(s.queries + first / lanes * Scratch::group_floats(size), size, s.scales, &unit);
        store(s.query_units + first, unit);
    }
}

// The entries begin .. end of the head's list.
static void attend(const VerifyCall& call, const VerifyHead& head, const Geometry& g, const Partial& partial,
                   const Scratch& scratch, std::size_t begin, std::size_t end) {
    const Chunk c{call, g, scratch, partial};
    const std::int32_t window = call.window > 0 ? call.window : no_window;
#ifdef OVSPEC_AMX
    const tiles::Session session(call.keys.size);
#endif
    if (call.keys.format == CacheFormat::u8_channel)
        find_units(c, head, begin, end);
    for (std::size_t entry = begin; entry < end; entry += pair_blocks) {
        Pair pair{};
        pair.count = smaller(pair_blocks, end - entry);
        for (std::size_t b = 0; b < pair.count; b++) {
            pair.blocks[b] = block_at(call, head, entry + b);
            pair.masked[b] = find_visible(*head.sequence, g, call.group, window, pair.blocks[b],
                                          scratch.visible + b * g.padded);
        }
        for (std::size_t b = 0; b < pair_blocks; b++) {
            const Block next = block_at(call, head, smaller(entry + pair_blocks + b, head.end - 1));
            pair.next_keys[b] = next.keys;
            pair.next_values[b] = next.values;
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

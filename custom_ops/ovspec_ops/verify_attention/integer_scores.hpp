// Queries and keys of the integer path.
#pragma once

#include "common/transpose.hpp"
#include "verify_attention/integer_scratch.hpp"

namespace ovspec::OVSPEC_ISA::integer_path {

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
            Vec q = load(queries + (d + i) * lanes), scale = factor;
            if constexpr (by_channel)
                scale *= scales[d + i];
            const Vec shifted = fused(q, scale, splat(rounder));
            x[i] = (UVec)shifted;
            sum += shifted - rounder;
            if constexpr (by_channel)
                centred = fused(q * scale, splat(zeros[d + i] - centre), centred);
        }
        store_parts<half>(parts + d / 4 * (half ? 1 : 2), x[0], x[1], x[2], x[3]);
    }
    if constexpr (by_channel)
        return fused(sum, splat(centre), centred);
    return sum;
}

// Units and factors of a group's queries: the largest entry, by channel times the block's scales, becomes
// max_query. By channel the units are a block's own, so that no block which only other rows see changes a
// row's bits.
template <bool by_channel>
OVSPEC_INLINE Vec query_factor(const float* queries, std::size_t size, const float* scales, Vec* unit) {
    Vec most_of[4] = {}; // four, so that one need not wait for the other
    for (std::size_t d = 0; d < size; d += 4)
#pragma GCC unroll 4
        for (std::size_t i = 0; i < 4; i++) {
            const Vec q = load(queries + (d + i) * lanes);
            most_of[i] = max(magnitude(by_channel ? q * scales[d + i] : q), most_of[i]);
        }
    const Vec largest = max(max(most_of[0], most_of[1]), max(most_of[2], most_of[3]));
    const float most = max_query(size);
    *unit = largest * (1.0f / most);
    return largest > 1e-30f ? most / largest : Vec{};
}

template <bool half>
OVSPEC_INLINE void spread_queries(const VerifyCall& call, const Queries& from, const Geometry& g,
                                  std::size_t first, float* to) {
    constexpr std::size_t width = half ? half_lanes : lanes;
    const float* rows[lanes];
    for (std::size_t i = 0; i < lanes; i++)
        rows[i] = first + i % width < g.rows ? from.row(first + i % width) : nullptr;
    for (std::size_t d = 0; d < from.size; d += lanes) {
        const std::size_t some = smaller(lanes, from.size - d);
        Vec parts[lanes] = {}, columns[lanes];
        for (std::size_t i = 0; i < lanes; i++)
            if (rows[i])
                parts[i] =
                    (some == lanes ? load(rows[i] + d) : load_part<Vec>(rows[i] + d, some)) * call.scale;
        transpose(parts, sizeof(Vec), (IVec*)columns, 1);
        __builtin_memcpy(to + d * lanes, columns, some * sizeof(Vec));
    }
}

template <bool half>
void prepare_group(const VerifyCall& call, const Queries& from, const Geometry& g, const HeadScratch& own,
                   const Scratch& scratch, std::size_t first) {
    const std::size_t size = call.keys.size, group = first / lanes;
    if (call.keys.format == CacheFormat::u8_channel)
        return spread_queries<half>(call, from, g, first,
                                    own.queries + group * HeadScratch::group_floats(size));
    spread_queries<half>(call, from, g, first, scratch.queries);
    Vec unit;
    const Vec factor = query_factor<false>(scratch.queries, size, nullptr, &unit);
    const Vec sum = pack_queries<half, false>(scratch.queries, size, factor, nullptr, nullptr,
                                              own.parts + group * HeadScratch::group_parts(size));
    store(own.units + first, unit);
    store(own.sums + first, sum);
}

static void prepare_queries(const VerifyCall& call, const VerifyHead& head, const Geometry& g,
                            const HeadScratch& own, const Scratch& scratch) {
    const Queries from(call, head);
    for (std::size_t first = 0; first < g.grouped; first += lanes)
        if (g.width(first) < lanes)
            prepare_group<true>(call, from, g, own, scratch, first);
        else
            prepare_group<false>(call, from, g, own, scratch, first);
}

// Products of a block's first `tokens` keys with query parts, as dot_rows has them.
template <bool half, class Use>
OVSPEC_INLINE void key_products(const Chunk& c, const std::uint8_t* keys, std::size_t stride,
                                std::size_t tokens, const IVec* parts, Fetch& fetch, Use&& use) {
    const std::size_t size = c.call.keys.size;
#ifdef OVSPEC_AMX
    constexpr std::size_t step = half ? 2 : 1;
    IVec* sums = c.scratch.sums;
    tiles::score_tiles<half>(keys, stride, size, parts, sums);
    for (std::size_t t = 0; t < tokens; t += step) {
        if (t % 2 == 0)
            fetch.tick();
        if constexpr (half)
            use(t, __builtin_convertvector(
                       (lower_halves(sums[t], sums[t + 1]) << 8) + upper_halves(sums[t], sums[t + 1]), Vec));
        else
            use(t, __builtin_convertvector((sums[2 * t] << 8) + sums[2 * t + 1], Vec));
    }
#else
    dot_rows<half>(keys, stride, 4, parts, size / 4, tokens, fetch, use);
#endif
}

// Ticks of score_block.
OVSPEC_INLINE std::size_t score_ticks([[maybe_unused]] bool half, [[maybe_unused]] std::size_t size) {
#ifdef OVSPEC_AMX
    return block_size / 2;
#else
    return dot_ticks(half, size / 4, block_size);
#endif
}

// A function of its own, as the other steps of a group: what the compiler keeps in registers across a step
// makes it spill sums of the products.
template <bool half>
__attribute__((noinline)) void score_block(const Chunk& c, Pair& pair, std::size_t b, std::size_t tokens,
                                           std::size_t first) {
    const CacheView& keys = c.call.keys;
    const Block& block = pair.unit.blocks[b];
    const Scratch& s = c.scratch;
    constexpr std::size_t width = half ? half_lanes : lanes;
    const std::size_t size = keys.size, group = first / lanes, slot = b * block_size;
    float* scores = s.scores + slot * width;
    if (keys.format == CacheFormat::u8_token) {
        const Vec unit = load(c.own.units + first), sum = load(c.own.sums + first);
        const float *scales = s.key_scales + slot, *zeros = s.key_zeros + slot;
        key_products<half>(
            c, block.keys + 8, keys.row_bytes, tokens, c.own.parts + group * HeadScratch::group_parts(size),
            pair.fetch, [&](std::size_t t, Vec x) __attribute__((always_inline)) {
                const Vec scale = per_token<half>(scales + t), zero = per_token<half>(zeros + t);
                store(scores + t * width, fused(-zero, sum, x) * (scale * unit));
            });
    } else {
        const float* scales = (const float*)block.keys;
        const float* queries = c.own.queries + group * HeadScratch::group_floats(size);
        Vec unit;
        const Vec factor = query_factor<true>(queries, size, scales, &unit);
        const Vec sum = pack_queries<half, true>(queries, size, factor, scales, scales + size, s.query_parts);
        key_products<half>(c, block.keys + 8 * size, size, tokens, s.query_parts, pair.fetch,
                           [&](std::size_t t, Vec x) __attribute__((always_inline)) {
                               store(scores + t * width, (x - sum) * unit);
                           });
    }
}

// Of a block's first `slots` those that a row does not see get -infinity; returns the largest of `scales`
// that it sees.
template <bool half>
OVSPEC_INLINE Vec mask_scores(float* scores, std::size_t slots, const std::uint32_t* visible,
                              const float* scales) {
    constexpr std::size_t width = half ? half_lanes : lanes, step = half ? 2 : 1;
    UVec left = (UVec)load_rows<half>((const float*)visible);
    if constexpr (half)
        left = (UVec)lower_halves((IVec)left, (IVec)(left >> 1));
    Vec largest = {};
    for (std::size_t t = 0; t < slots; t += step) {
        float* at = scores + t * width;
        const IVec seen = (left & 1u) != 0u;
        store(at, seen ? load(at) : splat(minus_infinity));
        largest = max(seen ? magnitude(per_token<half>(scales + t)) : Vec{}, largest);
        left >>= step;
    }
    return largest;
}

} // namespace ovspec::OVSPEC_ISA::integer_path

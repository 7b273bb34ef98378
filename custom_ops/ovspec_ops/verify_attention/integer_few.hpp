// The integer path for one or two rows: lanes are tokens or channels instead of rows, which would fill an
// eighth of a vector. The same numbers as with rows in the lanes: integer sums are exact in any order, and
// sums of floats run in the same order.
#pragma once

#include "verify_attention/integer_scores.hpp"
#include "verify_attention/integer_values.hpp"

namespace ovspec::OVSPEC_ISA::integer_path {

// The bytes of a row's query, high ones and low ones, each `[few_stride]`, zero behind the last channel.
OVSPEC_INLINE std::int8_t* few_bytes(const HeadScratch& own, std::size_t row, bool low, std::size_t size) {
    return (std::int8_t*)own.rows + (2 * row + low) * HeadScratch::few_stride(size);
}

// The numbers of prepare_queries, a row at a time: its largest entry and its sum of integers are exact in any
// order.
static void prepare_few(const VerifyCall& call, const VerifyHead& head, const Geometry& g,
                        const HeadScratch& own, const Scratch&) {
    const Queries from(call, head);
    const std::size_t size = call.keys.size, full = size / lanes * lanes;
    for (std::size_t r = 0; r < g.rows; r++) {
        std::int8_t *high = few_bytes(own, r, false, size), *low = few_bytes(own, r, true, size);
        __builtin_memset(high, 0, 2 * HeadScratch::few_stride(size));
        const auto entries = [&](std::size_t d) __attribute__((always_inline)) {
            const float* at = from.row(r) + d;
            return (d < full ? load(at) : load_part<Vec>(at, size - d)) * call.scale;
        };
        Vec most = {}, total = {};
        for (std::size_t d = 0; d < size; d += lanes)
            most = max(magnitude(entries(d)), most);
        const float largest = max_lane(most);
        const float factor = largest > 1e-30f ? max_query(size) / largest : 0.0f;
        for (std::size_t d = 0; d < size; d += lanes) {
            const Vec shifted = fused(entries(d), splat(factor), splat(rounder));
            total += shifted - rounder;
            digits16::split((IVec)shifted, high + d, low + d);
        }
        own.units[r] = largest * (1.0f / max_query(size));
        own.sums[r] = sum(total);
    }
}

// Lane i of the result is the sum over the lanes of x[i].
OVSPEC_INLINE IVec sums_of(const IVec* x) {
#if OVSPEC_LANES == 16 && defined(__AVX512F__)
    __m512i pairs[8], fours[4];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const __m512i a = (__m512i)x[2 * i], b = (__m512i)x[2 * i + 1];
        pairs[i] = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i a = pairs[2 * i], b = pairs[2 * i + 1];
        fours[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    const __m512i low = _mm512_add_epi32(_mm512_shuffle_i32x4(fours[0], fours[1], 0x88),
                                         _mm512_shuffle_i32x4(fours[0], fours[1], 0xdd));
    const __m512i high = _mm512_add_epi32(_mm512_shuffle_i32x4(fours[2], fours[3], 0x88),
                                          _mm512_shuffle_i32x4(fours[2], fours[3], 0xdd));
    return (IVec)_mm512_add_epi32(_mm512_shuffle_i32x4(low, high, 0x88),
                                  _mm512_shuffle_i32x4(low, high, 0xdd));
#else
    __m256i pairs[4], fours[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m256i a = (__m256i)x[2 * i], b = (__m256i)x[2 * i + 1];
        pairs[i] = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const __m256i a = pairs[2 * i], b = pairs[2 * i + 1];
        fours[i] = _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    }
    return (IVec)_mm256_add_epi32(_mm256_permute2x128_si256(fours[0], fours[1], 0x20),
                                  _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
#endif
}

// scores[r][slot] of block `b` for R rows, each row's `most_slots` apart.
template <std::size_t R> __attribute__((noinline)) void score_few(const Chunk& c, Pair& pair, std::size_t b) {
    const CacheView& keys = c.call.keys;
    const Scratch& s = c.scratch;
    const std::size_t size = keys.size, full = size / sizeof(IVec) * sizeof(IVec);
    const std::int8_t* bytes[2][R];
    for (std::size_t r = 0; r < R; r++)
        for (std::size_t low = 0; low < 2; low++)
            bytes[low][r] = few_bytes(c.own, r, low, size);
    for (std::size_t t0 = 0; t0 < pair.unit.blocks[b].tokens; t0 += lanes) { // the others are masked
        IVec sums[R][lanes];
        for (std::size_t t = 0; t < lanes; t++) {
            const std::uint8_t* key = pair.unit.blocks[b].keys + (t0 + t) * keys.row_bytes + 8;
            IVec high[R] = {}, low[R] = {};
            for (std::size_t d = 0; d < size; d += sizeof(IVec)) {
                const IVec k = d < full ? load_as<IVec>(key + d) : load_part<IVec>(key + d, size - d);
#pragma GCC unroll 2
                for (std::size_t r = 0; r < R; r++) {
                    high[r] = dot(high[r], k, load_as<IVec>(bytes[0][r] + d));
                    low[r] = dot(low[r], k, load_as<IVec>(bytes[1][r] + d));
                }
            }
#pragma GCC unroll 2
            for (std::size_t r = 0; r < R; r++)
                sums[r][t] = (high[r] << 8) + low[r];
            pair.fetch.tick();
        }
        const std::size_t slot = b * block_size + t0;
        const Vec scale = load(s.key_scales + slot), zero = load(s.key_zeros + slot);
        for (std::size_t r = 0; r < R; r++) {
            const Vec x = __builtin_convertvector(sums_of(sums[r]), Vec);
            store(s.scores + r * most_slots + slot,
                  fused(-zero, splat(c.own.sums[r]), x) * (scale * splat(c.own.units[r])));
        }
    }
}

// Masks one row's scores, of a tree puts them in the order of positions; see visible_scores().
OVSPEC_INLINE float* visible_few(const Chunk& c, const Pair& pair, std::size_t r, float* largest) {
    const Scratch& s = c.scratch;
    float* scores = s.scores + r * most_slots;
    *largest = 0.0f;
    const auto see = [&](std::size_t slot) {
        const float x = s.value_scales[slot] < 0.0f ? -s.value_scales[slot] : s.value_scales[slot];
        *largest = x > *largest ? x : *largest;
    };
    if (pair.unit.gaps) {
        order_scores(c.sequence, c.g, c.call.group, c.window, pair.unit, r, 1, scores, 1, s.ordered);
        each_visible(c.sequence, r / c.call.group, c.window, pair.unit,
                     [&](std::size_t slot, std::size_t) { see(slot); });
        return s.ordered;
    }
    for (std::size_t b = 0; b < pair.unit.count; b++) {
        if (!pair.masked[b]) {
            *largest = pair.largest_scale[b] > *largest ? pair.largest_scale[b] : *largest;
            continue;
        }
        const std::uint32_t visible = s.visible[b * c.g.padded + r];
        for (std::size_t t = 0; t < block_size; t++)
            if (visible >> t & 1)
                see(b * block_size + t);
            else
                scores[b * block_size + t] = minus_infinity;
    }
    return scores;
}

// One row's weights as bytes, `[2, most_slots]` high and low; see pack_weights().
OVSPEC_INLINE void pack_few(const float* weights, std::size_t slots, const float* scales, const float* zeros,
                            float factor, bool guarded, std::int8_t* bytes, float* total, float* zero_part) {
    Vec sum = {};
    softmax::FourSums centred;
    for (std::size_t t = 0; t < slots; t += lanes) {
        Vec scale = splat(factor) * load(scales + t), zero = load(zeros + t) - centre;
        const Vec weight = load(weights + t);
        if (guarded)
            guard(weight, scale, zero);
        const Vec shifted = fused(weight, scale, splat(rounder));
        sum += shifted - rounder;
        digits16::split((IVec)shifted, bytes + t, bytes + most_slots + t);
        centred.add_products(weight * scale, zero);
    }
    float integers = 0.0f; // exact, below 2^24
    for (std::size_t i = 0; i < lanes; i++)
        integers += sum[i];
    *total = integers;
    *zero_part = centred.total();
}

template <std::size_t R>
__attribute__((noinline)) void add_few(const Chunk& c, Pair& pair, const std::uint8_t (*bytes)[2][most_slots],
                                       const float* older, const float* newer, const float* constant) {
    constexpr std::size_t V = 4;
    const Scratch& s = c.scratch;
    const std::size_t size = c.call.values.size, stride = c.g.value_stride, groups = pair.unit.slots() / 4;
    for (std::size_t d = 0; d < size; d += V * lanes) {
        IVec high[R][V] = {}, low[R][V] = {};
        for (std::size_t k = 0; k < groups; k++) {
            const std::uint8_t* at = s.values + 4 * k * s.value_stride + 4 * d;
            pair.fetch.tick();
#pragma GCC unroll 4
            for (std::size_t v = 0; v < V; v++) {
                const IVec value = load_as<IVec>(at + v * sizeof(IVec));
#pragma GCC unroll 2
                for (std::size_t r = 0; r < R; r++) {
                    high[r][v] = dot(high[r][v], value, splat_bytes(bytes[r][0] + 4 * k));
                    low[r][v] = dot(low[r][v], value, splat_bytes(bytes[r][1] + 4 * k));
                }
            }
        }
#pragma GCC unroll 2
        for (std::size_t r = 0; r < R; r++)
#pragma GCC unroll 4
            for (std::size_t v = 0; v < V; v++) {
                if (d + v * lanes >= stride)
                    break;
                float* at = c.partial.out + r * stride + d + v * lanes;
                const Vec x = __builtin_convertvector((high[r][v] << 8) + low[r][v], Vec);
                store(at, fused(x, splat(newer[r]), fused(load(at), splat(older[r]), splat(-constant[r]))));
            }
    }
}

template <std::size_t R> void attend_few(const Chunk& c, Pair& pair) {
    const Scratch& s = c.scratch;
    alignas(64) std::uint8_t bytes[R][2][most_slots];
    float older[R], newer[R], constant[R];
    for (std::size_t b = 0; b < pair.unit.count; b++)
        score_few<R>(c, pair, b);
    for (std::size_t r = 0; r < R; r++) {
        float largest, *row = s.scores + r * most_slots;
        float* scores = visible_few(c, pair, r, &largest);
        const auto factors = softmax::step<softmax::SlotLanes, softmax::Weights::of_step>(
            scores, pair.unit.positions(), lanes, c.partial.maxima + r, c.partial.sums + r, softmax::no_tick);
        older[r] = factors.older[0];
        newer[r] = factors.newer[0];
        if (pair.unit.gaps)
            spread_weights(c.sequence, c.g, c.call.group, c.window, pair.unit, r, 1, scores, 1, row);
        const float factor = largest > 1e-30f ? max_weight / largest : 0.0f;
        float sum, centred;
        pack_few(row, pair.unit.slots(), s.value_scales, s.value_zeros, factor, c.guarded,
                 (std::int8_t*)bytes[r][0], &sum, &centred);
        if (pair.unit.gaps)
            centred = bias_of(c.sequence, r / c.call.group, c.window, pair.unit, scores, 1, factor,
                              s.value_scales, s.value_zeros, centre);
        newer[r] *= largest / max_weight;
        constant[r] = fused(sum, centre, centred) * newer[r];
    }
    add_few<R>(c, pair, bytes, older, newer, constant);
}

// Ticks of attend_few, of a whole pair.
OVSPEC_INLINE std::size_t few_ticks(std::size_t value_size) {
    return pair_slots + (value_size + 4 * lanes - 1) / (4 * lanes) * (pair_slots / 4);
}

} // namespace ovspec::OVSPEC_ISA::integer_path

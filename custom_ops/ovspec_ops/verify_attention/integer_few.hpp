// The integer path for few rows (are_few): lanes are tokens or channels instead of rows, which would leave
// lanes empty. The same numbers as with rows in the lanes: integer sums are exact in any order, and sums of
// floats run in the same order.
#pragma once

#include "verify_attention/integer_scores.hpp"
#include "verify_attention/integer_values.hpp"

namespace ovspec::OVSPEC_ISA::integer_path {

// The numbers of prepare_queries, a row at a time: its largest entry and its sum of integers are exact in any
// order. Their bytes lie as score_few() reads them: `[k_size / 4, rows]`, four high ones and four low ones.
static void prepare_few(const VerifyCall& call, const VerifyHead& head, const Geometry& g,
                        const HeadScratch& own, const Scratch&) {
    const Queries from(call, head);
    const std::size_t size = call.keys.size, full = size / lanes * lanes;
    for (std::size_t r = 0; r < g.rows; r++) {
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
            std::int8_t high[lanes], low[lanes];
            digits16::split((IVec)shifted, high, low);
            for (std::size_t i = 0; i < lanes && d + i < size; i += 4) {
                std::uint8_t* to = own.rows + ((d + i) / 4 * g.rows + r) * query_bytes;
                __builtin_memcpy(to, high + i, 4);
                __builtin_memcpy(to + 4, low + i, 4);
            }
        }
        own.units[r] = largest * (1.0f / max_query(size));
        own.sums[r] = sum(total);
    }
}

// Rows that are worked on together: their sums, two of every vector, stay in registers. Vectors of values
// that go with them.
constexpr std::size_t rows_at_once = integer_rows_first ? 2 : lanes == 16 ? 6 : 3;
constexpr std::size_t few_vectors(std::size_t rows) {
    return rows <= (lanes == 16 ? 3 : 1) ? 4 : 2;
}

// Columns of unsigned bytes, four of a column to a lane, times R rows of 16-bit numbers as bytes: use(r, v,
// sums) gets those of V vectors of columns. The next four of the columns lie `column_step` bytes on, those of
// the rows `row_step`; the next row lies `row` bytes on, the low bytes `low` behind the high ones. Every
// fourth k is a tick of `fetch`.
template <std::size_t R, std::size_t V, std::size_t row, std::size_t low, class Use>
OVSPEC_INLINE void few_products(const std::uint8_t* columns, std::size_t column_step,
                                const std::uint8_t* rows, std::size_t row_step, std::size_t count,
                                Fetch& fetch, Use&& use) {
    IVec highs[R][V] = {}, lows[R][V] = {};
    for (std::size_t k = 0; k < count; k++) {
        if (k % 4 == 0)
            fetch.tick();
        IVec bytes[V];
#pragma GCC unroll 4
        for (std::size_t v = 0; v < V; v++)
            bytes[v] = load_as<IVec>(columns + k * column_step + v * sizeof(IVec));
#pragma GCC unroll 6
        for (std::size_t r = 0; r < R; r++) {
            const std::uint8_t* at = rows + k * row_step + r * row;
            const IVec high = splat_bytes(at), lower = splat_bytes(at + low);
#pragma GCC unroll 4
            for (std::size_t v = 0; v < V; v++) {
                highs[r][v] = dot(highs[r][v], bytes[v], high);
                lows[r][v] = dot(lows[r][v], bytes[v], lower);
            }
        }
    }
#pragma GCC unroll 6
    for (std::size_t r = 0; r < R; r++)
#pragma GCC unroll 4
        for (std::size_t v = 0; v < V; v++)
            use(r, v, __builtin_convertvector((highs[r][v] << 8) + lows[r][v], Vec));
}

// The keys of block `b` as columns: `[k_size / 4, 32]`, four channels of a token to a lane.
static void turn_keys(const Chunk& c, Pair& pair, std::size_t b) {
    const CacheView& keys = c.call.keys;
    const std::size_t size = keys.size, full = size / sizeof(IVec) * sizeof(IVec);
    IVec* to = c.scratch.keys;
    for (std::size_t t0 = 0; t0 < pair.unit.blocks[b].tokens; t0 += lanes) { // the others are masked
        const std::uint8_t* first = pair.unit.blocks[b].keys + t0 * keys.row_bytes + 8;
        for (std::size_t d = 0; d < size; d += sizeof(IVec)) {
            IVec* column = to + d / 4 * (block_size / lanes) + t0 / lanes;
            if (d < full) {
                transpose(first + d, keys.row_bytes, column, block_size / lanes);
                continue;
            }
            IVec ends[lanes];
            for (std::size_t t = 0; t < lanes; t++)
                ends[t] = load_part<IVec>(first + t * keys.row_bytes + d, size - d);
            transpose(ends, sizeof(IVec), column, block_size / lanes);
        }
    }
}

// scores[r][slot] of block `b` for R rows, each row's `most_slots` apart.
template <std::size_t R>
__attribute__((noinline)) void score_few(const Chunk& c, Pair& pair, std::size_t b, std::size_t first) {
    const Scratch& s = c.scratch;
    constexpr std::size_t V = 2;
    for (std::size_t t = 0; t < block_size; t += V * lanes) {
        const auto use = [&](std::size_t r, std::size_t v, Vec x) __attribute__((always_inline)) {
            const std::size_t at = b * block_size + t + v * lanes;
            const Vec scale = load(s.key_scales + at), zero = load(s.key_zeros + at);
            store(s.scores + (first + r) * most_slots + at,
                  fused(-zero, splat(c.own.sums[first + r]), x) * (scale * splat(c.own.units[first + r])));
        };
        few_products<R, V, query_bytes, query_bytes / 2>(
            (const std::uint8_t*)s.keys + 4 * t, 4 * block_size, c.own.rows + first * query_bytes,
            c.g.rows * query_bytes, c.call.keys.size / 4, pair.fetch, use);
    }
}

// Masks one row's scores, of a tree puts them in the order of positions; see visible_scores().
static void visible_few(const Chunk& c, const Pair& pair, std::size_t r, float* largest) {
    const Scratch& s = c.scratch;
    float* scores = s.scores + r * most_slots;
    *largest = 0.0f;
    const auto see = [&](std::size_t slot) {
        const float x = s.value_scales[slot] < 0.0f ? -s.value_scales[slot] : s.value_scales[slot];
        *largest = x > *largest ? x : *largest;
    };
    if (pair.unit.gaps) {
        order_scores(c.sequence, c.g, c.call.group, pair.unit, r, 1, scores, 1, s.ordered + r * pair_slots);
        each_visible(c.sequence, r / c.call.group, pair.unit,
                     [&](std::size_t slot, std::size_t) { see(slot); });
        return;
    }
    for (std::size_t b = 0; b < pair.unit.count; b++) {
        if (!pair.masked[b]) {
            *largest = pair.largest_scale[b] > *largest ? pair.largest_scale[b] : *largest;
            continue;
        }
        const std::uint32_t visible = s.visible[b * c.g.padded + r];
        mask_slots(scores + b * block_size, visible);
        for (std::size_t t = 0; t < block_size; t++)
            if (visible >> t & 1)
                see(b * block_size + t);
    }
}

// Weights of few rows, and what they do to the rows' outputs.
struct FewWeights {
    alignas(64) std::int8_t bytes[most_few_rows][2][most_slots]; // high and low, see pack_few()
    float older[most_few_rows], newer[most_few_rows], constant[most_few_rows];
};

template <std::size_t R>
__attribute__((noinline)) void add_few(const Chunk& c, Pair& pair, const FewWeights& weights,
                                       std::size_t first) {
    constexpr std::size_t V = few_vectors(R);
    const Scratch& s = c.scratch;
    const std::size_t size = c.call.values.size, stride = c.g.value_stride;
    for (std::size_t d = 0; d < size; d += V * lanes) {
        const auto use = [&](std::size_t r, std::size_t v, Vec x) __attribute__((always_inline)) {
            if (d + v * lanes >= stride)
                return;
            float* at = c.partial.out + (first + r) * stride + d + v * lanes;
            const Vec before =
                fused(load(at), splat(weights.older[first + r]), splat(-weights.constant[first + r]));
            store(at, fused(x, splat(weights.newer[first + r]), before));
        };
        few_products<R, V, 2 * most_slots, most_slots>(s.values + 4 * d, 4 * s.value_stride,
                                                       (const std::uint8_t*)weights.bytes[first], 4,
                                                       pair.unit.slots() / 4, pair.fetch, use);
    }
}

// Weights of R rows as bytes, and their sums; see pack_weights().
template <std::size_t R>
__attribute__((noinline)) void
pack_few(const float* rows, std::size_t slots, const Scratch& s, const float* factors, bool guarded,
         std::int8_t (*bytes)[2][most_slots], float* totals, float* zero_parts) {
    Vec integers[R] = {};
    softmax::FourSums centred[R];
    for (std::size_t t = 0; t < slots; t += lanes) {
        const Vec scales = load(s.value_scales + t), zeros = load(s.value_zeros + t) - centre;
#pragma GCC unroll 6
        for (std::size_t r = 0; r < R; r++) {
            Vec scale = splat(factors[r]) * scales, zero = zeros;
            const Vec weight = load(rows + r * most_slots + t);
            if (guarded)
                guard(weight, scale, zero);
            const Vec shifted = fused(weight, scale, splat(rounder));
            integers[r] += shifted - rounder;
            digits16::split((IVec)shifted, bytes[r][0] + t, bytes[r][1] + t);
            centred[r].add_products(weight * scale, zero);
        }
    }
    for (std::size_t r = 0; r < R; r++) {
        totals[r] = OVSPEC_ISA::sum(integers[r]); // exact, below 2^24
        zero_parts[r] = centred[r].total();
    }
}

// Softmax and weights of R rows.
template <std::size_t R>
__attribute__((noinline)) void weigh_few(const Chunk& c, Pair& pair, FewWeights& weights, std::size_t first) {
    const Scratch& s = c.scratch;
    const bool gaps = pair.unit.gaps;
    float largest[lanes] = {}, factors[lanes], sums[R], zeros[lanes] = {};
    float *rows = s.scores + first * most_slots, *ordered = s.ordered + first * pair_slots;
    for (std::size_t r = 0; r < R; r++)
        visible_few(c, pair, first + r, largest + r);
    const Vec most = load(largest);
    store(factors, most > 1e-30f ? max_weight / most : Vec{});
    const softmax::Factors step = softmax::step_rows<softmax::Weights::of_step, R>(
        gaps ? ordered : rows, gaps ? pair_slots : most_slots, pair.unit.positions(),
        c.partial.maxima + first, c.partial.sums + first);
    for (std::size_t r = 0; r < R && gaps; r++)
        spread_weights(c.sequence, c.g, c.call.group, pair.unit, first + r, 1, ordered + r * pair_slots, 1,
                       rows + r * most_slots);
    pack_few<R>(rows, pair.unit.slots(), s, factors, c.guarded, weights.bytes + first, sums, zeros);
    for (std::size_t r = 0; r < R && gaps; r++)
        zeros[r] = bias_of(c.sequence, (first + r) / c.call.group, pair.unit, ordered + r * pair_slots, 1,
                           factors[r], s.value_scales, s.value_zeros, centre);
    const Vec newer = step.newer * (most / max_weight);
    const Vec bias = fused(load_part<Vec>(sums, R), splat(centre), load(zeros));
    store_part(weights.older + first, step.older, R);
    store_part(weights.newer + first, newer, R);
    store_part(weights.constant + first, bias * newer, R);
}

static void attend_few(const Chunk& c, Pair& pair) {
    FewWeights weights;
    for (std::size_t b = 0; b < pair.unit.count; b++) {
        turn_keys(c, pair, b);
        for_even_parts<rows_at_once>(c.g.rows,
                                     [&](auto R, std::size_t first) { score_few<R>(c, pair, b, first); });
    }
    for_even_parts<rows_at_once>(c.g.rows,
                                 [&](auto R, std::size_t first) { weigh_few<R>(c, pair, weights, first); });
    for_even_parts<rows_at_once>(c.g.rows,
                                 [&](auto R, std::size_t first) { add_few<R>(c, pair, weights, first); });
}

// Ticks of attend_few, of a whole pair.
OVSPEC_INLINE std::size_t few_ticks(std::size_t rows, std::size_t key_size, std::size_t value_size) {
    std::size_t ticks = 0;
    for_even_parts<rows_at_once>(rows, [&](auto R, std::size_t) {
        constexpr std::size_t V = few_vectors(R);
        ticks += pair_slots / (2 * lanes) * ((key_size / 4 + 3) / 4) +
                 (value_size + V * lanes - 1) / (V * lanes) * (pair_slots / 16);
    });
    return ticks;
}

} // namespace ovspec::OVSPEC_ISA::integer_path

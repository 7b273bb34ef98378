// Softmax, weights and values of the integer path.
#pragma once

#include "verify_attention/integer_scratch.hpp"
#include "verify_attention/softmax.hpp"

namespace ovspec::OVSPEC_ISA::integer_path {

// What all groups share: parameters of the tokens, and the values' bytes in dot()'s order.
static void read_pair(const Chunk& c, Pair& pair) {
    const CacheView &keys = c.call.keys, &values = c.call.values;
    const Scratch& s = c.scratch;
    for (std::size_t b = 0; b < pair.unit.count; b++) {
        const Block& block = pair.unit.blocks[b];
        const std::size_t slot = b * block_size;
        read_parameters(values, block.values, block.tokens, s.value_scales + slot, s.value_zeros + slot);
        if (keys.format == CacheFormat::u8_token)
            read_parameters(keys, block.keys, block.tokens, s.key_scales + slot, s.key_zeros + slot);
        for (std::size_t t = 0; t < block.tokens; t += 4) { // the others have weights of 0
            const std::uint8_t* row = block.values + t * values.row_bytes + 8;
            const std::uint8_t* rows[4] = {row, row + values.row_bytes, row + 2 * values.row_bytes,
                                           row + 3 * values.row_bytes};
            std::uint8_t* to = s.values + (slot + t) * s.value_stride;
            for (std::size_t d = 0; d < values.size; d += 4 * lanes) {
                interleave(rows, d, values.size - d, to + 4 * d);
                pair.fetch.tick();
            }
        }
        Vec largest = {};
        for (std::size_t t = 0; t < block_size; t += lanes)
            largest = max(magnitude(load(s.value_scales + slot + t)), largest);
        pair.largest_scale[b] = max_lane(largest);
    }
}

// Folds a vector of half groups: the two tokens that it holds become one value per row, twice.
template <bool half> OVSPEC_INLINE Vec max_of_rows(Vec x) {
    return half ? max(x, swap_halves(x)) : x;
}

template <bool half> OVSPEC_INLINE Vec sum_of_rows(Vec x) {
    return half ? x + swap_halves(x) : x;
}

// Lanes of the softmax: two slots of half a vector of rows.
struct HalfLanes {
    static constexpr std::size_t slots = 2, together = 2;
    struct Sums {
        Vec of[2] = {};
        OVSPEC_INLINE_MEMBER void add(std::size_t vector, Vec weights) { of[vector] += weights; }
        OVSPEC_INLINE_MEMBER Vec total() const { return sum_of_rows<true>(of[0] + of[1]); }
    };
    static OVSPEC_INLINE_MEMBER Vec largest(Vec scores) { return max_of_rows<true>(scores); }
    static OVSPEC_INLINE_MEMBER Vec load_rows(const float* state) { return integer::load_rows<true>(state); }
    static OVSPEC_INLINE_MEMBER void store_rows(float* state, Vec x) { integer::store_rows<true>(state, x); }
};

template <bool half> struct LanesOf {
    typedef softmax::RowLanes Lanes;
};
template <> struct LanesOf<true> {
    typedef HalfLanes Lanes;
};

// The softmax of a group of rows; its weights are relative to the rows' maxima in the pair.
template <bool half>
__attribute__((noinline)) void weigh(float* scores, std::size_t slots, float* maxima, float* sums,
                                     softmax::Factors* factors, Fetch& fetch) {
    typedef typename LanesOf<half>::Lanes Lanes;
    *factors = softmax::step<Lanes, softmax::Weights::of_step>(
        scores, slots, lanes, maxima, sums, [&]() __attribute__((always_inline)) { fetch.tick(); });
}

// What the zero points take from a row's output: `sum` of its 16-bit weights, and its exact weights times the
// zero points less `centre`, added up as four sums of every fourth position.
struct Bias {
    Vec sum, centred;

    OVSPEC_INLINE_MEMBER Vec total() const { return fused(sum, splat(centre), centred); }
};

// Weights times the values' scales as 16-bit numbers, of which `factor` units make 1.
template <bool half>
__attribute__((noinline)) void pack_weights(const float* weights, std::size_t slots, const float* scales,
                                            const float* zeros, const Vec* factor, bool guarded, IVec* parts,
                                            Bias* bias, Fetch& fetch) {
    constexpr std::size_t width = half ? half_lanes : lanes;
    Vec sum = {}, centred[4] = {};
    for (std::size_t t = 0; t < slots; t += 4) {
        fetch.tick();
        UVec x[4];
#pragma GCC unroll 4
        for (std::size_t i = 0; i < 4; i++) {
            const Vec weight = load_rows<half>(weights + (t + i) * width);
            Vec scale = *factor * scales[t + i], zero = splat(zeros[t + i] - centre);
            if (guarded)
                guard(weight, scale, zero);
            const Vec shifted = fused(weight, scale, splat(rounder));
            x[i] = (UVec)shifted;
            sum += shifted - rounder; // integers below 2^24: exact
            centred[i] = fused(weight * scale, zero, centred[i]);
        }
        store_parts<half>(parts + t / 4 * (half ? 1 : 2), x[0], x[1], x[2], x[3]);
    }
    *bias = {sum, (centred[0] + centred[2]) + (centred[1] + centred[3])};
}

// out = out * older + (values of the pair's first `slots` times their weights - bias) * newer
template <bool half>
__attribute__((noinline)) void add_values(const Chunk& c, Pair& pair, std::size_t slots, std::size_t first,
                                          const Vec* older_, const Vec* newer_, const Bias* bias) {
    constexpr std::size_t width = half ? half_lanes : lanes;
    const Scratch& s = c.scratch;
    const std::size_t size = c.call.values.size;
    const Vec older = *older_, newer = *newer_, constant = bias->total() * newer;
#ifdef OVSPEC_AMX
    constexpr std::size_t P = half ? 1 : 2;
    const std::size_t steps = slots > pair_slots ? 2 : 1; // of 64 slots
    for (std::size_t k = slots / 4; k < steps * pair_slots / 4; k++)
        for (std::size_t p = 0; p < P; p++)
            s.weight_parts[k * P + p] = IVec{};
    for (std::size_t step = 0; step < steps; step++)
        for (std::size_t p = 0; p < P; p++)
            transpose(s.weight_parts + step * pair_slots / 4 * P + p, P * sizeof(IVec),
                      s.weight_rows + (2 * step + p) * lanes, 1);
    const std::size_t stride = c.g.value_stride;
    const auto load_weights = [&](std::size_t step) {
        OVSPEC_LOAD_TILE(4, s.weight_rows + 2 * step * lanes, sizeof(IVec));
        if constexpr (!half)
            OVSPEC_LOAD_TILE(5, s.weight_rows + (2 * step + 1) * lanes, sizeof(IVec));
    };
    const auto products = [&](std::size_t step, std::size_t d) __attribute__((always_inline)) {
        tiles::value_tile<half>(s.values + step * pair_slots * s.value_stride + 4 * d, 4 * s.value_stride,
                                s.sums);
    };
    const auto joined = [&](std::size_t r)
                            __attribute__((always_inline)) { return (s.sums[r] << 8) + s.sums[width + r]; };
    const auto add = [&](std::size_t d, const auto& sum_of) __attribute__((always_inline)) {
        float* out = c.partial.out + first * stride + d;
        for (std::size_t r = 0; r < width; r++) {
            if (r % 4 == 0)
                pair.fetch.tick();
            const Vec x = __builtin_convertvector(sum_of(r), Vec);
            const Vec before = fused(load(out + r * stride), splat(older[r]), splat(-constant[r]));
            store(out + r * stride, fused(x, splat(newer[r]), before));
        }
    };
    load_weights(0);
    for (std::size_t d = 0; d < size; d += lanes) {
        if (steps == 1) {
            products(0, d);
            add(d, joined);
            continue;
        }
        IVec more[lanes]; // of the second step, which only trees have
        load_weights(1);
        products(1, d);
        for (std::size_t r = 0; r < width; r++)
            more[r] = joined(r);
        load_weights(0);
        products(0, d);
        add(d, [&](std::size_t r) __attribute__((always_inline)) { return joined(r) + more[r]; });
    }
#else
    float* out = c.partial.out + first * size;
    dot_rows<half>(s.values, 4, 4 * s.value_stride, s.weight_parts, slots / 4, size, pair.fetch,
                   [&](std::size_t d, Vec x) __attribute__((always_inline)) {
                       float* at = out + d * width;
                       store(at, fused(x, newer, fused(load(at), older, -constant)));
                   });
#endif
}

// Ticks of read_pair, of a whole pair.
OVSPEC_INLINE std::size_t read_ticks(std::size_t value_size) {
    return pair_slots / 4 * ((value_size + 4 * lanes - 1) / (4 * lanes));
}

// Ticks of softmax, pack_weights and add_values for a group of `width` rows, of a whole pair.
OVSPEC_INLINE std::size_t value_ticks(std::size_t width, std::size_t value_size) {
    const std::size_t weights = pair_slots * width / (2 * lanes) + pair_slots / 4;
#ifdef OVSPEC_AMX
    return weights + (value_size + lanes - 1) / lanes * (width / 4);
#else
    return weights + dot_ticks(width < lanes, pair_slots / 4, value_size);
#endif
}

} // namespace ovspec::OVSPEC_ISA::integer_path

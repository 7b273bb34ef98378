// The online softmax of all paths. A step turns the scores of its slots into weights and carries a row's
// maximum and sum on. Part of the kernels: see common/simd.hpp.
//
// `Lanes` says what a vector of scores holds. Whatever it holds, a row gets the same bits: its sum is added
// up as four sums of every fourth slot, in the order of slots.
#pragma once

#include "verify_attention/geometry.hpp"

namespace ovspec::OVSPEC_ISA::softmax {

// Four sums, of every fourth slot of a row.
struct FourSums {
    typedef float Four __attribute__((vector_size(16)));
    Four of = {};

    OVSPEC_INLINE_MEMBER void add(Vec x) {
        Four parts[lanes / 4];
        __builtin_memcpy(parts, &x, sizeof(x));
#pragma GCC unroll 4
        for (std::size_t i = 0; i < lanes / 4; i++)
            of += parts[i];
    }
    OVSPEC_INLINE_MEMBER void add_products(Vec x, Vec y) {
        Four a[lanes / 4], b[lanes / 4];
        __builtin_memcpy(a, &x, sizeof(x));
        __builtin_memcpy(b, &y, sizeof(y));
#pragma GCC unroll 4
        for (std::size_t i = 0; i < lanes / 4; i++)
#if defined(__FMA__)
            of = (Four)_mm_fmadd_ps((__m128)a[i], (__m128)b[i], (__m128)of);
#else
            of = a[i] * b[i] + of;
#endif
    }
    OVSPEC_INLINE_MEMBER float total() const { return (of[0] + of[2]) + (of[1] + of[3]); }
};

// One slot of `lanes` rows.
struct RowLanes {
    static constexpr std::size_t slots = 1, together = 4; // of a vector; vectors that are worked on together
    struct Sums {
        Vec of[4] = {};
        OVSPEC_INLINE_MEMBER void add(std::size_t vector, Vec weights) { of[vector] += weights; }
        OVSPEC_INLINE_MEMBER Vec total() const { return (of[0] + of[2]) + (of[1] + of[3]); }
    };
    static OVSPEC_INLINE_MEMBER Vec largest(Vec scores) { return scores; }
    static OVSPEC_INLINE_MEMBER Vec load_rows(const float* state) { return load(state); }
    static OVSPEC_INLINE_MEMBER void store_rows(float* state, Vec x) { store(state, x); }
};

// What the weights are relative to: the row's maximum so far, or its maximum in this step.
enum class Weights { of_all, of_step };

// Factors of the output so far, and of what the weights of this step give (1 where they are of_all).
struct Factors {
    Vec older, newer;
};

constexpr auto no_tick = [] {};

// `stride` floats lie between a vector of scores and the next one; calls tick() every second vector.
template <class Lanes, Weights weights, class Tick>
OVSPEC_INLINE Factors step(float* scores, std::size_t slots, std::size_t stride, float* maxima, float* sums,
                           Tick&& tick) {
    constexpr std::size_t T = Lanes::together;
    const std::size_t vectors = slots / Lanes::slots;
    Vec best[2] = {splat(no_maximum), splat(no_maximum)};
    for (std::size_t i = 0; i < vectors; i += 2)
#pragma GCC unroll 2
        for (std::size_t v = 0; v < 2; v++)
            best[v] = max(load(scores + (i + v) * stride), best[v]);
    const Vec here = Lanes::largest(max(best[0], best[1]));
    const Vec before = Lanes::load_rows(maxima), now = max(here, before);
    const Vec reference = weights == Weights::of_step ? here : now;
    typename Lanes::Sums total;
    for (std::size_t i = 0; i < vectors; i += T)
#pragma GCC unroll 4
        for (std::size_t v = 0; v < T; v++) {
            if (v % 2 == 0)
                tick();
            float* at = scores + (i + v) * stride;
            const Vec weight = exp_nonpositive(load(at) - reference);
            store(at, weight);
            total.add(v, weight);
        }
    const Vec older = exp_nonpositive(before - now);
    const Vec newer = weights == Weights::of_step ? exp_nonpositive(here - now) : splat(1.0f);
    Lanes::store_rows(maxima, now);
    Lanes::store_rows(sums, fused(total.total(), newer, Lanes::load_rows(sums) * older));
    return {older, newer};
}

// The same with slots in the lanes: R rows of scores, `row_stride` floats apart, whose factors are in as many
// lanes. Each addition of a sum waits for the one before; several rows fill that time.
template <Weights weights, std::size_t R>
OVSPEC_INLINE Factors step_rows(float* scores, std::size_t row_stride, std::size_t slots, float* maxima,
                                float* sums) {
    float values[lanes] = {};
#pragma GCC unroll 6
    for (std::size_t r = 0; r < R; r++) {
        Vec best[2] = {splat(no_maximum), splat(no_maximum)};
        for (std::size_t t = 0; t < slots; t += 2 * lanes)
#pragma GCC unroll 2
            for (std::size_t v = 0; v < 2; v++)
                best[v] = max(load(scores + r * row_stride + t + v * lanes), best[v]);
        values[r] = max_lane(max(best[0], best[1]));
    }
    const Vec here = load(values), before = load_part<Vec>(maxima, R), now = max(here, before);
    store(values, weights == Weights::of_step ? here : now);
    FourSums totals[R];
    for (std::size_t t = 0; t < slots; t += lanes)
#pragma GCC unroll 6
        for (std::size_t r = 0; r < R; r++) {
            float* at = scores + r * row_stride + t;
            const Vec weight = exp_nonpositive(load(at) - splat(values[r]));
            store(at, weight);
            totals[r].add(weight);
        }
#pragma GCC unroll 6
    for (std::size_t r = 0; r < R; r++)
        values[r] = totals[r].total();
    const Vec older = exp_nonpositive(before - now);
    const Vec newer = weights == Weights::of_step ? exp_nonpositive(here - now) : splat(1.0f);
    store_part(maxima, now, R);
    store_part(sums, fused(load(values), newer, load_part<Vec>(sums, R) * older), R);
    return {older, newer};
}

} // namespace ovspec::OVSPEC_ISA::softmax

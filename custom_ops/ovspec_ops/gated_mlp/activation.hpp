// Activations of gated MLPs, and scores of channels from activated gates.
#pragma once

#include "common/sigmoid.hpp"
#include "common/simd.hpp"
#include "gated_mlp/kernel.hpp"

namespace ovspec::OVSPEC_ISA::activation {

OVSPEC_INLINE Vec magnitude(Vec x) {
    return (Vec)((UVec)x & 0x7fffffffu);
}

// x Phi(x), with the error function of Abramowitz and Stegun 7.1.26: error below 1.5e-7
OVSPEC_INLINE Vec gelu_erf(Vec x) {
    const Vec z = magnitude(x) * 0.70710678118654752f;
    const Vec t = 1.0f / fused(z, splat(0.3275911f), splat(1.0f));
    Vec series = fused(t, splat(1.061405429f), splat(-1.453152027f));
    const float terms[] = {1.421413741f, -0.284496736f, 0.254829592f};
    for (const float term : terms)
        series = fused(series, t, splat(term));
    series *= t;
    const Vec tail = series * exp_nonpositive(-z * z) * 0.5f; // Phi(-|x|)
    return x * (x >= 0.0f ? 1.0f - tail : tail);
}

template <Activation kind> OVSPEC_INLINE Vec value(Vec x) {
    if constexpr (kind == Activation::silu)
        return times_sigmoid(x, x);
    else if constexpr (kind == Activation::gelu_tanh) // 1 + tanh(u) is 2 / (1 + e^-2u)
        return times_sigmoid(x, x * fused(x * x, splat(0.044715f), splat(1.0f)) * 1.5957691216057308f);
    else
        return gelu_erf(x);
}

inline void activate(Activation kind, float* values, std::size_t count) {
    if (kind == Activation::silu)
        change_all(values, count, [](std::size_t, Vec x, std::size_t) { return value<Activation::silu>(x); });
    else if (kind == Activation::gelu_tanh)
        change_all(values, count,
                   [](std::size_t, Vec x, std::size_t) { return value<Activation::gelu_tanh>(x); });
    else
        change_all(values, count,
                   [](std::size_t, Vec x, std::size_t) { return value<Activation::gelu_erf>(x); });
}

inline void multiply(float* values, const float* factors, std::size_t count) {
    change_all(values, count,
               [&](std::size_t i, Vec x, std::size_t left) { return x * load_some(factors + i, left); });
}

inline void add_largest(float* scores, const float* values, std::size_t count) {
    change_all(scores, count, [&](std::size_t i, Vec score, std::size_t left) {
        const Vec x = magnitude(load_some(values + i, left));
        return x > score ? x : score;
    });
}

} // namespace ovspec::OVSPEC_ISA::activation

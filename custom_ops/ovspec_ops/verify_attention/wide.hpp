// Products of floats: lanes are query rows. Both products run as S^T = K Q^T and O^T += V^T P^T with one
// scalar of the cache broadcast against vectors of rows, so softmax is lane-wise and no reduction crosses
// lanes. The rows come in groups of two vectors, and a last group of one where their number asks for it. Sums
// run over channels and tokens in their order, so a row's result does not depend on how many rows there are.
#pragma once

#include "common/cache_rows.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace wide {

// Tokens or channels per tile. Registers: tile * V accumulators, V operands and one broadcast.
template <std::size_t V> constexpr std::size_t tile = V == 1 ? 8 : (lanes == 8 ? 6 : (lanes == 16 ? 8 : 4));

// scores[t][lane] = sum over d of keys[t][d] * queries[d][lane] for T tokens.
template <std::size_t T, std::size_t V>
OVSPEC_INLINE void score_tile(const float* keys, std::size_t stride, const float* queries, std::size_t size,
                              float* scores) {
    Vec acc[T][V];
#pragma GCC unroll 8
    for (std::size_t t = 0; t < T; t++)
#pragma GCC unroll 2
        for (std::size_t v = 0; v < V; v++)
            acc[t][v] = Vec{};
    for (std::size_t d = 0; d < size; d++) {
        Vec q[V];
#pragma GCC unroll 2
        for (std::size_t v = 0; v < V; v++)
            q[v] = load(queries + (d * V + v) * lanes);
#pragma GCC unroll 8
        for (std::size_t t = 0; t < T; t++) {
            const Vec k = splat(keys[t * stride + d]);
#pragma GCC unroll 2
            for (std::size_t v = 0; v < V; v++)
                acc[t][v] = fused(k, q[v], acc[t][v]);
        }
    }
#pragma GCC unroll 8
    for (std::size_t t = 0; t < T; t++)
#pragma GCC unroll 2
        for (std::size_t v = 0; v < V; v++)
            store(scores + (t * V + v) * lanes, acc[t][v]);
}

// out[i][lane] = out[i][lane] * correction[lane] + sum over t of values[t][i] * weights[t][lane] for T
// channels.
template <std::size_t T, std::size_t V>
OVSPEC_INLINE void value_tile(const float* values, std::size_t stride, const float* weights,
                              std::size_t tokens, const Vec* correction, float* out) {
    Vec acc[T][V];
#pragma GCC unroll 8
    for (std::size_t i = 0; i < T; i++)
#pragma GCC unroll 2
        for (std::size_t v = 0; v < V; v++)
            acc[i][v] = load(out + (i * V + v) * lanes) * correction[v];
    for (std::size_t t = 0; t < tokens; t++) {
        Vec p[V];
#pragma GCC unroll 2
        for (std::size_t v = 0; v < V; v++)
            p[v] = load(weights + (t * V + v) * lanes);
#pragma GCC unroll 8
        for (std::size_t i = 0; i < T; i++) {
            const Vec x = splat(values[t * stride + i]);
#pragma GCC unroll 2
            for (std::size_t v = 0; v < V; v++)
                acc[i][v] = fused(x, p[v], acc[i][v]);
        }
    }
#pragma GCC unroll 8
    for (std::size_t i = 0; i < T; i++)
#pragma GCC unroll 2
        for (std::size_t v = 0; v < V; v++)
            store(out + (i * V + v) * lanes, acc[i][v]);
}

// All 32 slots of a block: slots that hold no visible key give any value, to be masked.
template <std::size_t V>
static void score_block(const float* keys, std::size_t stride, const float* queries, std::size_t size,
                        float* scores, Prefetch prefetch) {
    constexpr std::size_t T = tile<V>, full = block_size / T * T;
    for (std::size_t t = 0; t < full; t += T) {
        prefetch.tokens(T);
        score_tile<T, V>(keys + t * stride, stride, queries, size, scores + t * V * lanes);
    }
    if constexpr (full < block_size)
        score_tile<block_size - full, V>(keys + full * stride, stride, queries, size,
                                         scores + full * V * lanes);
}

template <std::size_t V>
static void add_values(const float* values, std::size_t stride, const float* weights, std::size_t tokens,
                       std::size_t size, const Vec* correction, float* out, Prefetch prefetch) {
    constexpr std::size_t T = tile<V>;
    prefetch.bytes_per_token = prefetch.bytes_per_token * block_size / size; // per channel, here
    std::size_t d = 0;
    for (; d + T <= size; d += T) {
        prefetch.tokens(T);
        value_tile<T, V>(values + d, stride, weights, tokens, correction, out + d * V * lanes);
    }
    if constexpr (8 % T != 0)
        for (; d < size; d += 2) // sizes are multiples of 8
            value_tile<2, V>(values + d, stride, weights, tokens, correction, out + d * V * lanes);
}

// Scores of slots that a row does not see become -infinity; bit t of a row's `visible` says it sees slot t.
template <std::size_t V>
static void mask_scores(float* scores, std::size_t tokens, const std::uint32_t* visible) {
    for (std::size_t v = 0; v < V; v++) {
        UVec left = load_as<UVec>(visible + v * lanes);
        for (std::size_t t = 0; t < tokens; t++) {
            float* at = scores + (t * V + v) * lanes;
            store(at, (left & 1u) != 0u ? load(at) : splat(minus_infinity));
            left >>= 1;
        }
    }
}

// Online softmax: scores become weights; `maxima` and `sums` go on; `correction` is the factor of older
// output.
template <std::size_t V>
static void softmax(float* scores, std::size_t tokens, float* maxima, float* sums, Vec* correction) {
    for (std::size_t v = 0; v < V; v++) {
        const Vec before = load(maxima + v * lanes);
        Vec now = before;
        for (std::size_t t = 0; t < tokens; t++)
            now = max(load(scores + (t * V + v) * lanes), now);
        correction[v] = exp_nonpositive(before - now);
        Vec total = {};
        for (std::size_t t = 0; t < tokens; t++) {
            float* at = scores + (t * V + v) * lanes;
            const Vec weight = exp_nonpositive(load(at) - now);
            store(at, weight);
            total += weight;
        }
        store(maxima + v * lanes, now);
        store(sums + v * lanes, fused(load(sums + v * lanes), correction[v], total));
    }
}

} // namespace wide
} // namespace OVSPEC_ISA
} // namespace ovspec

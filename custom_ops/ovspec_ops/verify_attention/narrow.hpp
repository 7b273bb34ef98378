// Few rows: lanes are channels. Every byte of the cache is converted once, in registers, and used for all R
// rows; this is the memory-bound case.
#pragma once

#include "common/cache_rows.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace narrow {

constexpr std::size_t max_rows = lanes / 2;
constexpr std::size_t accumulators = lanes == 16 ? 16 : 8;

// scores[r][t] for the first `tokens` slots; `queries` is `[R, query_stride]`, zero beyond `size`, and
// `query_sums` the sum of each of its rows: q . (raw - offset) = q . raw - offset * sum(q).
template <std::size_t R, class Rows>
static void score_block(const Rows& rows, std::size_t tokens, const float* queries, std::size_t query_stride,
                        const float* query_sums, std::size_t size, float* scores, Prefetch prefetch) {
    constexpr std::size_t T = accumulators / R >= 4 ? 4 : (accumulators / R >= 2 ? 2 : 1);
    constexpr std::size_t sums = (R * T + 3) / 4 * 4;
    const std::size_t full = size / lanes * lanes;
    for (std::size_t t0 = 0; t0 < tokens; t0 += T) {
        prefetch.tokens(T);
        typename Rows::Row row[T];
        for (std::size_t t = 0; t < T; t++) // past the end the last token again; its score is not kept
            row[t] = rows.row(t0 + t < tokens ? t0 + t : tokens - 1);
        Vec acc[sums]; // of row r and token t at r * T + t
#pragma GCC unroll 16
        for (std::size_t i = 0; i < sums; i++)
            acc[i] = Vec{};
        for (std::size_t d = 0; d < full; d += lanes) {
            Vec key[T];
#pragma GCC unroll 4
            for (std::size_t t = 0; t < T; t++)
                key[t] = row[t].raw(d);
#pragma GCC unroll 8
            for (std::size_t r = 0; r < R; r++) {
                const Vec q = load(queries + r * query_stride + d);
#pragma GCC unroll 4
                for (std::size_t t = 0; t < T; t++)
                    acc[r * T + t] += key[t] * q;
            }
        }
        if (full < size)
            for (std::size_t t = 0; t < T; t++) {
                const Vec key = row[t].raw_part(full, size - full);
                for (std::size_t r = 0; r < R; r++)
                    acc[r * T + t] += key * load(queries + r * query_stride + full);
            }
        float dots[sums];
#pragma GCC unroll 4
        for (std::size_t i = 0; i < sums; i += 4)
            sum_four(acc + i, dots + i);
        for (std::size_t t = 0; t < T; t++)
            for (std::size_t r = 0; r < R; r++) // slots past `tokens` are masked by softmax
                scores[r * block_size + t0 + t] =
                    (dots[r * T + t] - row[t].offset * query_sums[r]) * row[t].scale;
    }
}

// One row: scores of slots whose bit in `visible` is not set become -infinity.
OVSPEC_INLINE void mask_scores(float* scores, std::uint32_t visible) {
    for (std::size_t t = 0; t < block_size; t++)
        scores[t] = visible >> t & 1 ? scores[t] : minus_infinity;
}

// One row's online softmax. Returns the factor of older output.
OVSPEC_INLINE float softmax(float* scores, float* maximum, float* total) {
    Vec best = splat(*maximum);
    for (std::size_t t = 0; t < block_size; t += lanes)
        best = max(load(scores + t), best);
    const float now = max_lane(best);
    const float correction = exp_nonpositive(*maximum - now);
    Vec weights = {};
    for (std::size_t t = 0; t < block_size; t += lanes) {
        const Vec weight = exp_nonpositive(load(scores + t) - now);
        store(scores + t, weight);
        weights += weight;
    }
    *maximum = now;
    *total = *total * correction + sum(weights);
    return correction;
}

template <std::size_t R, std::size_t V, class Rows>
OVSPEC_INLINE void value_tile(const Rows& rows, std::size_t tokens, const float* weights,
                              const float* correction, const float* bias, std::size_t d, float* out,
                              std::size_t out_stride, Prefetch prefetch) {
    Vec acc[R][V];
#pragma GCC unroll 8
    for (std::size_t r = 0; r < R; r++)
#pragma GCC unroll 8
        for (std::size_t v = 0; v < V; v++)
            acc[r][v] = load(out + r * out_stride + v * lanes) * correction[r] - bias[r];
    for (std::size_t t = 0; t < tokens; t++) {
        prefetch.tokens(1);
        const auto row = rows.row(t);
        Vec raw[V];
#pragma GCC unroll 8
        for (std::size_t v = 0; v < V; v++)
            raw[v] = row.raw(d + v * lanes);
#pragma GCC unroll 8
        for (std::size_t r = 0; r < R; r++) {
            const Vec p = splat(weights[r * block_size + t]);
#pragma GCC unroll 8
            for (std::size_t v = 0; v < V; v++)
                acc[r][v] += p * raw[v];
        }
    }
#pragma GCC unroll 8
    for (std::size_t r = 0; r < R; r++)
#pragma GCC unroll 8
        for (std::size_t v = 0; v < V; v++)
            store(out + r * out_stride + v * lanes, acc[r][v]);
}

// out[r][d] = out[r][d] * correction[r] + sum over tokens of weight * value; `out_stride` is padded to lanes.
// With weights times scale, sum of weight * (raw - offset) = sum of weight * raw - bias.
template <std::size_t R, class Rows>
static void add_values(const Rows& rows, std::size_t tokens, float* weights, const float* correction,
                       std::size_t size, float* out, std::size_t out_stride, Prefetch prefetch) {
    float bias[R];
    for (std::size_t r = 0; r < R; r++)
        bias[r] = 0.0f;
    if constexpr (Rows::affine)
        for (std::size_t t = 0; t < tokens; t++) {
            const auto row = rows.row(t);
            for (std::size_t r = 0; r < R; r++) {
                weights[r * block_size + t] *= row.scale;
                bias[r] += weights[r * block_size + t] * row.offset;
            }
        }
    constexpr std::size_t V = accumulators / R < 8 ? (accumulators / R > 1 ? accumulators / R : 1) : 8;
    std::size_t d = 0;
    prefetch.bytes_per_token = prefetch.bytes_per_token * V * lanes / size; // every tile passes all tokens
    for (; d + V * lanes <= size; d += V * lanes) {
        value_tile<R, V>(rows, tokens, weights, correction, bias, d, out + d, out_stride, prefetch);
        prefetch.at += block_size * prefetch.bytes_per_token;
    }
    for (; d + lanes <= size; d += lanes)
        value_tile<R, 1>(rows, tokens, weights, correction, bias, d, out + d, out_stride, prefetch);
    if (d == size)
        return;
    for (std::size_t r = 0; r < R; r++) {
        Vec acc = load(out + r * out_stride + d) * correction[r] - bias[r];
        for (std::size_t t = 0; t < tokens; t++)
            acc += rows.row(t).raw_part(d, size - d) * weights[r * block_size + t];
        store(out + r * out_stride + d, acc);
    }
}

} // namespace narrow
} // namespace OVSPEC_ISA
} // namespace ovspec

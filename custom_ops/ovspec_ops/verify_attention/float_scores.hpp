// Scores of the float path: a block's keys times queries.
//
// A score is the sum of `channel_sums` sums, of every so many channels, which are folded in halves: with 4 of
// them, (s0 + s2) + (s1 + s3). Many rows are in the lanes, and their sums run one after the other; few rows
// have tokens and channels in the lanes, all sums at once. The bits are the same.
#pragma once

#include "common/cache_rows.hpp"
#include "verify_attention/fetch.hpp"
#include "verify_attention/geometry.hpp"

namespace ovspec::OVSPEC_ISA::scores {

// Of a block's keys what is left out of the products: sum of (u - zero) * scale * q = (sum of u * q - zero *
// sum of q) * scale. Where a format has none of these, `scale` is null.
struct Affine {
    const float *scale, *zero; // of every slot

    OVSPEC_INLINE_MEMBER Vec apply(Vec products, Vec query_sum, Vec scales, Vec zeros) const {
        return fused(-zeros, query_sum, products) * scales;
    }
};

// Tokens per tile where rows are in the lanes. Registers: sums_at_once * tile * V sums, V operands and one
// broadcast.
template <std::size_t V> constexpr std::size_t tile = V == 1 || lanes == 16 ? 4 : 3;

// Sums of channels that a tile adds up at once.
constexpr std::size_t sums_at_once = channel_sums < 8 ? 1 : 2;

// acc[t][v] = sum over the channels first, first + stride, .. of keys[t][d] * queries[d][lane].
template <std::size_t stride, std::size_t T, std::size_t V>
OVSPEC_INLINE void sum_channels(const float* keys, std::size_t key_stride, const float* queries,
                                std::size_t size, std::size_t first, Vec (&acc)[T][V]) {
    constexpr std::size_t S = sums_at_once, apart = channel_sums / S;
    if constexpr (stride < apart) {
        Vec half[T][V];
        sum_channels<2 * stride>(keys, key_stride, queries, size, first, half);
        sum_channels<2 * stride>(keys, key_stride, queries, size, first + stride, acc);
#pragma GCC unroll 8
        for (std::size_t t = 0; t < T; t++)
#pragma GCC unroll 2
            for (std::size_t v = 0; v < V; v++)
                acc[t][v] = half[t][v] + acc[t][v];
        return;
    }
    Vec sums[S][T][V];
    clear(sums);
    for (std::size_t at = first; at < size; at += channel_sums)
#pragma GCC unroll 2
        for (std::size_t s = 0; s < S; s++) {
            const std::size_t d = at + s * apart;
            Vec q[V];
#pragma GCC unroll 2
            for (std::size_t v = 0; v < V; v++)
                q[v] = load(queries + (d * V + v) * lanes);
#pragma GCC unroll 8
            for (std::size_t t = 0; t < T; t++) {
                const Vec k = splat(keys[t * key_stride + d]);
#pragma GCC unroll 2
                for (std::size_t v = 0; v < V; v++)
                    sums[s][t][v] = fused(k, q[v], sums[s][t][v]);
            }
        }
#pragma GCC unroll 8
    for (std::size_t t = 0; t < T; t++)
#pragma GCC unroll 2
        for (std::size_t v = 0; v < V; v++)
            acc[t][v] = S == 1 ? sums[0][t][v] : sums[0][t][v] + sums[S - 1][t][v];
}

// scores[t][lane] for T tokens from slot `slot` on; `keys` are the block's.
template <std::size_t T, std::size_t V>
OVSPEC_INLINE void score_tile(const float* keys, std::size_t stride, const float* queries,
                              const float* query_sums, std::size_t size, const Affine& affine,
                              std::size_t slot, float* to) {
    Vec acc[T][V];
    sum_channels<1>(keys + slot * stride, stride, queries, size, 0, acc);
    if (affine.scale)
        for (std::size_t t = 0; t < T; t++)
            for (std::size_t v = 0; v < V; v++)
                acc[t][v] = affine.apply(acc[t][v], load(query_sums + v * lanes),
                                         splat(affine.scale[slot + t]), splat(affine.zero[slot + t]));
#pragma GCC unroll 8
    for (std::size_t t = 0; t < T; t++)
#pragma GCC unroll 2
        for (std::size_t v = 0; v < V; v++)
            store(to + ((slot + t) * V + v) * lanes, acc[t][v]);
}

// Scores of V vectors of rows, `[32, V * lanes]`, for all slots of a block: those that hold no visible key
// give any value, to be masked.
template <std::size_t V>
__attribute__((noinline)) void score_rows(const float* keys, std::size_t stride, const float* queries,
                                          const float* query_sums, std::size_t size, const Affine& affine,
                                          float* to, Fetch& fetch) {
    constexpr std::size_t T = tile<V>, full = block_size / T * T;
    for (std::size_t t = 0; t < full; t += T) {
        fetch.tick<Fetch::first_cache>();
        score_tile<T, V>(keys, stride, queries, query_sums, size, affine, t, to);
    }
    if constexpr (full < block_size)
        score_tile<block_size - full, V>(keys, stride, queries, query_sums, size, affine, full, to);
}

template <std::size_t V> constexpr std::size_t score_ticks = block_size / tile<V>;

// Few rows: a vector holds `channel_sums` channels of a token, or of two, whose vectors are so ordered that
// fold_sums gives the scores of the tokens in their order.
constexpr std::size_t tokens_together = lanes / channel_sums;
static_assert(tokens_together <= 2 && channel_sums % 4 == 0, "fold_sums");

template <class Rows> OVSPEC_INLINE Vec raw_keys(const Rows& keys, std::size_t token, std::size_t d) {
    if constexpr (tokens_together == 1)
        return keys.row(token).raw(d);
    else
        return Rows::Row::raw_two(keys.row(token), keys.row(token + channel_sums / 2), d);
}

// First token of vector `i` of the channel_sums vectors that lanes tokens take.
OVSPEC_INLINE std::size_t token_of(std::size_t i) {
    return tokens_together == 1 ? i : i / (channel_sums / 2) * channel_sums + i % (channel_sums / 2);
}

// The scores of `lanes` tokens from the channel_sums vectors of their sums.
OVSPEC_INLINE Vec fold_sums(const Vec* sums) {
#if OVSPEC_LANES == 8 && defined(__AVX2__)
    __m256 halves[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        if constexpr (channel_sums == 8)
            halves[i] = _mm256_add_ps(_mm256_permute2f128_ps((__m256)sums[i], (__m256)sums[i + 4], 0x20),
                                      _mm256_permute2f128_ps((__m256)sums[i], (__m256)sums[i + 4], 0x31));
        else
            halves[i] = (__m256)sums[i];
    __m256 pairs[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        pairs[i] = _mm256_add_ps(_mm256_unpacklo_ps(halves[2 * i], halves[2 * i + 1]),
                                 _mm256_unpackhi_ps(halves[2 * i], halves[2 * i + 1]));
    return (Vec)_mm256_add_ps(_mm256_shuffle_ps(pairs[0], pairs[1], 0x44),
                              _mm256_shuffle_ps(pairs[0], pairs[1], 0xee));
#elif OVSPEC_LANES == 16 && defined(__AVX512F__)
    __m512 halves[4], pairs[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4((__m512)sums[i], (__m512)sums[i + 4], 0x88),
                                  _mm512_shuffle_f32x4((__m512)sums[i], (__m512)sums[i + 4], 0xdd));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(halves[2 * i], halves[2 * i + 1]),
                                 _mm512_unpackhi_ps(halves[2 * i], halves[2 * i + 1]));
    return (Vec)_mm512_add_ps(_mm512_shuffle_ps(pairs[0], pairs[1], 0x44),
                              _mm512_shuffle_ps(pairs[0], pairs[1], 0xee));
#else
    Vec to = {};
    for (std::size_t i = 0; i < channel_sums; i++)
        for (std::size_t j = 0; j < tokens_together; j++) {
            float part[channel_sums];
            __builtin_memcpy(part, (const float*)(sums + i) + j * channel_sums, sizeof(part));
            for (std::size_t half = channel_sums / 2; half > 0; half /= 2)
                for (std::size_t k = 0; k < half; k++)
                    part[k] += part[k + half];
            to[token_of(i) + j * (channel_sums / 2)] = part[0];
        }
    return to;
#endif
}

// scores[r][slot] for R rows and all slots of a block; `queries` holds every channel_sums entries of a row
// tokens_together times.
template <std::size_t R, class Rows>
__attribute__((noinline)) void score_few(const Rows& keys, const float* queries, const float* query_sums,
                                         std::size_t size, const Affine& affine, float* to,
                                         std::size_t stride, Fetch& fetch) {
    // Vectors of keys whose sums the registers hold.
    constexpr std::size_t most = (lanes == 16 ? 16 : 8) / R;
    constexpr std::size_t N = most > channel_sums ? channel_sums : (most < 2 ? 2 : most);
    for (std::size_t t = 0; t < block_size; t += lanes) {
        Vec sums[R][channel_sums];
#pragma GCC unroll 1
        for (std::size_t i = 0; i < channel_sums; i += N) {
            Vec acc[R][N];
            clear(acc);
            for (std::size_t d = 0; d < size; d += channel_sums) {
                if (d % (4 * channel_sums) == 0)
                    fetch.tick<Fetch::first_cache>();
                Vec k[N];
#pragma GCC unroll 8
                for (std::size_t n = 0; n < N; n++)
                    k[n] = raw_keys(keys, t + token_of(i + n), d);
#pragma GCC unroll 8
                for (std::size_t r = 0; r < R; r++) {
                    const Vec q = load(queries + (r * size + d) * tokens_together);
#pragma GCC unroll 8
                    for (std::size_t n = 0; n < N; n++)
                        acc[r][n] = fused(k[n], q, acc[r][n]);
                }
            }
#pragma GCC unroll 8
            for (std::size_t r = 0; r < R; r++)
#pragma GCC unroll 8
                for (std::size_t n = 0; n < N; n++)
                    sums[r][i + n] = acc[r][n];
        }
        for (std::size_t r = 0; r < R; r++) {
            Vec x = fold_sums(sums[r]);
            if (affine.scale)
                x = affine.apply(x, splat(query_sums[r]), load(affine.scale + t), load(affine.zero + t));
            store(to + r * stride + t, x);
        }
    }
}

// Ticks of score_few.
OVSPEC_INLINE std::size_t few_ticks(std::size_t rows, std::size_t size) {
    const std::size_t most = (lanes == 16 ? 16 : 8) / rows;
    const std::size_t at_once = most > channel_sums ? channel_sums : larger(most, 2);
    return block_size / lanes * (channel_sums / at_once) * round_up(size, 4 * channel_sums) /
           (4 * channel_sums);
}

} // namespace ovspec::OVSPEC_ISA::scores

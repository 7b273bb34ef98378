// Values of the float path: output of a row = output * correction + sum over tokens of weight * value, in the
// order of tokens. Many rows are in the lanes; few rows have channels in the lanes.
#pragma once

#include "common/cache_rows.hpp"
#include "verify_attention/fetch.hpp"
#include "verify_attention/geometry.hpp"

namespace ovspec::OVSPEC_ISA::values {

// Channels per tile where rows are in the lanes. Registers: tile * V sums, V operands and one broadcast.
template <std::size_t V> constexpr std::size_t tile = V == 1 ? 8 : (lanes == 8 ? 6 : (lanes == 16 ? 8 : 4));

// How a row's output goes on: times `correction`, less `bias`, which the zero points of its values take.
struct Older {
    const float *correction, *bias; // of every row
};

// T channels of V vectors of rows; `weights` is `[tokens, V * lanes]`.
template <std::size_t T, std::size_t V>
OVSPEC_INLINE void value_tile(const float* values, std::size_t stride, const float* weights,
                              std::size_t tokens, const Older& older, float* out) {
    Vec acc[T][V];
#pragma GCC unroll 8
    for (std::size_t i = 0; i < T; i++)
#pragma GCC unroll 2
        for (std::size_t v = 0; v < V; v++)
            acc[i][v] = fused(load(out + (i * V + v) * lanes), load(older.correction + v * lanes),
                              -load(older.bias + v * lanes));
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

template <std::size_t V>
__attribute__((noinline)) void add_rows(const float* values, std::size_t stride, const float* weights,
                                        std::size_t tokens, std::size_t size, const Older& older, float* out,
                                        Fetch& fetch) {
    constexpr std::size_t T = tile<V>;
    std::size_t d = 0;
    for (; d + T <= size; d += T) {
        fetch.tick<Fetch::first_cache>();
        value_tile<T, V>(values + d, stride, weights, tokens, older, out + d * V * lanes);
    }
    if constexpr (8 % T != 0)
        for (; d < size; d += 2) // sizes are multiples of 8
            value_tile<2, V>(values + d, stride, weights, tokens, older, out + d * V * lanes);
}

template <std::size_t V> OVSPEC_INLINE std::size_t value_ticks(std::size_t size) {
    return size / tile<V>;
}

// Few rows: V vectors of channels from `d` on, of which `count` are left; `weights` is `[R, stride]`.
template <std::size_t R, std::size_t V, class Rows>
OVSPEC_INLINE void few_tile(const Rows& values, std::size_t tokens, const float* weights, std::size_t stride,
                            const Older& older, std::size_t d, std::size_t count, float* out,
                            std::size_t out_stride, Fetch& fetch) {
    Vec acc[R][V];
#pragma GCC unroll 8
    for (std::size_t r = 0; r < R; r++)
#pragma GCC unroll 8
        for (std::size_t v = 0; v < V; v++)
            acc[r][v] = fused(load(out + r * out_stride + d + v * lanes), splat(older.correction[r]),
                              -splat(older.bias[r]));
    for (std::size_t t = 0; t < tokens; t++) {
        if (t % 4 == 0)
            fetch.tick<Fetch::first_cache>();
        const auto row = values.row(t);
        Vec x[V];
#pragma GCC unroll 8
        for (std::size_t v = 0; v < V; v++)
            x[v] = V > 1 || count >= lanes ? row.raw(d + v * lanes) : row.raw_part(d, count);
#pragma GCC unroll 8
        for (std::size_t r = 0; r < R; r++) {
            const Vec p = splat(weights[r * stride + t]);
#pragma GCC unroll 8
            for (std::size_t v = 0; v < V; v++)
                acc[r][v] = fused(x[v], p, acc[r][v]);
        }
    }
#pragma GCC unroll 8
    for (std::size_t r = 0; r < R; r++)
#pragma GCC unroll 8
        for (std::size_t v = 0; v < V; v++)
            store(out + r * out_stride + d + v * lanes, acc[r][v]);
}

// Vectors of channels whose sums the registers hold for R rows.
constexpr std::size_t few_vectors(std::size_t rows) {
    return rows >= 4 ? 2 : (rows == 2 ? 4 : 8);
}

template <std::size_t R, class Rows>
__attribute__((noinline)) void add_few(const Rows& values, std::size_t tokens, const float* weights,
                                       std::size_t stride, std::size_t size, const Older& older, float* out,
                                       std::size_t out_stride, Fetch& fetch) {
    constexpr std::size_t V = few_vectors(R);
    std::size_t d = 0;
    for (; d + V * lanes <= size; d += V * lanes)
        few_tile<R, V>(values, tokens, weights, stride, older, d, size - d, out, out_stride, fetch);
    for (; d < size; d += lanes)
        few_tile<R, 1>(values, tokens, weights, stride, older, d, size - d, out, out_stride, fetch);
}

// Ticks of add_few for a full block.
OVSPEC_INLINE std::size_t few_ticks(std::size_t rows, std::size_t size) {
    const std::size_t width = few_vectors(rows) * lanes, rest = size % width;
    return (size / width + (rest + lanes - 1) / lanes) * (block_size / 4);
}

// Where an entry of a row lies: at + row * of_row + index * step.
template <class T> struct Entries {
    T* at;
    std::size_t of_row, step;

    T& operator()(std::size_t row, std::size_t index) const { return at[row * of_row + index * step]; }
};

// A block's values as f32 rows.
struct Plain {
    const float* data;
    std::size_t stride, tokens, size;
};

// The same sums for any number of rows, without the products of weights of 0 with what is not finite.
static void add_guarded(const Plain& values, std::size_t rows, const Entries<const float>& weights,
                        const Older& older, const Entries<float>& out) {
    for (std::size_t r = 0; r < rows; r++)
        for (std::size_t d = 0; d < values.size; d++) {
            float sum = fused(out(r, d), older.correction[r], -older.bias[r]);
            for (std::size_t t = 0; t < values.tokens; t++) {
                const float x = values.data[t * values.stride + d], weight = weights(r, t);
                if (weight != 0.0f || x - x == 0.0f)
                    sum = fused(x, weight, sum);
            }
            out(r, d) = sum;
        }
}

} // namespace ovspec::OVSPEC_ISA::values

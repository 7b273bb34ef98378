// Integer dot products of u8 cache bytes with 16-bit queries or weights. A 16-bit number x is kept as two
// signed bytes, x = 256 * high + low, and the cache's bytes are multiplied with each of the two: that is
// as exact as 16-bit products, at the same rate, but takes the cache's bytes as they are. Four channels (or
// tokens) make a 32-bit lane; lanes are query rows. Sums of up to 64 products of weights, or of a head's
// channels, fit 32 bits (see max_query). Linear and GatedMLP round rows as digits16.hpp does, in units of the
// row's largest value; here the units also follow the head size and, by channel, the keys' scales, and rows
// lie in the lanes.
//
// With at most half a vector of rows ("half"), the high bytes take the lower lanes and the low bytes the
// upper ones: one product instead of two. A vector of results then holds two tokens (or channels), the rows
// of each.
#pragma once

#include "common/digits16.hpp"
#include "common/dot.hpp"
#include "common/simd.hpp"
#include "verify_attention/fetch.hpp"

namespace ovspec::OVSPEC_ISA::integer {

constexpr std::size_t half_lanes = lanes / 2;
constexpr float max_weight = digits16::largest;
using digits16::rounder;

// Largest query entry such that the sum over `size` channels of 255 times it fits 32 bits.
OVSPEC_INLINE float max_query(std::size_t size) {
    return size <= 256 ? max_weight : max_weight * 256.0f / (float)size;
}

// The lower halves of a and b, and the upper halves.
OVSPEC_INLINE IVec lower_halves(IVec a, IVec b) {
#if OVSPEC_LANES == 16 && defined(__AVX512F__)
    return (IVec)_mm512_shuffle_i64x2((__m512i)a, (__m512i)b, 0x44);
#elif OVSPEC_LANES == 8
    return (IVec)_mm256_permute2x128_si256((__m256i)a, (__m256i)b, 0x20);
#else
    IVec joined;
    __builtin_memcpy(&joined, &a, sizeof(IVec) / 2);
    __builtin_memcpy((char*)&joined + sizeof(IVec) / 2, &b, sizeof(IVec) / 2);
    return joined;
#endif
}

OVSPEC_INLINE IVec upper_halves(IVec a, IVec b) {
#if OVSPEC_LANES == 16 && defined(__AVX512F__)
    return (IVec)_mm512_shuffle_i64x2((__m512i)a, (__m512i)b, 0xee);
#elif OVSPEC_LANES == 8
    return (IVec)_mm256_permute2x128_si256((__m256i)a, (__m256i)b, 0x31);
#else
    IVec joined;
    __builtin_memcpy(&joined, (const char*)&a + sizeof(IVec) / 2, sizeof(IVec) / 2);
    __builtin_memcpy((char*)&joined + sizeof(IVec) / 2, (const char*)&b + sizeof(IVec) / 2, sizeof(IVec) / 2);
    return joined;
#endif
}

OVSPEC_INLINE Vec swap_halves(Vec x) {
    return (Vec)lower_halves(upper_halves((IVec)x, (IVec)x), (IVec)x);
}

// Values of the rows of a group: a vector, or twice the rows of half a vector.
template <bool half> OVSPEC_INLINE Vec load_rows(const float* rows) {
    if constexpr (half) {
#if OVSPEC_LANES == 16 && defined(__AVX512F__)
        return (Vec)_mm512_broadcast_f32x8(load_as<__m256>(rows));
#elif OVSPEC_LANES == 8
        return (Vec)_mm256_broadcast_ps((const __m128*)rows);
#else
        Vec x = {};
        __builtin_memcpy(&x, rows, sizeof(Vec) / 2);
        return (Vec)lower_halves((IVec)x, (IVec)x);
#endif
    } else {
        return load(rows);
    }
}

template <bool half> OVSPEC_INLINE void store_rows(float* rows, Vec x) {
    __builtin_memcpy(rows, &x, half ? sizeof(Vec) / 2 : sizeof(Vec));
}

// A scalar per token beside the rows: of one token, or of the two that a vector of half groups holds.
template <bool half> OVSPEC_INLINE Vec per_token(const float* tokens) {
    if constexpr (half)
        return (Vec)lower_halves((IVec)splat(tokens[0]), (IVec)splat(tokens[1]));
    else
        return splat(tokens[0]);
}

// Low 16 bits of four vectors of integers -> their bytes, four to a lane: parts[0] the high ones, parts[1]
// the low ones; half: one vector of both.
template <bool half> OVSPEC_INLINE void store_parts(IVec* parts, UVec x0, UVec x1, UVec x2, UVec x3) {
    typedef std::uint16_t Words __attribute__((vector_size(4 * OVSPEC_LANES)));
    const UVec even = (x0 & 0xffffu) | (x2 << 16), odd = (x1 & 0xffffu) | (x3 << 16);
    const UVec low = (even & 0x00ff00ffu) | ((odd << 8) & 0xff00ff00u);
    // The high byte of x + 128 goes with the low byte as a signed one.
    const UVec even_up = (UVec)((Words)even + (std::uint16_t)0x80);
    const UVec odd_up = (UVec)((Words)odd + (std::uint16_t)0x80);
    const UVec high = ((even_up >> 8) & 0x00ff00ffu) | (odd_up & 0xff00ff00u);
    if constexpr (half) {
        parts[0] = lower_halves((IVec)high, (IVec)low);
    } else {
        parts[0] = (IVec)high;
        parts[1] = (IVec)low;
    }
}

// Bytes of four tokens, channel by channel: to[4 * d + i] = token i's byte d, for 4 * lanes channels.
OVSPEC_INLINE void interleave(const std::uint8_t* const* tokens, std::size_t d, std::size_t count,
                              std::uint8_t* to) {
#if (OVSPEC_LANES == 16 && defined(__AVX512F__)) || (OVSPEC_LANES == 8 && defined(__AVX2__))
#if OVSPEC_LANES == 16
    typedef __m512i Bytes;
    const Bytes order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
#define OVSPEC_OF(name) _mm512_##name
#define OVSPEC_ORDERED(x) _mm512_permutexvar_epi32(order, x)
    const __mmask64 kept = count >= 64 ? ~0ull : (1ull << count) - 1;
#define OVSPEC_LOAD(i) _mm512_maskz_loadu_epi8(kept, tokens[i] + d)
#else
    typedef __m256i Bytes;
    const Bytes order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
#define OVSPEC_OF(name) _mm256_##name
#define OVSPEC_ORDERED(x) _mm256_permutevar8x32_epi32(x, order)
#define OVSPEC_LOAD(i)                                                                                       \
    (count >= 32 ? load_as<Bytes>(tokens[i] + d) : load_part<Bytes, std::uint8_t>(tokens[i] + d, count))
#endif
    const Bytes t0 = OVSPEC_ORDERED(OVSPEC_LOAD(0)), t1 = OVSPEC_ORDERED(OVSPEC_LOAD(1));
    const Bytes t2 = OVSPEC_ORDERED(OVSPEC_LOAD(2)), t3 = OVSPEC_ORDERED(OVSPEC_LOAD(3));
    const Bytes low01 = OVSPEC_OF(unpacklo_epi8)(t0, t1), high01 = OVSPEC_OF(unpackhi_epi8)(t0, t1);
    const Bytes low23 = OVSPEC_OF(unpacklo_epi8)(t2, t3), high23 = OVSPEC_OF(unpackhi_epi8)(t2, t3);
    store_as(to, OVSPEC_OF(unpacklo_epi16)(low01, low23));
    store_as(to + sizeof(Bytes), OVSPEC_OF(unpackhi_epi16)(low01, low23));
    store_as(to + 2 * sizeof(Bytes), OVSPEC_OF(unpacklo_epi16)(high01, high23));
    store_as(to + 3 * sizeof(Bytes), OVSPEC_OF(unpackhi_epi16)(high01, high23));
#undef OVSPEC_OF
#undef OVSPEC_ORDERED
#undef OVSPEC_LOAD
#else
    for (std::size_t c = 0; c < 4 * lanes && c < count; c++)
        for (std::size_t i = 0; i < 4; i++)
            to[4 * c + i] = tokens[i][d + c];
#endif
}

// Rows of bytes times parts: totals[j] += sum over k < count of bytes(j, k) . parts(k), where bytes(j, k) are
// four bytes at `bytes + j * stride + k * step`. `use(j, vectors)` gets the totals as floats: of j, or with
// half of j and j + 1. Every fourth k is a tick of `fetch`.
template <bool half, std::size_t T, class Use>
OVSPEC_INLINE void dot_tile(const std::uint8_t* bytes, std::size_t stride, std::size_t step,
                            const IVec* parts, std::size_t count, Fetch& fetch, Use&& use) {
    constexpr std::size_t P = half ? 1 : 2;
    IVec acc[T][P];
    clear(acc);
    for (std::size_t k = 0; k < count; k++) {
        if (k % 4 == 0)
            fetch.tick();
        IVec part[P];
#pragma GCC unroll 2
        for (std::size_t p = 0; p < P; p++)
            part[p] = parts[k * P + p];
#pragma GCC unroll 16
        for (std::size_t j = 0; j < T; j++) {
            const IVec b = splat_bytes(bytes + j * stride + k * step);
#pragma GCC unroll 2
            for (std::size_t p = 0; p < P; p++)
                acc[j][p] = dot(acc[j][p], b, part[p]);
        }
    }
    if constexpr (half) {
#pragma GCC unroll 16
        for (std::size_t j = 0; j < T; j += 2) {
            const IVec high = lower_halves(acc[j][0], acc[j + 1][0]);
            use(j, __builtin_convertvector((high << 8) + upper_halves(acc[j][0], acc[j + 1][0]), Vec));
        }
    } else {
#pragma GCC unroll 16
        for (std::size_t j = 0; j < T; j++)
            use(j, __builtin_convertvector((acc[j][0] << 8) + acc[j][1], Vec));
    }
}

template <bool half> constexpr std::size_t tile_rows = (lanes == 16 ? 8 : 4) * (half ? 2 : 1);

// dot_tile over `rows` rows, a multiple of 8.
template <bool half, class Use>
OVSPEC_INLINE void dot_rows(const std::uint8_t* bytes, std::size_t stride, std::size_t step,
                            const IVec* parts, std::size_t count, std::size_t rows, Fetch& fetch, Use&& use) {
    constexpr std::size_t T = tile_rows<half>;
    std::size_t j = 0;
    for (; j + T <= rows; j += T)
        dot_tile<half, T>(bytes + j * stride, stride, step, parts, count, fetch,
                          [&](std::size_t i, Vec x) __attribute__((always_inline)) { use(j + i, x); });
    if constexpr (T > 8)
        if (j < rows)
            dot_tile<half, 8>(bytes + j * stride, stride, step, parts, count, fetch,
                              [&](std::size_t i, Vec x) __attribute__((always_inline)) { use(j + i, x); });
}

// Ticks of dot_rows.
OVSPEC_INLINE std::size_t dot_ticks(bool half, std::size_t count, std::size_t rows) {
    const std::size_t T = half ? tile_rows<true> : tile_rows<false>;
    return (rows + T - 1) / T * ((count + 3) / 4);
}

} // namespace ovspec::OVSPEC_ISA::integer

// Vectors of OVSPEC_LANES floats for the kernels. Compiled once per instruction set, everything in the
// namespace OVSPEC_ISA; includes no standard header with functions: see inline.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "common/inline.hpp"

namespace ovspec::OVSPEC_ISA {

constexpr std::size_t lanes = OVSPEC_LANES;
constexpr float minus_infinity = -__builtin_inff();

typedef float Vec __attribute__((vector_size(4 * OVSPEC_LANES)));
typedef std::int32_t IVec __attribute__((vector_size(4 * OVSPEC_LANES)));
typedef std::uint32_t UVec __attribute__((vector_size(4 * OVSPEC_LANES)));
typedef std::uint16_t HalfVec __attribute__((vector_size(2 * OVSPEC_LANES)));
typedef std::uint8_t ByteVec __attribute__((vector_size(OVSPEC_LANES)));

template <class T> OVSPEC_INLINE T load_as(const void* from) {
    T value;
    __builtin_memcpy(&value, from, sizeof(value));
    return value;
}

template <class T> OVSPEC_INLINE void store_as(void* to, T value) {
    __builtin_memcpy(to, &value, sizeof(value));
}

OVSPEC_INLINE Vec load(const float* from) {
    return load_as<Vec>(from);
}

OVSPEC_INLINE void store(float* to, Vec value) {
    __builtin_memcpy(to, &value, sizeof(value));
}

// The first `count` < lanes elements of a vector; the others are zero, and nothing past them is read.
template <class T, class Element> OVSPEC_INLINE T load_part(const Element* from, std::size_t count) {
    T value = {};
    __builtin_memcpy(&value, from, count * sizeof(Element));
    return value;
}

// The same for a `count` known at compile time, without memory in between: a vector load of bytes that were
// just stored one by one waits for the stores.
template <class T, std::size_t count, class Element> OVSPEC_INLINE T load_first(const Element* from) {
#if defined(__AVX2__)
    constexpr std::size_t bytes = count * sizeof(Element);
    if constexpr (bytes < sizeof(T) && bytes <= 16) {
        __m128i low;
        if constexpr (bytes == 16) {
            low = _mm_loadu_si128((const __m128i*)from);
        } else if constexpr (bytes == 8) {
            low = _mm_loadl_epi64((const __m128i*)from);
        } else {
            static_assert(bytes <= 4, "1, 2, 4, 8 or 16 bytes");
            std::int32_t value = 0;
            __builtin_memcpy(&value, from, bytes);
            low = _mm_cvtsi32_si128(value);
        }
        const __m256i wide = _mm256_zextsi128_si256(low);
        T value;
        __builtin_memcpy(&value, &wide, sizeof(value));
        return value;
    }
#endif
    return load_part<T>(from, count);
}

// The first `count` bytes of a vector, or all of it where there are as many.
OVSPEC_INLINE IVec load_bytes(const std::uint8_t* from, std::size_t count) {
    if (count >= sizeof(IVec))
        return load_as<IVec>(from);
#if OVSPEC_LANES == 16 && defined(__AVX512BW__)
    return (IVec)_mm512_maskz_loadu_epi8(((__mmask64)1 << count) - 1, from);
#else
    return load_part<IVec>(from, count);
#endif
}

OVSPEC_INLINE void store_part(float* to, Vec value, std::size_t count) {
    __builtin_memcpy(to, &value, count * sizeof(float));
}

// A number that is known when a generic function is compiled: <type_traits> would bring another library's
// inline functions.
template <std::size_t value> struct Count {
    constexpr operator std::size_t() const { return value; }
};

// body(Count<R>, row) with R the largest power of two up to `most` that `left` rows fill; returns R.
template <std::size_t most, class Body>
OVSPEC_INLINE std::size_t take_rows(std::size_t left, std::size_t row, const Body& body) {
    if constexpr (most > 1)
        if (left < most)
            return take_rows<most / 2>(left, row, body);
    body(Count<most>(), row);
    return most;
}

// use(Count<count>) of 1 to `most`.
template <std::size_t most, class Use> OVSPEC_INLINE void with_count(std::size_t count, const Use& use) {
    if constexpr (most > 1)
        if (count < most)
            return with_count<most - 1>(count, use);
    use(Count<most>());
}

// values[i] = changed(i, values[i], count), `count` values at once: `lanes`, or those that are left.
template <class Change>
OVSPEC_INLINE void change_all(float* values, std::size_t count, const Change& changed) {
    std::size_t i = 0;
    for (; i + lanes <= count; i += lanes)
        store(values + i, changed(i, load(values + i), lanes));
    if (i < count)
        store_part(values + i, changed(i, load_part<Vec>(values + i, count - i), count - i), count - i);
}

// `lanes` elements, or the first `count` of them and zeros.
template <class T = Vec, class Element> OVSPEC_INLINE T load_some(const Element* from, std::size_t count) {
    return count == lanes ? load_as<T>(from) : load_part<T>(from, count);
}

// body(Count<R>, row): `rows` rows in parts of up to `most`, which differ by one row at most.
template <std::size_t most, class Body>
OVSPEC_INLINE void for_even_parts(std::size_t rows, const Body& body) {
    const std::size_t parts = (rows + most - 1) / most;
    for (std::size_t p = 0; p < parts; p++) {
        const std::size_t row = p * rows / parts;
        with_count<most>((p + 1) * rows / parts - row,
                         [&](auto R) __attribute__((always_inline)) { body(R, row); });
    }
}

// use(Count<value>) of a power of two, from `least` to `most`.
template <std::size_t least, std::size_t most, class Use>
OVSPEC_INLINE void with_power(std::size_t value, const Use& use) {
    if constexpr (least < most)
        if (value > least)
            return with_power<2 * least, most>(value, use);
    use(Count<least>());
}

// Zeros in all sums of a tile, before it adds to them.
template <class V, std::size_t count> OVSPEC_INLINE void clear(V (&sums)[count]) {
#pragma GCC unroll 32
    for (std::size_t i = 0; i < count; i++)
        sums[i] = V{};
}

template <class V, std::size_t rows, std::size_t count> OVSPEC_INLINE void clear(V (&sums)[rows][count]) {
#pragma GCC unroll 16
    for (std::size_t r = 0; r < rows; r++)
        clear(sums[r]);
}

OVSPEC_INLINE Vec splat(float x) {
    return x - Vec{};
}

// Returns b where one of them is NaN, as the x86 instruction does.
OVSPEC_INLINE Vec max(Vec a, Vec b) {
#if OVSPEC_LANES == 16 && defined(__AVX512F__)
    return (Vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif OVSPEC_LANES == 8 && defined(__AVX2__)
    return (Vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}

// a * b + c, rounded once where the instruction set has FMA, else twice. The compiler never joins the two on
// its own (-ffp-contract=off): it would decide for each use of a template, and bits would depend on that.
OVSPEC_INLINE Vec fused(Vec a, Vec b, Vec c) {
#if OVSPEC_LANES == 16 && defined(__AVX512F__)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif OVSPEC_LANES == 8 && defined(__FMA__)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif OVSPEC_LANES == 16 && defined(__FMA__)
    __m256 x[2], y[2], sum[2];
    __builtin_memcpy(x, &a, sizeof(a));
    __builtin_memcpy(y, &b, sizeof(b));
    __builtin_memcpy(sum, &c, sizeof(c));
    for (std::size_t i = 0; i < 2; i++)
        sum[i] = _mm256_fmadd_ps(x[i], y[i], sum[i]);
    __builtin_memcpy(&c, sum, sizeof(c));
    return c;
#else
    return a * b + c;
#endif
}

OVSPEC_INLINE float fused(float a, float b, float c) {
#if defined(__FMA__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

OVSPEC_INLINE Vec to_float(ByteVec x) {
#if OVSPEC_LANES == 16 && defined(__AVX512F__)
    return (Vec)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32((__m128i)x));
#elif OVSPEC_LANES == 8 && defined(__AVX2__)
    return (Vec)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(load_as<long long>(&x))));
#else
    return __builtin_convertvector(__builtin_convertvector(x, IVec), Vec);
#endif
}

// Stores the low byte of every number. GCC takes the numbers out one by one where it does not recognise the
// instruction.
OVSPEC_INLINE void store_low_bytes(void* to, IVec numbers) {
#if OVSPEC_LANES == 16 && defined(__AVX512F__)
    const __m128i bytes = _mm512_cvtepi32_epi8((__m512i)numbers);
#elif OVSPEC_LANES == 8 && defined(__AVX2__)
    const __m128i first = _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i four = _mm256_shuffle_epi8((__m256i)numbers, _mm256_broadcastsi128_si256(first));
    const long long bytes = _mm_cvtsi128_si64(
        _mm_unpacklo_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1)));
#else
    const ByteVec bytes = __builtin_convertvector(numbers, ByteVec);
#endif
    __builtin_memcpy(to, &bytes, sizeof(bytes));
}

OVSPEC_INLINE Vec from_bf16(HalfVec x) {
    return (Vec)(__builtin_convertvector(x, UVec) << 16);
}

OVSPEC_INLINE Vec from_f16(HalfVec x) {
#if OVSPEC_LANES == 16 && defined(__AVX512F__)
    return (Vec)_mm512_cvtph_ps((__m256i)x);
#elif OVSPEC_LANES == 8 && defined(__AVX2__)
    return (Vec)_mm256_cvtph_ps((__m128i)x);
#else
    const UVec bits = __builtin_convertvector(x, UVec);
    const UVec magnitude = bits & 0x7fffu;
    const UVec normal = (magnitude << 13) + (112u << 23);
    const UVec special = normal + (112u << 23); // infinity and NaN
    const UVec subnormal = (UVec)(__builtin_convertvector((IVec)magnitude, Vec) * 0x1p-24f);
    const UVec value = magnitude >= 0x7c00u ? special : (magnitude < 0x0400u ? subnormal : normal);
    return (Vec)(value | ((bits & 0x8000u) << 16));
#endif
}

OVSPEC_INLINE float scalar_f16(const std::uint8_t* from) {
    return from_f16(load_first<HalfVec, 1>((const std::uint16_t*)from))[0];
}

// 2**23. From it to 2**24 floats are 1 apart, so `or` with an integer adds the integer. That takes the place
// of a conversion, which fewer execution units can do.
constexpr float integer_base = 8388608.0f;

// Integers below 2**23 as numbers, less zero points that have integer_base added.
OVSPEC_INLINE Vec less_zero_point(UVec integers, Vec zero_points) {
    return (Vec)(integers | (UVec)splat(integer_base)) - zero_points;
}

// to[i] = x[index[i]]
OVSPEC_INLINE Vec permuted(Vec x, IVec index) {
#if OVSPEC_LANES == 16 && defined(__AVX512F__)
    return (Vec)_mm512_permutexvar_ps((__m512i)index, (__m512)x);
#elif OVSPEC_LANES == 8 && defined(__AVX2__)
    return (Vec)_mm256_permutevar8x32_ps((__m256)x, (__m256i)index);
#else
    Vec to;
    for (std::size_t i = 0; i < lanes; i++)
        to[i] = x[index[i]];
    return to;
#endif
}

template <std::size_t width> OVSPEC_INLINE float fold_sum(const float* x) {
    if constexpr (width == 1) {
        return x[0];
    } else {
        return fold_sum<width / 2>(x) + fold_sum<width / 2>(x + width / 2);
    }
}

OVSPEC_INLINE float sum(Vec v) {
#if OVSPEC_LANES == 16 && defined(__AVX512F__)
    const __m256 half =
        _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
#elif OVSPEC_LANES == 8 && defined(__AVX2__)
    __m128 x = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
#else
    return fold_sum<lanes>((const float*)&v);
#endif
}

// The sum of `lanes` vectors, lane by lane in the order of sum(); overwrites them.
OVSPEC_INLINE Vec sum_across(Vec (&v)[lanes]) {
#if (OVSPEC_LANES == 16 && defined(__AVX512F__)) || (OVSPEC_LANES == 8 && defined(__AVX2__))
    for (std::size_t half = lanes / 2; half > 0; half /= 2)
        for (std::size_t i = 0; i < half; i++)
            v[i] += v[i + half];
#else
    for (std::size_t step = 1; step < lanes; step *= 2)
        for (std::size_t i = 0; i < lanes; i += 2 * step)
            v[i] += v[i + step];
#endif
    return v[0];
}

// sums[i] = sum(v[i]) for four vectors at once, with a third of the shuffles
OVSPEC_INLINE void sum_four(const Vec* v, float* sums) {
#if (OVSPEC_LANES == 16 && defined(__AVX512F__)) || (OVSPEC_LANES == 8 && defined(__AVX2__))
    __m256 half[4];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; i++) {
#if OVSPEC_LANES == 16
        half[i] =
            _mm256_add_ps(_mm512_castps512_ps256((__m512)v[i]), _mm512_extractf32x8_ps((__m512)v[i], 1));
#else
        half[i] = (__m256)v[i];
#endif
    }
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(half[0], half[1]), _mm256_hadd_ps(half[2], half[3]));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
#else
    for (std::size_t i = 0; i < 4; i++)
        sums[i] = sum(v[i]);
#endif
}

// 0, 1, 2, ...
OVSPEC_INLINE IVec lane_numbers() {
    IVec numbers = {};
    for (int i = 0; i < (int)lanes; i++)
        numbers[i] = i;
    return numbers;
}

// The largest lane; beside NaN, any lane.
OVSPEC_INLINE float max_lane(Vec v) {
#if OVSPEC_LANES == 16 && defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float best = v[0];
    for (std::size_t i = 1; i < lanes; i++)
        best = v[i] > best ? v[i] : best;
    return best;
#endif
}

// e^x for x <= 0, relative error below 2e-7; 0 below -86.5, where the result nears the smallest normal float.
// Range reduction by a two-part ln 2 and the minimax polynomial of the Cephes library (expf).
OVSPEC_INLINE Vec exp_nonpositive(Vec x) {
    const Vec lowest = splat(-86.5f);
    const IVec kept = x >= lowest;
    const Vec bounded = max(lowest, x);
    // 1.5 * 2^23: rounds to an integer
    const Vec shifted = fused(bounded, splat(1.44269504088896341f), splat(12582912.0f));
    const Vec n = shifted - 12582912.0f;
    Vec r = fused(n, splat(-0.693359375f), bounded);
    r = fused(n, splat(2.12194440e-4f), r);
    Vec p = fused(r, splat(1.9875691500e-4f), splat(1.3981999507e-3f));
    p = fused(p, r, splat(8.3334519073e-3f));
    p = fused(p, r, splat(4.1665795894e-2f));
    p = fused(p, r, splat(1.6666665459e-1f));
    p = fused(p, r, splat(5.0000001201e-1f));
    p = fused(p, r * r, r + 1.0f);
    const UVec power = (UVec)shifted << 23; // the low bits of `shifted` hold n
    return (Vec)(((UVec)p + power) & (UVec)kept);
}

OVSPEC_INLINE float exp_nonpositive(float x) {
    return exp_nonpositive(splat(x))[0];
}

} // namespace ovspec::OVSPEC_ISA

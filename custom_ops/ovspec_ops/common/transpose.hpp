// Rows that become columns. Part of the kernels: see common/simd.hpp.
#pragma once

#include "common/simd.hpp"

namespace ovspec::OVSPEC_ISA {

// `lanes` rows of one vector each, `row_bytes` apart, become their columns, `step` vectors apart.
OVSPEC_INLINE void transpose(const void* from, std::size_t row_bytes, IVec* to, std::size_t step) {
    const auto* rows = (const std::uint8_t*)from;
#if (OVSPEC_LANES == 16 && defined(__AVX512F__)) || (OVSPEC_LANES == 8 && defined(__AVX2__))
    // Rows are loaded in quarters (halves), every fourth row into one vector: that costs no shuffle.
    const auto quarter = [&](std::size_t row, std::size_t q) __attribute__((always_inline)) {
        return load_as<__m128i>(rows + row * row_bytes + q * sizeof(__m128i));
    };
#if OVSPEC_LANES == 16
#define OVSPEC_OF(name) _mm512_##name
    const auto every_fourth = [&](std::size_t row, std::size_t q) __attribute__((always_inline)) {
        const __m512i one = _mm512_castsi128_si512(quarter(row, q));
        const __m512i two = _mm512_inserti32x4(one, quarter(row + 4, q), 1);
        const __m512i three = _mm512_inserti32x4(two, quarter(row + 8, q), 2);
        return _mm512_inserti32x4(three, quarter(row + 12, q), 3);
    };
#else
#define OVSPEC_OF(name) _mm256_##name
    const auto every_fourth = [&](std::size_t row, std::size_t q) __attribute__((always_inline)) {
        return _mm256_inserti128_si256(_mm256_castsi128_si256(quarter(row, q)), quarter(row + 4, q), 1);
    };
#endif
#pragma GCC unroll 4
    for (std::size_t q = 0; q < lanes / 4; q++) {
        const auto a = every_fourth(0, q), b = every_fourth(1, q), c = every_fourth(2, q),
                   d = every_fourth(3, q);
        const auto low_ab = OVSPEC_OF(unpacklo_epi32)(a, b), high_ab = OVSPEC_OF(unpackhi_epi32)(a, b);
        const auto low_cd = OVSPEC_OF(unpacklo_epi32)(c, d), high_cd = OVSPEC_OF(unpackhi_epi32)(c, d);
        to[(4 * q) * step] = (IVec)OVSPEC_OF(unpacklo_epi64)(low_ab, low_cd);
        to[(4 * q + 1) * step] = (IVec)OVSPEC_OF(unpackhi_epi64)(low_ab, low_cd);
        to[(4 * q + 2) * step] = (IVec)OVSPEC_OF(unpacklo_epi64)(high_ab, high_cd);
        to[(4 * q + 3) * step] = (IVec)OVSPEC_OF(unpackhi_epi64)(high_ab, high_cd);
    }
#undef OVSPEC_OF
#else
    for (std::size_t i = 0; i < lanes; i++)
        for (std::size_t j = 0; j < lanes; j++)
            to[j * step][i] = load_as<std::int32_t>(rows + i * row_bytes + 4 * j);
#endif
}

} // namespace ovspec::OVSPEC_ISA

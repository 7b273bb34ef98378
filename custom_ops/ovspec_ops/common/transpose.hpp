// Rows that become columns. Part of the kernels: see common/simd.hpp.
#pragma once

#include "common/simd.hpp"

namespace ovspec::OVSPEC_ISA {

// 16 bytes of each of `lanes` rows, at row(i), become four columns, `step` vectors apart.
template <class Row> OVSPEC_INLINE void transpose_quarter(const Row& row, IVec* to, std::size_t step) {
#if (OVSPEC_LANES == 16 && defined(__AVX512F__)) || (OVSPEC_LANES == 8 && defined(__AVX2__))
    // Every fourth row is loaded into one vector: that costs no shuffle.
#if OVSPEC_LANES == 16
#define OVSPEC_OF(name) _mm512_##name
    const auto every_fourth = [&](std::size_t i) __attribute__((always_inline)) {
        const __m512i one = _mm512_castsi128_si512(load_as<__m128i>(row(i)));
        const __m512i two = _mm512_inserti32x4(one, load_as<__m128i>(row(i + 4)), 1);
        const __m512i three = _mm512_inserti32x4(two, load_as<__m128i>(row(i + 8)), 2);
        return _mm512_inserti32x4(three, load_as<__m128i>(row(i + 12)), 3);
    };
#else
#define OVSPEC_OF(name) _mm256_##name
    const auto every_fourth = [&](std::size_t i) __attribute__((always_inline)) {
        const __m256i one = _mm256_castsi128_si256(load_as<__m128i>(row(i)));
        return _mm256_inserti128_si256(one, load_as<__m128i>(row(i + 4)), 1);
    };
#endif
    const auto a = every_fourth(0), b = every_fourth(1), c = every_fourth(2), d = every_fourth(3);
    const auto low_ab = OVSPEC_OF(unpacklo_epi32)(a, b), high_ab = OVSPEC_OF(unpackhi_epi32)(a, b);
    const auto low_cd = OVSPEC_OF(unpacklo_epi32)(c, d), high_cd = OVSPEC_OF(unpackhi_epi32)(c, d);
    to[0] = (IVec)OVSPEC_OF(unpacklo_epi64)(low_ab, low_cd);
    to[step] = (IVec)OVSPEC_OF(unpackhi_epi64)(low_ab, low_cd);
    to[2 * step] = (IVec)OVSPEC_OF(unpacklo_epi64)(high_ab, high_cd);
    to[3 * step] = (IVec)OVSPEC_OF(unpackhi_epi64)(high_ab, high_cd);
#undef OVSPEC_OF
#else
    for (std::size_t i = 0; i < lanes; i++)
        for (std::size_t j = 0; j < 4; j++)
            to[j * step][i] = load_as<std::int32_t>((const std::uint8_t*)row(i) + 4 * j);
#endif
}

// `lanes` rows of one vector each, `row_bytes` apart, become their columns, `step` vectors apart.
OVSPEC_INLINE void transpose(const void* from, std::size_t row_bytes, IVec* to, std::size_t step) {
    const auto* rows = (const std::uint8_t*)from;
#pragma GCC unroll 4
    for (std::size_t q = 0; q < lanes / 4; q++)
        transpose_quarter([&](std::size_t i)
                              __attribute__((always_inline)) { return rows + i * row_bytes + 16 * q; },
                          to + 4 * q * step, step);
}

} // namespace ovspec::OVSPEC_ISA

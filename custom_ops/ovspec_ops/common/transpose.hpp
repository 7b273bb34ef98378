// Rows that become columns. Part of the kernels: see common/simd.hpp.
#pragma once

#include "common/simd.hpp"

namespace ovspec::OVSPEC_ISA {

// As many vectors as they have lanes, `step` apart, become their columns.
OVSPEC_INLINE void transpose(const IVec* from, std::size_t step, IVec* to) {
#if OVSPEC_LANES == 16 && defined(__AVX512F__)
    __m512i a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        a[i] = (__m512i)from[i * step];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i low = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
        const __m512i high = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        const __m512i low2 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        const __m512i high2 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
        to[i] = (IVec)_mm512_shuffle_i32x4(low, low2, 0x88);
        to[i + 4] = (IVec)_mm512_shuffle_i32x4(high, high2, 0x88);
        to[i + 8] = (IVec)_mm512_shuffle_i32x4(low, low2, 0xdd);
        to[i + 12] = (IVec)_mm512_shuffle_i32x4(high, high2, 0xdd);
    }
#else
    for (std::size_t i = 0; i < lanes; i++)
        for (std::size_t j = 0; j < lanes; j++)
            to[j][i] = from[i * step][j];
#endif
}

} // namespace ovspec::OVSPEC_ISA

// Integer dot products of four unsigned with four signed bytes in every 32-bit lane.
#pragma once

#include "common/simd.hpp"

namespace ovspec::OVSPEC_ISA {

// total + products of four unsigned with four signed bytes per lane
OVSPEC_INLINE IVec dot(IVec total, IVec bytes, IVec parts) {
#if OVSPEC_LANES == 16 && defined(__AVX512VNNI__)
    return (IVec)_mm512_dpbusd_epi32((__m512i)total, (__m512i)bytes, (__m512i)parts);
#elif OVSPEC_LANES == 8 && defined(__AVXVNNI__)
    return (IVec)_mm256_dpbusd_avx_epi32((__m256i)total, (__m256i)bytes, (__m256i)parts);
#else
    // Emulated, for tests on a processor with neither instruction.
    for (int byte = 0; byte < 4; byte++)
        total += (IVec)(((UVec)bytes >> (8 * byte)) & 255u) * ((IVec)((UVec)parts << (24 - 8 * byte)) >> 24);
    return total;
#endif
}

// The same for two pairs of vectors, low with low_parts and high with high_parts; bytes are below 16.
OVSPEC_INLINE IVec dot_halves(IVec total, IVec low, IVec low_parts, IVec high, IVec high_parts) {
    // Without VNNI, products are summed in 16 bits, which hold four of such bytes: both pairs share a sum.
#if OVSPEC_LANES == 16 && defined(__AVX512BW__) && !defined(__AVX512VNNI__)
    const __m512i pairs = _mm512_add_epi16(_mm512_maddubs_epi16((__m512i)low, (__m512i)low_parts),
                                           _mm512_maddubs_epi16((__m512i)high, (__m512i)high_parts));
    return total + (IVec)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif OVSPEC_LANES == 8 && defined(__AVX2__) && !defined(__AVXVNNI__)
    const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16((__m256i)low, (__m256i)low_parts),
                                           _mm256_maddubs_epi16((__m256i)high, (__m256i)high_parts));
    return total + (IVec)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    return dot(dot(total, low, low_parts), high, high_parts);
#endif
}

// The same four bytes in every lane.
OVSPEC_INLINE IVec splat_bytes(const std::uint8_t* four) {
    return load_as<std::int32_t>(four) - IVec{};
}

} // namespace ovspec::OVSPEC_ISA

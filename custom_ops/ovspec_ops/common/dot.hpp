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

// The same four bytes in every lane.
OVSPEC_INLINE IVec splat_bytes(const std::uint8_t* four) {
    return load_as<std::int32_t>(four) - IVec{};
}

} // namespace ovspec::OVSPEC_ISA

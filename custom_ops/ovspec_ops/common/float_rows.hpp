// Rows of f32 as kernels read them: followed by zeros up to a multiple of 64 bytes, so that no vector load
// needs a mask.
#pragma once

#include "common/simd.hpp"

namespace ovspec::OVSPEC_ISA::float_rows {

OVSPEC_INLINE std::size_t packed_bytes(std::size_t count) {
    return (count * sizeof(float) + 63) / 64 * 64;
}

OVSPEC_INLINE void pack(const float* values, std::size_t count, std::uint8_t* packed) {
    const std::size_t bytes = count * sizeof(float);
    __builtin_memcpy(packed, values, bytes);
    __builtin_memset(packed + bytes, 0, packed_bytes(count) - bytes);
}

} // namespace ovspec::OVSPEC_ISA::float_rows

// Rows of activations as 8-bit integers with one scale for every 32 values. OpenVINO's own products do the
// same by default ("dynamic quantization").
#pragma once

#include "common/dot.hpp"
#include "common/simd.hpp"

namespace ovspec::OVSPEC_ISA::byte_values {

constexpr std::size_t group = 32; // values of a scale
constexpr float largest = 127.0f;

// Largest magnitudes, and NaN where a value was not finite.
struct Range {
    Vec most = {}, poison = {};

    OVSPEC_INLINE_MEMBER void see(Vec x) {
        most = max(most, max(x, -x));
        poison = fused(x, Vec{}, poison);
    }
};

// The scale of the integers and its inverse. `poison` makes the scale NaN, and with it the products.
struct Unit {
    float value, inverse;

    OVSPEC_INLINE_MEMBER Unit(float most, float poison) {
        const float unit = most / largest;
        value = unit + poison;
        inverse = unit >= 1e-37f ? 1.0f / unit : 0.0f;
    }
};

// Rounds `lanes` values to the nearest integers, ties to even, stores and returns them. What is not finite
// becomes an arbitrary integer.
OVSPEC_INLINE IVec round(Vec values, Vec inverse, std::uint8_t* to) {
    const Vec rounder = splat(12582912.0f); // 1.5 * 2^23: rounds to an integer in the low bits
    const IVec numbers = (IVec)fused(values, inverse, rounder) - (IVec)rounder;
    store_low_bytes(to, numbers);
    return numbers;
}

// Rounds the groups of a row one by one.
struct Rounder {
    Vec sums = {};   // of the values so far, by lane
    Vec poison = {}; // NaN where a value was not finite

    // Rounds up to 32 values; returns their scale.
    OVSPEC_INLINE_MEMBER float group_of(const float* values, std::size_t count, std::uint8_t* to) {
        Vec parts[group / lanes] = {};
        Range range;
#pragma GCC unroll 8
        for (std::size_t i = 0; i < group / lanes; i++) {
            const std::size_t first = i * lanes;
            if (first + lanes <= count)
                parts[i] = load(values + first);
            else if (first < count)
                parts[i] = load_part<Vec>(values + first, count - first);
            range.see(parts[i]);
        }
        poison += range.poison;
        const Unit unit(max_lane(range.most), 0.0f);
        std::uint8_t integers[group];
        std::uint8_t* at = count < group ? integers : to;
        UVec total = {}; // unsigned: values that are not finite became any integers
#pragma GCC unroll 8
        for (std::size_t i = 0; i < group / lanes; i++)
            total += (UVec)round(parts[i], splat(unit.inverse), at + i * lanes);
        if (count < group)
            __builtin_memcpy(to, integers, count);
        sums = fused(__builtin_convertvector((IVec)total, Vec), splat(unit.value), sums);
        return unit.value;
    }

    // Sum of all values since the last call.
    OVSPEC_INLINE_MEMBER float take_sum() {
        const float total = sum(sums);
        sums = Vec{};
        return total;
    }
};

} // namespace ovspec::OVSPEC_ISA::byte_values

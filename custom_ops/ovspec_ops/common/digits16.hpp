// Rows as 16-bit integers times one scale, each integer held as two signed digits of 8 bits, x = 256 * high +
// low, which multiply the weights as they are stored. Rounding to 16 bits of the row's largest value is finer
// than the 8 significant bits of bf16.
#pragma once

#include "common/dot.hpp"
#include "common/simd.hpp"

namespace ovspec::OVSPEC_ISA::digits16 {

constexpr float largest = 32639.0f; // 127 * 256 + 127: its high digit fits

// Adding it rounds a float below 2^22 to an integer, whose two's complement is then in the low bits.
constexpr float rounder = 12582912.0f; // 1.5 * 2^23

// The scale of the integers and its inverse. The scale is NaN where a value is not finite, and with it the
// products.
struct Unit {
    float value;
    float inverse;
};

OVSPEC_INLINE Unit unit_of(const float* values, std::size_t count) {
    Vec most = {}, poison = {};
    const auto see = [&](Vec x) __attribute__((always_inline)) {
        most = max(most, max(x, -x));
        poison = fused(x, Vec{}, poison);
    };
    std::size_t k = 0;
    for (; k + lanes <= count; k += lanes)
        see(load(values + k));
    if (k < count)
        see(load_part<Vec>(values + k, count - k));
    const float value = max_lane(most) / largest;
    return {value + sum(poison), value >= 1e-37f ? 1.0f / value : 0.0f};
}

// Digits of `lanes` numbers, which are in the low 16 bits: the low digit is signed, from -128 on, so 128 is
// added before the high one is taken.
OVSPEC_INLINE void split(IVec numbers, std::int8_t* high, std::int8_t* low) {
    store_low_bytes(high, (IVec)((UVec)numbers + 128u) >> 8);
    store_low_bytes(low, numbers);
}

// Digits of `lanes` values. What is not finite becomes arbitrary digits.
OVSPEC_INLINE void split(Vec values, float inverse, std::int8_t* high, std::int8_t* low) {
    split((IVec)fused(values, splat(inverse), splat(rounder)), high, low);
}

// Digits of `count` values, followed by zeros up to a multiple of `lanes`.
OVSPEC_INLINE void split_all(const float* values, std::size_t count, float inverse, std::int8_t* high,
                             std::int8_t* low) {
    std::size_t k = 0;
    for (; k + lanes <= count; k += lanes)
        split(load(values + k), inverse, high + k, low + k);
    if (k < count)
        split(load_part<Vec>(values + k, count - k), inverse, high + k, low + k);
}

// Sums of the digits of many values.
class Sums {
public:
    // Writes `count` digits as split_all() does, without zeros behind them, and adds them up.
    OVSPEC_INLINE_MEMBER void split(const float* values, std::size_t count, float inverse, std::int8_t* high,
                                    std::int8_t* low) {
        std::size_t k = 0;
        for (; k + lanes <= count; k += lanes)
            add(load(values + k), inverse, high + k, low + k);
        if (k == count)
            return;
        std::int8_t highs[lanes], lows[lanes];
        add(load_part<Vec>(values + k, count - k), inverse, highs, lows);
        __builtin_memcpy(high + k, highs, count - k);
        __builtin_memcpy(low + k, lows, count - k);
    }

    OVSPEC_INLINE_MEMBER std::int32_t high() const { return total(highs_); }
    OVSPEC_INLINE_MEMBER std::int32_t low() const {
        return (std::int32_t)((std::uint32_t)total(numbers_) - 256u * (std::uint32_t)high());
    }

private:
    OVSPEC_INLINE_MEMBER void add(Vec values, float inverse, std::int8_t* high, std::int8_t* low) {
        const UVec numbers = (UVec)fused(values, splat(inverse), splat(rounder)) - (UVec)splat(rounder);
        digits16::split((IVec)numbers, high, low);
        numbers_ += numbers;
        highs_ += (UVec)((IVec)(numbers + 128u) >> 8);
    }

    static OVSPEC_INLINE_MEMBER std::int32_t total(UVec sums) {
        std::uint32_t total = 0;
        for (std::size_t i = 0; i < lanes; i++)
            total += sums[i];
        return (std::int32_t)total;
    }

    UVec numbers_{}, highs_{};
};

// In front of a row that is packed by itself.
struct Header {
    float unit;
    float sum; // of all integers
};
constexpr std::size_t header = 64; // bytes

OVSPEC_INLINE Header head_of(const std::uint8_t* packed) {
    return load_as<Header>(packed);
}

// Adds the products of N vectors of weights with R rows' digits, the low ones `apart` bytes behind the high
// ones.
template <std::size_t N, std::size_t R, std::size_t apart = 64>
OVSPEC_INLINE void add_products(const IVec (&weights)[N], const std::uint8_t* const* rows, std::size_t at,
                                IVec (&high)[R * N], IVec (&low)[R * N]) {
#pragma GCC unroll 4
    for (std::size_t r = 0; r < R; r++) {
        const IVec high_digits = load_as<IVec>(rows[r] + at),
                   low_digits = load_as<IVec>(rows[r] + at + apart);
#pragma GCC unroll 4
        for (std::size_t n = 0; n < N; n++) {
            high[r * N + n] = dot(high[r * N + n], weights[n], high_digits);
            low[r * N + n] = dot(low[r * N + n], weights[n], low_digits);
        }
    }
}

OVSPEC_INLINE Vec joined(IVec high, IVec low) {
    return fused(__builtin_convertvector(high, Vec), splat(256.0f), __builtin_convertvector(low, Vec));
}

template <std::size_t count>
OVSPEC_INLINE void join(const IVec (&high)[count], const IVec (&low)[count], Vec* sums) {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < count; i++)
        sums[i] = joined(high[i], low[i]);
}

} // namespace ovspec::OVSPEC_ISA::digits16

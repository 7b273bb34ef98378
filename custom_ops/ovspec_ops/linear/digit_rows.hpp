// Rows as the integer kernels read them: two signed digits of 8 bits a value, see common/digits16.hpp.
#pragma once

#ifdef OVSPEC_DOT

#include "common/digits16.hpp"
#include "linear/kernel.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace digit_rows {

// A block of rows: what a unit of each is worth, f32 `[16]`; per group the sums of high and of low digits,
// i32 `[groups, 2, 16]`; then the high digits of all rows, and their low ones, `stride` bytes a row.
struct BlockLayout {
    std::size_t rows, sums, digits, stride, bytes;

    BlockLayout(const LinearWeights& w, std::size_t count)
        : rows(count), sums(block_rows * sizeof(float)),
          digits(sums + w.groups * 2 * block_rows * sizeof(std::int32_t)),
          // A line more than a power of two: rows would meet in few sets of the cache.
          stride((w.padded() + 63) / 64 * 64 + 64), bytes(digits + 2 * rows * stride) {}

    const float* units(const std::uint8_t* packed) const { return (const float*)packed; }
    const std::int32_t* high_sums(const std::uint8_t* packed, std::size_t group) const {
        return (const std::int32_t*)(packed + sums) + group * 2 * block_rows;
    }
    const std::int32_t* low_sums(const std::uint8_t* packed, std::size_t group) const {
        return high_sums(packed, group) + block_rows;
    }
    const std::uint8_t* high(const std::uint8_t* packed, std::size_t row) const {
        return packed + digits + row * stride;
    }
    const std::uint8_t* low(const std::uint8_t* packed, std::size_t row) const {
        return high(packed, rows + row);
    }
};

OVSPEC_INLINE std::int32_t sum_digits(const std::uint8_t* digits, std::size_t count) {
    std::int32_t total = 0;
    for (std::size_t k = 0; k < count; k++)
        total += (std::int8_t)digits[k];
    return total;
}

OVSPEC_INLINE void pack(const LinearWeights& w, const float* values, std::size_t count, std::size_t rows,
                        std::uint8_t* packed) {
    const BlockLayout layout(w, rows);
    __builtin_memset(packed, 0, layout.bytes);
    float* units = (float*)packed;
    std::int32_t* sums = (std::int32_t*)(packed + layout.sums);
    const std::size_t size = w.group_size();
    for (std::size_t r = 0; r < count; r++) {
        const float* row = values + r * w.inputs;
        std::uint8_t *high = packed + layout.digits + r * layout.stride, *low = high + rows * layout.stride;
        const digits16::Unit unit = digits16::unit_of(row, w.inputs);
        units[r] = unit.value;
        digits16::split_all(row, w.inputs, unit.inverse, (std::int8_t*)high, (std::int8_t*)low);
        for (std::size_t g = 0; g < w.groups; g++) {
            sums[2 * g * block_rows + r] = sum_digits(high + g * size, size);
            sums[(2 * g + 1) * block_rows + r] = sum_digits(low + g * size, size);
        }
    }
}

// Scales and zero points of one group of a panel, for `lanes` of its neurons.
struct Scales {
    Vec scale;
    IVec zero_point;
};

OVSPEC_INLINE Scales scales_of(const LinearWeights& w, const std::uint8_t* panel, std::size_t group,
                               std::size_t first) {
    const std::size_t at = group * panel_width + first;
    const std::uint8_t* zero_points = panel + w.groups * 2 * panel_width;
    return {from_f16(load_as<HalfVec>(panel + 2 * at)),
            __builtin_convertvector(load_as<ByteVec>(zero_points + at), IVec)};
}

// One group's share of a row's sums, from the sums of both digits: no bit of it depends on how many rows or
// groups go through together.
OVSPEC_INLINE Vec scaled(IVec high, IVec low, const Scales& s, std::int32_t high_sum, std::int32_t low_sum) {
    return digits16::joined(high - s.zero_point * high_sum, low - s.zero_point * low_sum) * s.scale;
}

OVSPEC_INLINE void write(const PanelTarget& target, std::size_t row, std::size_t first, Vec value) {
    float* to = target.y + row * target.stride + first;
    if (first + lanes <= target.width)
        store(to, value);
    else if (first < target.width)
        store_part(to, value, target.width - first);
}

} // namespace digit_rows
} // namespace OVSPEC_ISA
} // namespace ovspec

#endif

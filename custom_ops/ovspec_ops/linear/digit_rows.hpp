// Rows as the integer kernels read them: two signed digits of 8 bits a value, see common/digits16.hpp.
#pragma once

#include "common/digits16.hpp"
#include "linear/kernel.hpp"

namespace ovspec::OVSPEC_ISA::digit_rows {

// Sums of one group's digits: the high ones, the low ones, and both together.
struct DigitSums {
    std::int32_t high[block_rows], low[block_rows];
    float joint[block_rows];
};

constexpr std::size_t slab = 64; // inputs of a tile
constexpr std::size_t half_slab = slab / 2;

// A block of rows: what a unit of each is worth, f32 `[16]`; DigitSums `[groups]`; then their digits in slabs
// of 64 inputs, `[slabs, 2, rows, 64]`, the high ones first.
struct BlockLayout {
    std::size_t rows, sums, digits, slab_bytes, bytes;

    BlockLayout(const LinearWeights& w, std::size_t count)
        : rows(count), sums(block_rows * sizeof(float)), digits(sums + w.groups * sizeof(DigitSums)),
          slab_bytes(2 * rows * slab), bytes(digits + (w.padded() + slab - 1) / slab * slab_bytes) {}

    const float* units(const std::uint8_t* packed) const { return (const float*)packed; }
    const DigitSums& group_sums(const std::uint8_t* packed, std::size_t group) const {
        return ((const DigitSums*)(packed + sums))[group];
    }
    // The high digits of a row's input; its low ones lie `low` bytes further.
    const std::uint8_t* at(const std::uint8_t* packed, std::size_t row, std::size_t input) const {
        return packed + digits + input / slab * slab_bytes + row * slab + input % slab;
    }
    std::size_t low() const { return rows * slab; }
};

OVSPEC_INLINE void pack(const LinearWeights& w, const float* values, std::size_t count, std::size_t rows,
                        std::uint8_t* packed) {
    const BlockLayout layout(w, rows);
    __builtin_memset(packed, 0, layout.bytes);
    float* units = (float*)packed;
    DigitSums* sums = (DigitSums*)(packed + layout.sums);
    // Values that are split at once: fewer where a group may begin inside a slab, so that none crosses its
    // end.
    const std::size_t size = w.group_size();
    const std::size_t step = w.groups == 1 || size % slab == 0 ? slab : size % half_slab == 0 ? half_slab : 8;
    for (std::size_t r = 0; r < count; r++) {
        const float* row = values + r * w.inputs;
        const digits16::Unit unit = digits16::unit_of(row, w.inputs);
        units[r] = unit.value;
        for (std::size_t g = 0; g < w.groups; g++) {
            digits16::Sums of_group;
            for (std::size_t k = g * size; k < (g + 1) * size; k += step) {
                const std::size_t left = (g + 1) * size - k;
                std::int8_t* to = (std::int8_t*)packed + (layout.at(packed, r, k) - packed);
                of_group.split(row + k, left < step ? left : step, unit.inverse, to, to + layout.low());
            }
            sums[g].high[r] = of_group.high();
            sums[g].low[r] = of_group.low();
            sums[g].joint[r] = fused((float)of_group.high(), 256.0f, (float)of_group.low());
        }
    }
}

// One group's sums, for `lanes` neurons of a panel: what they are worth, and their zero points.
template <WeightFormat format> struct Scales;

// Zero points are multiplied with the digits' sums in integers, because sums over whole rows are large
// compared with the results. Sums of what is not finite may be too large for that; the unit is NaN there.
template <> struct Scales<WeightFormat::u8> {
    Vec scale;
    IVec zero_point;

    OVSPEC_INLINE_MEMBER Vec add(Vec total, IVec high, IVec low, const DigitSums& sums,
                                 std::size_t row) const {
        const UVec zeros = (UVec)zero_point;
        const UVec highs = (UVec)high - zeros * (std::uint32_t)sums.high[row];
        const UVec lows = (UVec)low - zeros * (std::uint32_t)sums.low[row];
        return fused(digits16::joined((IVec)highs, (IVec)lows), scale, total);
    }
};

template <> struct Scales<WeightFormat::u4> {
    Vec scale;
    Vec offset; // -zero point * scale

    OVSPEC_INLINE_MEMBER Vec add(Vec total, IVec high, IVec low, const DigitSums& sums,
                                 std::size_t row) const {
        return fused(offset, splat(sums.joint[row]), fused(digits16::joined(high, low), scale, total));
    }
};

template <WeightFormat format>
OVSPEC_INLINE Scales<format> scales_of(const LinearWeights& w, const std::uint8_t* panel, std::size_t group,
                                       std::size_t first) {
    const std::size_t at = group * panel_width + first;
    const Vec scale = from_f16(load_as<HalfVec>(panel + 2 * at));
    const ByteVec zero_point = load_as<ByteVec>(panel + w.groups * 2 * panel_width + at);
    if constexpr (format == WeightFormat::u8)
        return {scale, __builtin_convertvector(zero_point, IVec)};
    else
        return {scale, -to_float(zero_point) * scale};
}

} // namespace ovspec::OVSPEC_ISA::digit_rows

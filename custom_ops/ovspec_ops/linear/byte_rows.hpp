// Rows as integers of 8 bits, a scale for every 32 of them in a group of weights: see common/byte_values.hpp.
#pragma once

#include "common/byte_values.hpp"
#include "linear/kernel.hpp"

namespace ovspec::OVSPEC_ISA::byte_rows {

constexpr std::size_t span = byte_values::group; // inputs of a scale

// A block of rows: the sums of every group's values f32 `[groups, rows]`, the scales of its spans f32
// `[groups, spans, rows]`, and their integers `[groups, spans, rows, 32]`, all at multiples of 64.
struct BlockLayout {
    std::size_t rows, group_size, spans, units, integers, bytes;

    BlockLayout(const LinearWeights& w, std::size_t count)
        : rows(count), group_size(w.groups == 1 ? w.padded() : w.group_size()),
          spans((group_size + span - 1) / span), units(lines(w.groups * rows * sizeof(float))),
          integers(units + lines(w.groups * spans * rows * sizeof(float))),
          bytes(integers + lines(w.groups * spans * rows * span)) {}

    static constexpr std::size_t lines(std::size_t size) { return (size + 63) / 64 * 64; }

    const float* sums_of(const std::uint8_t* packed, std::size_t group) const {
        return (const float*)packed + group * rows;
    }
    const float* units_of(const std::uint8_t* packed, std::size_t place) const {
        return (const float*)(packed + units) + place * rows;
    }
    const std::uint8_t* integers_of(const std::uint8_t* packed, std::size_t place) const {
        return packed + integers + place * rows * span;
    }
};

OVSPEC_INLINE void pack(const LinearWeights& w, const float* values, std::size_t count, std::size_t rows,
                        std::uint8_t* packed) {
    const BlockLayout layout(w, rows);
    if (count < rows || layout.group_size % span != 0 || layout.group_size != w.group_size())
        __builtin_memset(packed, 0, layout.bytes);
    const std::size_t size = w.group_size();
    float* sums = (float*)packed;
    float* units = (float*)(packed + layout.units);
    for (std::size_t r = 0; r < count; r++) {
        byte_values::Rounder rounder;
        for (std::size_t g = 0; g < w.groups; g++) {
            const float* group = values + r * w.inputs + g * size;
            std::size_t place = g * layout.spans;
            for (std::size_t k = 0; k < size; k += span, place++)
                units[place * rows + r] =
                    rounder.group_of(group + k, size - k < span ? size - k : span,
                                     packed + layout.integers + (place * rows + r) * span);
            sums[g * rows + r] = rounder.take_sum();
        }
        // Every result of a row that is not finite is NaN.
        sums[r] += ovspec::OVSPEC_ISA::sum(rounder.poison);
    }
}

} // namespace ovspec::OVSPEC_ISA::byte_rows

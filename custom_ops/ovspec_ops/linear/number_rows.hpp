// Rows of numbers as the tiles of number_path.hpp read them: f32, or pairs of bf16.
#pragma once

#include "linear/panels.hpp"

namespace ovspec::OVSPEC_ISA::number_path {

constexpr std::size_t most_rows = lanes == 16 ? 12 : 6; // of a block: their sums fit in the registers

OVSPEC_INLINE bool takes_pairs(const LinearWeights& w) {
    return w.format == WeightFormat::bf16 && w.row_bits == 16;
}

// Blocks that differ by one row at most, so that none computes rows that are not there.
OVSPEC_INLINE RowBlocks blocks_of(std::size_t rows) {
    const std::size_t count = (rows + most_rows - 1) / most_rows;
    return {rows, count, (rows + count - 1) / count, true};
}

OVSPEC_INLINE std::size_t packed_bytes(const LinearWeights& w, std::size_t rows) {
    const std::size_t bytes = w.padded() * rows * (takes_pairs(w) ? 2 : 4);
    return (bytes + 63) / 64 * 64;
}

// Pairs of values as pairs of bf16, the first of a pair in the lower half; to the nearest, ties to even.
OVSPEC_INLINE void to_pairs(Vec values, std::uint32_t* to) {
    typedef std::uint64_t PairVec __attribute__((vector_size(4 * OVSPEC_LANES)));
    const UVec bits = (UVec)values;
    const UVec rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const PairVec pairs = (PairVec)(values == values ? rounded : (bits | 0x400000u));
    const PairVec joined = (pairs >> 16 & 0xffffu) | (pairs >> 32 & 0xffff0000u);
    for (std::size_t i = 0; i < lanes / 2; i++)
        to[i] = (std::uint32_t)joined[i];
}

constexpr std::size_t line = 16; // values of a line of the cache

// A line of one row to a block of `rows`, see `pack`.
template <bool pairs> OVSPEC_INLINE void pack_line(const float* values, std::size_t rows, float* to) {
    constexpr std::size_t count = pairs ? line / 2 : line;
    float part[count];
    if constexpr (pairs)
        for (std::size_t i = 0; i < line; i += lanes)
            to_pairs(load(values + i), (std::uint32_t*)part + i / 2);
    else
        __builtin_memcpy(part, values, sizeof(part));
#pragma GCC unroll 16
    for (std::size_t i = 0; i < count; i++)
        to[i * rows] = part[i];
}

template <bool pairs>
OVSPEC_INLINE void pack_rows(const LinearWeights& w, const float* values, std::size_t rows, float* to) {
    constexpr std::size_t of_step = pairs ? 2 : 1;
    const std::size_t whole = w.inputs / line * line, left = w.inputs - whole;
    for (std::size_t k = 0; k < whole; k += line)
        for (std::size_t r = 0; r < rows; r++)
            pack_line<pairs>(values + r * w.inputs + k, rows, to + k / of_step * rows + r);
    if (w.padded() == whole)
        return;
    for (std::size_t r = 0; r < rows; r++) {
        float last[64] = {}, packed[64]; // integers are padded to a multiple of 64
        __builtin_memcpy(last, values + r * w.inputs + whole, left * sizeof(float));
        for (std::size_t k = 0; k < w.padded() - whole; k += line)
            pack_line<pairs>(last + k, 1, packed + k / of_step);
        for (std::size_t i = 0; i < (w.padded() - whole) / of_step; i++)
            to[(whole / of_step + i) * rows + r] = packed[i];
    }
}

// A block as `[inputs, rows]` f32, or `[inputs / 2, rows]` pairs of bf16. A line of each row at a time.
OVSPEC_INLINE void pack(const LinearWeights& w, const float* values, std::size_t rows, std::uint8_t* packed) {
    if (takes_pairs(w))
        pack_rows<true>(w, values, rows, (float*)packed);
    else
        pack_rows<false>(w, values, rows, (float*)packed);
}

} // namespace ovspec::OVSPEC_ISA::number_path

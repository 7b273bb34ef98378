// Products of rows with the neurons of a linear layer. Raw pointers only, no OpenVINO type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/inline.hpp"
#include "common/kernel_tables.hpp"
#include "common/weight_format.hpp"
#include "linear/adapters.hpp"

namespace ovspec {

// Neurons that lie together, interleaved by four inputs: what two tiles take.
constexpr std::size_t panel_width = 32;
// Rows that are packed together, at most.
constexpr std::size_t block_rows = 16;
// Inputs up to which sums of digits times weights fit 32 bits.
constexpr std::size_t most_inputs = 65536;

// Weights `[panels, panel_bytes]`, see layout.py. For integers w = (data - zero_point) * scale: a panel holds
// scales f16 `[groups, 32]`, zero points u8 `[groups, 32]`, zeros up to a multiple of 64, and its data. A
// panel of floating-point numbers holds nothing but data.
struct LinearWeights {
    WeightFormat format;
    const std::uint8_t* data;
    std::size_t inputs;
    std::size_t groups;
    // How far rows may be rounded. 32: not at all. 16: integers of 16 bits with a scale a row, or bf16 where
    // the weights are bf16. 8: integers of 8 bits with a scale for 32 values, which not every instruction set
    // takes.
    std::size_t row_bits = 16;

    OVSPEC_INLINE_MEMBER std::size_t group_size() const { return inputs / groups; }
    OVSPEC_INLINE_MEMBER bool integers() const {
        return format == WeightFormat::u8 || format == WeightFormat::u4;
    }
    OVSPEC_INLINE_MEMBER std::size_t data_bits() const {
        switch (format) {
        case WeightFormat::u4:
            return 4;
        case WeightFormat::u8:
            return 8;
        case WeightFormat::f32:
            return 32;
        default:
            return 16;
        }
    }
    // Inputs with the zeros that fill a panel up; only a single group has any.
    OVSPEC_INLINE_MEMBER std::size_t padded() const {
        const std::size_t unit = integers() ? 64 : 2;
        return groups == 1 ? (inputs + unit - 1) / unit * unit : inputs;
    }
    OVSPEC_INLINE_MEMBER std::size_t data_at() const {
        return integers() ? (groups * 3 * panel_width + 63) / 64 * 64 : 0;
    }
    OVSPEC_INLINE_MEMBER std::size_t panel_bytes() const {
        return data_at() + padded() * panel_width * data_bits() / 8;
    }
    OVSPEC_INLINE_MEMBER const std::uint8_t* panel(std::size_t index) const {
        return data + index * panel_bytes();
    }
};

// Where the sums of a panel go: row r to y[r * stride + i] for its first `width` neurons i.
struct PanelTarget {
    float* y;
    std::size_t stride;
    std::size_t width;
};

// Rows that are computed together, in blocks.
struct RowBlocks {
    std::size_t rows, count;
    std::size_t most; // rows of a block
    bool even;        // all blocks have `most` rows or one less; else all but the last have `most`

    OVSPEC_INLINE_MEMBER std::size_t begin(std::size_t block) const {
        const std::size_t row = even ? block * rows / count : block * most;
        return row < rows ? row : rows;
    }
};

// Panels of one call of `product`.
constexpr std::size_t most_panels = 4;

struct LinearKernels {
    RowBlocks (*blocks)(const LinearWeights& weights, std::size_t rows);

    // Bytes of a packed block of up to `rows` rows, a multiple of 64.
    std::size_t (*packed_bytes)(const LinearWeights& weights, std::size_t rows);

    // Brings `count` of the `rows` rows of a block, `[count, inputs]`, into the form that `product` reads, in
    // `packed_bytes` bytes at a multiple of 64; the others become zeros.
    void (*pack)(const LinearWeights& weights, const float* values, std::size_t count, std::size_t rows,
                 std::uint8_t* packed);

    // Floats of memory that `product` needs for blocks of together `rows` rows.
    std::size_t (*scratch_floats)(const LinearWeights& weights, std::size_t rows);

    // `rows` rows, packed in blocks, times up to most_panels panels, from `first` on. `targets` holds one for
    // each of them.
    void (*product)(const LinearWeights& weights, std::size_t first, std::size_t count,
                    const std::uint8_t* packed, std::size_t rows, const PanelTarget* targets, float* scratch);

    // values[r * stride + i] = scale * (A x)[i] for `rows` rows x `[rows, inputs]`.
    void (*low_rank_down)(const LowRank& of, const float* x, std::size_t inputs, std::size_t rows,
                          float* values, std::size_t stride);

    // y[r * y_stride + n] += B values[r * stride ..], for the first `width` neurons n of a panel b `[rank,
    // panel_width]`.
    void (*low_rank_up)(const float* values, std::size_t stride, const float* b, std::size_t rank,
                        std::size_t rows, std::size_t width, float* y, std::size_t y_stride);
};

OVSPEC_DECLARE_KERNELS(LinearKernels, linear_kernels)

} // namespace ovspec

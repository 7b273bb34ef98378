// Products of rows with the neurons of a linear layer. Raw pointers only, no OpenVINO type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kernel_tables.hpp"
#include "common/weight_format.hpp"

namespace ovspec {

// Neurons that lie together, interleaved by four inputs: what two tiles take.
constexpr std::size_t panel_width = 32;
// Rows that are packed together.
constexpr std::size_t block_rows = 16;
// Inputs up to which sums of digits times weights fit 32 bits.
constexpr std::size_t most_inputs = 65536;

// Weights `[panels, panel_bytes]`, see layout.py; w = (data - zero_point) * scale. A panel holds scales f16
// `[groups, 32]`, zero points u8 `[groups, 32]`, zeros up to a multiple of 64, and its data.
struct LinearWeights {
    WeightFormat format; // u8, of one group, or u4
    const std::uint8_t* data;
    std::size_t inputs;
    std::size_t groups;
    // Bits of the integers that rows become: 16, or 8, which not every instruction set takes.
    std::size_t row_bits = 16;

    std::size_t group_size() const { return inputs / groups; }
    // Inputs with the zeros that fill a panel up; only a single group has any.
    std::size_t padded() const { return groups == 1 ? (inputs + 63) / 64 * 64 : inputs; }
    std::size_t data_at() const { return (groups * 3 * panel_width + 63) / 64 * 64; }
    std::size_t panel_bytes() const {
        return data_at() + padded() * panel_width / (format == WeightFormat::u4 ? 2 : 1);
    }
    const std::uint8_t* panel(std::size_t index) const { return data + index * panel_bytes(); }
};

// Where the sums of a panel go: row r to y[r * stride + i] for its first `width` neurons i.
struct PanelTarget {
    float* y;
    std::size_t stride;
    std::size_t width;
};

struct LinearKernels {
    // Bytes of a packed block of `rows` rows, a multiple of 64.
    std::size_t (*packed_bytes)(const LinearWeights& weights, std::size_t rows);

    // Brings `count` of the `rows` rows of a block, `[count, inputs]`, into the form that `product` reads, in
    // `packed_bytes` bytes at a multiple of 64; the others become zeros.
    void (*pack)(const LinearWeights& weights, const float* values, std::size_t count, std::size_t rows,
                 std::uint8_t* packed);

    // Floats of memory that `product` needs for blocks of together `rows` rows.
    std::size_t (*scratch_floats)(const LinearWeights& weights, std::size_t rows);

    // `rows` rows, packed in blocks of block_rows where they are more, times the `count` panels from `first`
    // on. `targets` holds one for each of them.
    void (*product)(const LinearWeights& weights, std::size_t first, std::size_t count,
                    const std::uint8_t* packed, std::size_t rows, const PanelTarget* targets, float* scratch);
};

OVSPEC_DECLARE_KERNELS(LinearKernels, linear_kernels)

} // namespace ovspec

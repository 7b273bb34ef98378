// Products of rows with single channels of a gated MLP. Raw pointers only, no OpenVINO type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kernel_tables.hpp"
#include "common/weight_format.hpp"

namespace ovspec {

enum class Activation { silu, gelu_tanh, gelu_erf };

// Weights of all channels, each contiguous; w = (data - zero_point) * scale.
//   gate and up: `size` inputs of a channel; scales and zero points `[channels, groups]`
//   down: `size` outputs of a channel; scales and zero points `[groups, size]`, groups of channels
struct ChannelMatrix {
    WeightFormat format;
    const std::uint8_t* data;        // `[channels, row_bytes]`
    const std::uint8_t* scales;      // f16
    const std::uint8_t* zero_points; // u8
    std::size_t channels;
    std::size_t size;
    std::size_t groups;
    std::size_t row_bytes;
    // Bits of the integers to which rows are rounded for integer weights: 16, or 8 with a scale for every 32
    // values. A kernel may be more exact; those of floats and of AMX tiles are.
    std::size_t row_bits = 16;
};

// Kept channels of one group of down's weights: entries begin to end of ChannelView::channels.
struct ChannelRun {
    std::size_t group;
    std::size_t begin;
    std::size_t end;
};

// Channels in ascending order. Every run is padded to a multiple of four with entries whose values are zero,
// see ChannelSet::padding.
struct ChannelView {
    const std::uint32_t* channels;
    std::size_t count;
    const ChannelRun* runs;
    std::size_t run_count;
};

// Channels of one task: the first `count`. Up to `known` of them may be prefetched.
struct ChannelSpan {
    const std::uint32_t* channels;
    std::size_t count;
    std::size_t known;
};

constexpr std::size_t run_step = 4;
// Outputs of `down` that are summed at once.
constexpr std::size_t down_width = 128;
// Most outputs of one task: neighbouring cache lines, which the processor fetches together.
constexpr std::size_t task_width = 4 * down_width;

// Rows that are packed together.
constexpr std::size_t row_block = 8;

struct GatedMlpKernels {
    // Bytes of a packed block of rows of `matrix.size` values, a multiple of 64.
    std::size_t (*packed_bytes)(const ChannelMatrix& matrix);

    // Brings up to row_block rows into the form that `project` reads, in `packed_bytes` bytes at a multiple
    // of 64.
    void (*pack)(const ChannelMatrix& matrix, const float* const* values, std::size_t rows,
                 std::uint8_t* packed);

    // Floats of memory that `project` needs.
    std::size_t (*scratch_floats)(const ChannelMatrix& matrix);

    // y[r * stride + n] = row r . channel n of `span`; `packed` holds consecutive blocks.
    void (*project)(const ChannelMatrix& matrix, const ChannelSpan& span, const std::uint8_t* packed,
                    std::size_t rows, float* y, std::size_t stride, float* scratch);

    // values[i] = activation(values[i])
    void (*activate)(Activation activation, float* values, std::size_t count);

    // values[i] *= factors[i]
    void (*multiply)(float* values, const float* factors, std::size_t count);

    // scores[i] = max(scores[i], |values[i]|); a NaN counts as nothing
    void (*add_largest)(float* scores, const float* values, std::size_t count);

    // Bytes of one packed row of `view.count` values, a multiple of 64.
    std::size_t (*packed_inner_bytes)(const ChannelMatrix& matrix, const ChannelView& view);

    // As `pack`, for `down`; a value per entry of the view.
    void (*pack_inner)(const ChannelMatrix& matrix, const ChannelView& view, const float* values,
                       std::uint8_t* packed);

    // y[r * stride + h] for the outputs first <= h < first + count: the sum over the channels of row r.
    // `first` is a multiple of down_width, `count` at most task_width.
    void (*down)(const ChannelMatrix& matrix, const ChannelView& view, std::size_t first, std::size_t count,
                 const std::uint8_t* const* packed_rows, std::size_t rows, float* y, std::size_t stride);
};

OVSPEC_DECLARE_KERNELS(GatedMlpKernels, gated_mlp_kernels)

} // namespace ovspec

// Products of rows with the weights of one expert. Raw pointers only, no OpenVINO type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kernel_tables.hpp"
#include "common/weight_format.hpp"

namespace ovspec {

// One projection of all experts: `out` neurons of `in` weights each, w = (data - zero_point) * scale.
struct ExpertMatrix {
    WeightFormat format;
    const std::uint8_t* data;        // `[experts, out, row_bytes]`
    const std::uint8_t* scales;      // f16 `[experts, out, groups]`; none for f32 and f16
    const std::uint8_t* zero_points; // u8, as scales
    const float* bias;               // `[experts, out]`, or null
    std::size_t out;
    std::size_t in;
    std::size_t groups;
    std::size_t row_bytes;
};

// Largest number of groups in a row of u4 weights.
constexpr std::size_t max_groups = 512;

// How gate and up are joined.
struct GatedActivation {
    // 0: silu(gate) * up. Above 0, as GPT-OSS has it: gates of at most `limit`, ups within -limit to limit.
    float limit = 0.0f;
    float alpha = 1.0f; // by which GPT-OSS multiplies a gate inside the sigmoid
};

struct MoeKernels {
    // Bytes of one packed row of `in` values for weights of this format, a multiple of 64.
    std::size_t (*packed_bytes)(WeightFormat format, std::size_t in);

    // Brings `in` values into the form that `product` reads, in `packed_bytes` bytes at a multiple of 64.
    void (*pack)(WeightFormat format, const float* values, std::size_t in, std::uint8_t* packed);

    // y[r * stride + n] = row r . neuron first + n of the expert, for `count` neurons.
    void (*product)(const ExpertMatrix& matrix, std::size_t expert, std::size_t first, std::size_t count,
                    const std::uint8_t* const* packed_rows, std::size_t rows, float* y, std::size_t stride);

    // gate[i] = silu(gate[i]) * up[i]
    void (*swiglu)(float* gate, const float* up, std::size_t count);

    // gate[i] = g * sigmoid(alpha * g) * (u + 1), g and u within the activation's limit
    void (*clamped_swiglu)(float* gate, const float* up, const GatedActivation& activation,
                           std::size_t count);

    // to[i] += from[i]
    void (*add)(float* to, const float* from, std::size_t count);

    // to[i] += share * from[i]
    void (*add_scaled)(float* to, const float* from, float share, std::size_t count);
};

OVSPEC_DECLARE_KERNELS(MoeKernels, moe_kernels)

} // namespace ovspec

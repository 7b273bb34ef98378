// The small steps between products and attention, a row at a time. Raw pointers only, no OpenVINO type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kernel_tables.hpp"
#include "common/weight_format.hpp"

namespace ovspec {

struct StepKernels {
    // y[i] = x[i] / sqrt(mean of x^2 + epsilon) * weights[i], for every part of `size` values of a row.
    void (*rms)(const float* x, const float* weights, std::size_t width, std::size_t size, float epsilon,
                float* y);

    // y[i] = (x[i] - mean) / sqrt(variance + epsilon) * weights[i], for every part of `size` values of a row.
    void (*layer_norm)(const float* x, const float* weights, std::size_t width, std::size_t size,
                       float epsilon, float* y);

    // y = x * cos + (x turned by half) * sin for every part of `size` values of a row; cos and sin hold
    // `angles` values: `size`, or half of it where both halves of a part have the same.
    void (*rope)(const float* x, const float* cos, const float* sin, std::size_t width, std::size_t size,
                 std::size_t angles, float* y);

    // The same where two neighbours turn together, not a value of the first half with one of the second;
    // cos and sin `[size]`.
    void (*rope_pairs)(const float* x, const float* cos, const float* sin, std::size_t width,
                       std::size_t size, std::size_t angles, float* y);

    // y = e^x / its sum
    void (*softmax)(const float* x, std::size_t width, float* y);

    // y = x / its sum
    void (*normalize)(const float* x, std::size_t width, float* y);

    // y = a + b
    void (*add)(const float* a, const float* b, std::size_t width, float* y);

    // y = a * b
    void (*multiply)(const float* a, const float* b, std::size_t width, float* y);

    // y = x * factor
    void (*scale)(const float* x, float factor, std::size_t width, float* y);

    void (*silu)(const float* x, std::size_t width, float* y);
    void (*gelu_tanh)(const float* x, std::size_t width, float* y);
    void (*gelu_erf)(const float* x, std::size_t width, float* y);
    void (*relu)(const float* x, std::size_t width, float* y);
    void (*sigmoid)(const float* x, std::size_t width, float* y);
    void (*tanh)(const float* x, std::size_t width, float* y);

    // y = silu(a) * b
    void (*silu_multiply)(const float* a, const float* b, std::size_t width, float* y);

    // y = numbers of 16 or 32 bits.
    void (*numbers)(const std::uint8_t* x, WeightFormat format, std::size_t width, float* y);

    // y = (integer - zero point) * scale. Each of `groups` equal parts has a scale f16 and a zero point; x is
    // exclusive or `sign`.
    void (*integers)(const std::uint8_t* x, std::uint8_t sign, const std::uint16_t* scales,
                     const std::uint8_t* zero_points, std::size_t groups, std::size_t width, float* y);

    // Where the largest value stands, the first among equals; -1 where there is NaN, or it is not finite.
    std::int32_t (*largest)(const float* x, std::size_t width);

    // Sum of e^((x - peak) / temperature) over the values above one; none is above `peak`.
    double (*mass_above)(const float* x, std::size_t width, float above, float peak, float temperature);
};

OVSPEC_DECLARE_KERNELS(StepKernels, step_kernels)

} // namespace ovspec

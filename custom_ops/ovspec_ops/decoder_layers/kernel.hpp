// The small steps between products and attention, a row at a time. Raw pointers only, no OpenVINO type.
#pragma once

#include <cstddef>

#include "common/kernel_tables.hpp"

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
};

OVSPEC_DECLARE_KERNELS(StepKernels, step_kernels)

} // namespace ovspec

// The small steps between products and attention, a row at a time. Raw pointers only, no OpenVINO type.
#pragma once

#include <cstddef>

#include "common/kernel_tables.hpp"

namespace ovspec {

struct StepKernels {
    // y[i] = x[i] / sqrt(mean of x^2 + epsilon) * weights[i], for every part of `size` values of a row.
    void (*rms)(const float* x, const float* weights, std::size_t width, std::size_t size, float epsilon,
                float* y);

    // y = x * cos + (x turned by half) * sin for every part of `size` values of a row; cos and sin `[size]`.
    void (*rope)(const float* x, const float* cos, const float* sin, std::size_t width, std::size_t size,
                 float* y);

    // y = a + b
    void (*add)(const float* a, const float* b, std::size_t width, float* y);

    // y = silu(a) * b
    void (*silu_multiply)(const float* a, const float* b, std::size_t width, float* y);
};

OVSPEC_DECLARE_KERNELS(StepKernels, step_kernels)

} // namespace ovspec

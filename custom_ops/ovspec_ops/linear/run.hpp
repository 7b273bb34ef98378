// One call of Linear, split over the caller's threads.
#pragma once

#include <cstddef>
#include <vector>

#include "linear/kernel.hpp"

namespace ovspec {

// One output `[rows, size]`, with panels of its own.
struct LinearOutput {
    float* y;
    std::size_t size;
};

// x `[rows, weights.inputs]` times the panels of all outputs, in their order.
void run_linear(const LinearWeights& weights, const float* x, std::size_t rows,
                const std::vector<LinearOutput>& outputs);

} // namespace ovspec

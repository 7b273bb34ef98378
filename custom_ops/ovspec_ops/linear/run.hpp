// One call of Linear, split over the caller's threads.
#pragma once

#include <cstddef>

#include "linear/adapters.hpp"
#include "linear/kernel.hpp"

namespace ovspec {

// One output `[rows, size]`, with panels of its own.
struct LinearOutput {
    float* y;
    std::size_t size;
};

constexpr std::size_t most_outputs = 16;

// x `[rows, weights.inputs]` times the panels of `count` outputs, in their order, and what `adapters` add.
void run_linear(const LinearWeights& weights, const float* x, std::size_t rows, const LinearOutput* outputs,
                std::size_t count, const PassAdapters* adapters = nullptr);

} // namespace ovspec

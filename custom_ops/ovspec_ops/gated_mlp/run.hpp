// One pass of rows through a gated MLP.
#pragma once

#include "gated_mlp/channels.hpp"
#include "gated_mlp/kernel.hpp"

namespace ovspec {

struct GatedMlpWeights {
    ChannelMatrix gate, up, down;
};

struct GatedMlpCall {
    GatedMlpWeights weights;
    Activation activation;
    float limit;                        // channels that limited rows keep; below zero: all
    const float* row_weights = nullptr; // `[rows]`, 0 for rows that take all channels; none: all are limited
    const float* x;                     // `[rows, size]`
    const float* gates = nullptr;       // `[rows, channels]`, not yet activated; none: of weights.gate
    float* y;
    std::size_t rows;
};

// Channels whose up and down weights were read.
std::size_t run_gated_mlp(const GatedMlpCall& call);

} // namespace ovspec

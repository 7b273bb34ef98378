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
    ChannelRule rule;
    bool mean;                           // scores are means over the rows, else maxima
    float limit;                         // of the rule; below zero: all channels
    const float* row_weights = nullptr;  // `[rows]`, 0 for rows that take all channels; none: all are 1
    const std::int32_t* order = nullptr; // `[channels]`, of rule fixed
    const float* x;                      // `[rows, size]`
    const float* gates = nullptr;        // `[rows, channels]`, not yet activated; none: of weights.gate
    float* y;
    std::size_t rows;
};

// Channels whose up and down weights were read.
std::size_t run_gated_mlp(const GatedMlpCall& call);

} // namespace ovspec

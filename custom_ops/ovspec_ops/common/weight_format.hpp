// How a projection's weights are stored.
#pragma once

namespace ovspec {

enum class WeightFormat {
    f32,
    f16,
    bf16,
    u8, // one scale and zero point per neuron
    u4, // two weights a byte; one scale and zero point per group
};

} // namespace ovspec

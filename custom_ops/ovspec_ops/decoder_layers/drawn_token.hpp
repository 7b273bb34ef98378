// The token that a sequence draws from logits, with the random numbers of its positions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "decoder_layers/kernel.hpp"

namespace ovspec {

// How a sequence draws: a row of the input `sampling`.
struct Sampling {
    std::uint64_t key;     // of its random numbers
    std::int32_t position; // of the first token that is drawn
    std::int32_t top_k;    // 0: all
    float temperature;     // 0: the largest logit is taken
    float top_p, min_p;
    std::int32_t unused;

    // Throws std::invalid_argument where a number is none that can be drawn with.
    void check() const;
};

// The token x with the largest log p(x) - log E(x). E are the exponentials of the position `run` behind the
// first, p follows from the logits by top_k, temperature, min_p and top_p. -1 where a logit is NaN, or the
// largest is infinite.
std::int32_t drawn_token(const float* logits, std::size_t width, const Sampling& sampling, std::int64_t run,
                         const StepKernels& kernels);

} // namespace ovspec

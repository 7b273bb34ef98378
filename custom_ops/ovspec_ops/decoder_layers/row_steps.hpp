// The steps that compute each row by itself: norms, rotations, sums, products and activations.
#pragma once

#include "decoder_layers/steps.hpp"

namespace ovspec {

// Nothing where the step is none of them.
Action row_step(const ProgramText& program, const StepText& step);

} // namespace ovspec

// The steps that are operations of their own too, and compute as these.
#pragma once

#include "decoder_layers/steps.hpp"

namespace ovspec {

// Nothing where the step is none of them.
Action operation_step(const ProgramText& program, const StepText& step);

} // namespace ovspec

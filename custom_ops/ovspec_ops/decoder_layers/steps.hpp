// The steps of a program, ready to run.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <openvino/runtime/tensor.hpp>

#include "decoder_layers/program.hpp"

namespace ovspec {

// One pass of rows through the steps. A program that drafts runs once for each of its tokens; what it has
// then is that of one run.
struct LayersPass {
    struct Span {
        const std::uint8_t* data;
        std::size_t size;
    };

    std::size_t rows;                // those that `take` has chosen, behind it
    std::vector<float*> at;          // of every RowsOf; `[rows, width]`
    std::vector<ov::Tensor*> tables; // of every TableOf
    ov::TensorVector inputs;
    std::vector<Span> spans; // of `inputs`: asking a tensor for them takes as long as a small step
    std::size_t run = 0;     // runs before this one
};

using Action = std::function<void(LayersPass&)>;

// Throws std::invalid_argument where a step is not known, or its line does not fit it.
Action action_of(const ProgramText& program, const StepText& step);

} // namespace ovspec

// A program that drafts tokens: from token ids to rows, from logits to the next ids, and again.
#pragma once

#include <cstdint>
#include <vector>

#include "decoder_layers/steps.hpp"

namespace ovspec {

// Nothing where the step is none of them.
Action draft_step(const ProgramText& program, const StepText& step);

// What differs between the runs of a program that drafts, which has a step `choose`.
struct DraftInputs {
    struct Rows {
        std::size_t index, width; // of RowsOf
    };

    bool drafts = false;
    std::size_t plan = 0, ids = 0, slots = 0, tables = 0; // inputs
    std::size_t tokens = 0;                               // of TableOf
    std::vector<Rows> rows;                               // that are inputs

    explicit DraftInputs(const ProgramText& program);
};

// The runs of a pass: one, or of a draft one for each token. Inputs hold the rows of all runs one behind the
// other: those of the pass, then one behind each of the first sequences that still drafts.
class Runs {
public:
    Runs(const DraftInputs& inputs, LayersPass& pass);

    // Gives the pass what its next run reads; whether there is one.
    bool next();

private:
    void give_tokens(std::size_t rows);
    void give_tables(std::size_t rows);

    const DraftInputs& inputs_;
    LayersPass& pass_;
    const std::size_t total_; // rows of all runs
    std::size_t begun_ = 0;   // runs
    std::size_t first_ = 0;   // row of the inputs with which the run begins
    std::size_t own_ = 0;     // rows of the run
    ov::Tensor plan_, slots_, first_tables_;
    std::vector<std::int32_t> tables_;
};

} // namespace ovspec

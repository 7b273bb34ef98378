#include "decoder_layers/draft_steps.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/isa.hpp"
#include "common/weight_format.hpp"
#include "decoder_layers/drawn_token.hpp"
#include "decoder_layers/kernel.hpp"
#include "decoder_layers/step_operands.hpp"

namespace ovspec {
namespace {

// An input of integers.
const std::int32_t* integers_of(const LayersPass& pass, std::size_t input) {
    const ov::Tensor& tensor = pass.inputs[input];
    if (tensor.get_element_type() != ov::element::i32)
        fail(layers_op, "input ", input, " is of type ", tensor.get_element_type(), ", expected i32");
    return tensor.get_size() ? tensor.data<const std::int32_t>() : nullptr;
}

// How an embedding is stored.
struct StoredRows {
    WeightFormat numbers;
    std::size_t bytes; // of a value
    std::uint8_t sign; // what makes an integer with a sign one without, by exclusive or
};

StoredRows stored_rows(const StepText& step) {
    return choice_of<StoredRows>(layers_op, "format", step.word("format"),
                                 {{"f32", {WeightFormat::f32, 4, 0}},
                                  {"f16", {WeightFormat::f16, 2, 0}},
                                  {"bf16", {WeightFormat::bf16, 2, 0}},
                                  {"u8", {WeightFormat::u8, 1, 0}},
                                  {"i8", {WeightFormat::u8, 1, 0x80}}});
}

// The row of each token; zeros where there is none (-1).
Action embedding(const ProgramText& program, const StepText& step) {
    const StoredRows stored = stored_rows(step);
    const bool integers = stored.numbers == WeightFormat::u8;
    const Operands of(program, step, integers ? 4 : 2, 1);
    const std::size_t ids = of.input(0), table = of.input(1), y = of.out(0), width = of.out_width(0);
    const std::int64_t named = step.whole("ids"), most = std::numeric_limits<std::int32_t>::max();
    if (named < 1 || named > most)
        fail(layers_op, "the line '", step.line, "' has ", named, " ids, expected 1 to ", most);
    const auto count = static_cast<std::size_t>(named);
    const auto groups = static_cast<std::size_t>(integers ? step.whole("groups") : 1);
    if (groups == 0 || width % groups != 0)
        fail(layers_op, "the line '", step.line, "' has ", groups, " groups in rows of ", width);
    WeightsOf scales{}, zero_points{};
    if (integers) {
        scales = of.weights(2, count * groups * sizeof(std::uint16_t));
        zero_points = of.weights(3, count * groups);
    }
    return [=](LayersPass& pass) {
        const WeightsOf rows{table, 0, count * width * stored.bytes};
        const std::uint8_t* data = rows.in(pass);
        const auto* factors = integers ? reinterpret_cast<const std::uint16_t*>(scales.in(pass)) : nullptr;
        const std::uint8_t* zeros = integers ? zero_points.in(pass) : nullptr;
        const std::size_t given = pass.inputs[ids].get_size();
        const std::int32_t* tokens = integers_of(pass, ids);
        if (given != pass.rows)
            fail(layers_op, "input ", ids, " holds ", given, " ids, expected one for each of ", pass.rows,
                 " rows");
        const StepKernels& kernels = OVSPEC_KERNELS(step_kernels);
        each_row(pass, width, [&](std::size_t r) {
            const std::int32_t id = tokens[r];
            float* to = pass.at[y] + r * width;
            if (id == -1)
                return std::fill_n(to, width, 0.0f), void();
            if (id < 0 || static_cast<std::size_t>(id) >= count)
                fail(layers_op, "token ", id, " of row ", r, " is none of the ", count, " of the embedding");
            const auto row = static_cast<std::size_t>(id);
            const std::uint8_t* from = data + row * width * stored.bytes;
            if (integers)
                kernels.integers(from, stored.sign, factors + row * groups, zeros + row * groups, groups,
                                 width, to);
            else
                kernels.numbers(from, stored.numbers, width, to);
        });
    };
}

// The rows that an input names; those of a run behind the first are chosen already. The steps behind it
// compute no others.
Action take(const ProgramText& program, const StepText& step) {
    const Operands of(program, step, 2, 1);
    const std::size_t x = of.rows(0), indices = of.input(1), y = of.out(0), width = of.width(0);
    of.same_width(width, of.out_width(0));
    return [=](LayersPass& pass) {
        const std::int32_t* named = integers_of(pass, indices);
        const std::size_t rows = pass.run == 0 ? pass.inputs[indices].get_size() : pass.rows;
        for (std::size_t r = 0; r < rows; r++) {
            const std::int32_t from = pass.run == 0 ? named[r] : static_cast<std::int32_t>(r);
            if (from < 0 || static_cast<std::size_t>(from) >= pass.rows)
                fail(layers_op, "row ", from, " is taken of the ", pass.rows, " of a pass");
            std::copy_n(pass.at[x] + static_cast<std::size_t>(from) * width, width, pass.at[y] + r * width);
        }
        pass.rows = rows;
    };
}

// Numbers of a draft plan, i32: ids from this one on are not chosen, 0: none is; then the rows of each run.
struct Plan {
    const std::int32_t* numbers;
    std::size_t runs;

    static Plan of(const ov::Tensor& plan) {
        const std::size_t size = plan.get_size();
        if (plan.get_element_type() != ov::element::i32 || size < 2)
            fail(layers_op, "a draft plan holds ", size, " numbers of type ", plan.get_element_type(),
                 ", expected 2 or more of i32");
        const Plan found{plan.data<const std::int32_t>(), size - 1};
        for (std::size_t i = 0; i < size; i++)
            if (found.numbers[i] < 0)
                fail(layers_op, "number ", i, " of a draft plan is ", found.numbers[i],
                     ", expected 0 or more");
        return found;
    }
    std::size_t most_ids() const { return static_cast<std::size_t>(numbers[0]); }
    std::size_t rows(std::size_t run) const { return static_cast<std::size_t>(numbers[1 + run]); }
};

// How each row is drawn: 32 bytes each, or none where all take the largest value.
std::vector<Sampling> samplings_of(const LayersPass& pass, std::size_t input) {
    const LayersPass::Span& given = pass.spans[input];
    std::vector<Sampling> found(given.size / sizeof(Sampling));
    if (given.size % sizeof(Sampling) != 0 || (!found.empty() && found.size() < pass.rows))
        fail(layers_op, "input ", input, " holds ", given.size, " bytes, expected none, or ",
             sizeof(Sampling), " for each of ", pass.rows, " rows");
    if (!found.empty())
        std::memcpy(found.data(), given.data, given.size);
    for (const Sampling& of : found)
        of.check();
    return found;
}

// The token of each row, in a row of the table for each run; -1 where there is none.
Action choose(const ProgramText& program, const StepText& step) {
    const Operands of(program, step, 5, 1);
    const std::size_t logits = of.rows(0), plan = of.input(1), sampling = of.input(2);
    const std::size_t tokens = of.out_table(0), width = of.width(0);
    return [=](LayersPass& pass) {
        const Plan planned = Plan::of(pass.inputs[plan]);
        const std::vector<Sampling> samplings = samplings_of(pass, sampling);
        ov::Tensor& table = *pass.tables[tokens];
        if (pass.run == 0) {
            reshape(table, {planned.runs, pass.rows});
            std::fill_n(table.data<std::int32_t>(), table.get_size(), -1);
        }
        const std::size_t most = std::min(planned.most_ids(), width);
        if (most == 0)
            return;
        std::int32_t* to = table.data<std::int32_t>() + pass.run * table.get_shape()[1];
        const StepKernels& kernels = OVSPEC_KERNELS(step_kernels);
        each_row(pass, width, [&](std::size_t r) {
            const float* row = pass.at[logits] + r * width;
            to[r] = samplings.empty()
                        ? kernels.largest(row, most)
                        : drawn_token(row, most, samplings[r], static_cast<std::int64_t>(pass.run), kernels);
        });
    };
}

ov::Tensor numbers_at(const std::int32_t* numbers, std::size_t count) {
    return {ov::element::i32, ov::Shape{count}, const_cast<std::int32_t*>(numbers)};
}

} // namespace

Action draft_step(const ProgramText& program, const StepText& step) {
    if (step.name == "embedding")
        return embedding(program, step);
    if (step.name == "take")
        return take(program, step);
    if (step.name == "choose")
        return choose(program, step);
    return nullptr;
}

DraftInputs::DraftInputs(const ProgramText& program) {
    const StepText *choose = program.step("choose"), *embedding = program.step("embedding");
    if (!choose)
        return;
    if (!embedding)
        fail(layers_op, "the line '", choose->line, "' comes without a step embedding");
    const Operands of(program, *choose, 5, 1);
    if (!program.rows[of.rows(0)].taken)
        fail(layers_op, "the line '", choose->line, "' reads other rows than those that take has chosen");
    for (const StepText& step : program.steps)
        if (step.name == "choose" && (&step != choose || step.settings.count("if")))
            fail(layers_op, "the line '", step.line, "' is a second one, or may be left out");
    drafts = true;
    plan = of.input(1);
    slots = of.input(3);
    tables = of.input(4);
    ids = Operands(program, *embedding, std::max<std::size_t>(embedding->operands.size(), 2), 1).input(0);
    tokens = of.out_table(0);
    for (std::size_t i = 0; i < program.rows.size(); i++) {
        if (program.rows[i].input >= 0)
            rows.push_back({i, program.rows[i].width});
        if (program.rows[i].output >= 0 && !program.rows[i].taken)
            fail(layers_op, "'", program.rows[i].name, "' is an output of a program that drafts, but not of ",
                 "the rows that take has chosen");
    }
}

Runs::Runs(const DraftInputs& inputs, LayersPass& pass) : inputs_(inputs), pass_(pass), total_(pass.rows) {
    if (inputs.drafts) {
        plan_ = pass.inputs[inputs.plan];
        slots_ = pass.inputs[inputs.slots];
        first_tables_ = pass.inputs[inputs.tables];
        if (slots_.get_size() != total_)
            fail(layers_op, "input ", inputs.slots, " holds ", slots_.get_size(),
                 " slots, expected one for each of ", total_, " rows");
    }
}

bool Runs::next() {
    if (!inputs_.drafts)
        return begun_++ == 0;
    const Plan plan = Plan::of(plan_);
    if (begun_ == plan.runs)
        return false;
    const std::size_t rows = plan.rows(begun_), before = own_;
    first_ += own_;
    if (rows > total_ - first_ || (begun_ + 1 == plan.runs && rows != total_ - first_))
        fail(layers_op, "a draft plan has ", rows, " rows in run ", begun_, " behind ", first_,
             " others, the inputs hold ", total_);
    own_ = rows;
    for (const DraftInputs::Rows& from : inputs_.rows)
        pass_.at[from.index] += before * from.width;
    if (rows != total_)
        pass_.inputs[inputs_.slots] = numbers_at(slots_.data<const std::int32_t>() + first_, rows);
    if (begun_ > 0) {
        give_tokens(rows);
        give_tables(rows);
    }
    pass_.rows = rows;
    pass_.run = begun_++;
    return true;
}

// Those that the run before has chosen.
void Runs::give_tokens(std::size_t rows) {
    const ov::Tensor& chosen = *pass_.tables[inputs_.tokens];
    const std::size_t sequences = chosen.get_shape()[1];
    if (rows > pass_.rows)
        fail(layers_op, "a draft plan has ", rows, " rows in run ", begun_, ", behind one of ", pass_.rows);
    const std::int32_t* last = chosen.data<const std::int32_t>() + (begun_ - 1) * sequences;
    pass_.inputs[inputs_.ids] = numbers_at(last, rows);
}

// Of one row behind each of the first sequences: those of the first run, with other numbers of rows and
// tokens.
void Runs::give_tables(std::size_t rows) {
    const auto [first, parents] = PassTables::view(layers_op, first_tables_, Plan::of(plan_).rows(0));
    first.check(0);
    if (first.count < rows || parents)
        fail(layers_op, "a draft plan has ", rows, " rows in run ", begun_, ", the pass has ", first.count,
             " sequences", parents ? " of trees" : "");
    const auto blocks = first.block_indices_begins[rows];
    tables_.assign({static_cast<std::int32_t>(rows), 0});
    for (std::size_t s = 0; s <= rows; s++)
        tables_.push_back(static_cast<std::int32_t>(s));
    for (std::size_t s = 0; s < rows; s++)
        tables_.push_back(first.past_lens[s] + static_cast<std::int32_t>(first.row_count(s) + begun_ - 1));
    tables_.insert(tables_.end(), first.block_indices_begins, first.block_indices_begins + rows + 1);
    tables_.insert(tables_.end(), first.block_indices, first.block_indices + blocks);
    pass_.inputs[inputs_.tables] = numbers_at(tables_.data(), tables_.size());
}

} // namespace ovspec

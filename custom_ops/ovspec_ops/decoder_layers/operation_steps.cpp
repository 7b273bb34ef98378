#include "decoder_layers/operation_steps.hpp"

#include <memory>

#include "block_select/op.hpp"
#include "common/tensors.hpp"
#include "decoder_layers/step_operands.hpp"
#include "gated_mlp/op.hpp"
#include "key_summary/op.hpp"
#include "moe/budget_op.hpp"
#include "moe/op.hpp"

namespace ovspec {
namespace {

// Gives an operation's attributes the values of a line's settings.
class Settings : public ov::AttributeVisitor {
public:
    explicit Settings(const StepText& step) : step_(step) {}

    void on_adapter(const std::string& name, ov::ValueAccessor<void>&) override {
        fail(layers_op, "attribute ", name, " of step ", step_.name, " is of a type that no setting has");
    }
    void on_adapter(const std::string& name, ov::ValueAccessor<std::string>& adapter) override {
        adapter.set(step_.word(name.c_str()));
    }
    void on_adapter(const std::string& name, ov::ValueAccessor<std::int64_t>& adapter) override {
        adapter.set(step_.whole(name.c_str()));
    }
    void on_adapter(const std::string& name, ov::ValueAccessor<double>& adapter) override {
        adapter.set(step_.number(name.c_str()));
    }

private:
    const StepText& step_;
};

template <class Op> std::shared_ptr<Op> node_of(const StepText& step) {
    const auto node = std::make_shared<Op>();
    Settings settings(step);
    node->attributes().visit(settings);
    node->check_attributes();
    return node;
}

Action key_summary(const ProgramText& program, const StepText& step) {
    const Operands of(program, step, 5, 1);
    const CacheOf keys = of.cache(0, "k_size");
    const SummariesOf summaries = of.summaries(2);
    const std::size_t tables = of.input(3), summarised = of.input(4), token = of.out_table(0);
    const bool returns_token = program.tables[token].output >= 0; // the order of the lines says the rest
    const auto node = node_of<KeySummary>(step);
    return [=](const LayersPass& pass) {
        if (returns_token) {
            pass.tables[token]->set_shape({1});
            *pass.tables[token]->data<std::int32_t>() = 0;
        }
        const CacheView cache = keys.in(pass, "key_cache");
        if (summaries.blocks(pass) < cache.blocks)
            fail(layers_op, "the summaries of a step key_summary are of ", summaries.blocks(pass),
                 " blocks, its cache of ", cache.blocks);
        node->summarise(
            {pass.rows, cache, summaries.in(pass), &pass.inputs[tables], &pass.inputs[summarised]});
    };
}

Action block_select(const ProgramText& program, const StepText& step) {
    const Operands of(program, step, 6, 2);
    const std::size_t query = of.rows(0), width = of.width(0);
    const SummariesOf summaries = of.summaries(1);
    const std::size_t tables = of.input(3), budgets = of.input(4), coverage = of.input(5);
    const std::size_t blocks = of.out_table(0), counts = of.out_table(1);
    const auto node = node_of<BlockSelect>(step);
    return [=](const LayersPass& pass) {
        node->select({pass.rows, width, pass.at[query], summaries.in(pass), summaries.blocks(pass),
                      &pass.inputs[tables], &pass.inputs[budgets], &pass.inputs[coverage],
                      pass.tables[blocks], pass.tables[counts]});
    };
}

// Operands and outputs as tensors, in the order in which the operation has its `inputs` and two outputs. Of
// these, number `rows` has the rows of the operand with this number, and the other one is a table.
template <class Op>
Action operation(const ProgramText& program, const StepText& step, std::size_t inputs, std::size_t rows) {
    const Operands of(program, step, inputs, 2);
    of.same_width(of.width(rows), of.out_width(rows));
    of.out_table(1 - rows);
    const auto node = node_of<Op>(step);
    std::vector<TensorOf> takes, makes;
    for (const Operand& operand : step.operands)
        takes.push_back(TensorOf::of(program, operand));
    for (const Operand& output : step.outputs)
        makes.push_back(TensorOf::of(program, output));
    return [=](const LayersPass& pass) {
        ov::TensorVector inputs, made;
        for (const TensorOf& of : takes)
            inputs.push_back(of.in(pass));
        for (const TensorOf& of : makes)
            made.push_back(of.in(pass));
        node->compute(made, inputs);
    };
}

} // namespace

Action operation_step(const ProgramText& program, const StepText& step) {
    if (step.name == "key_summary")
        return key_summary(program, step);
    if (step.name == "block_select")
        return block_select(program, step);
    if (step.name == "gated_mlp")
        return operation<GatedMLP>(program, step, 12, 0);
    if (step.name == "expert_budget")
        return operation<ExpertBudget>(program, step, 5, 1);
    if (step.name == "experts")
        return operation<SparseMoE>(program, step, step.operands.size() == 15 ? 15 : 12, 0);
    return nullptr;
}

} // namespace ovspec

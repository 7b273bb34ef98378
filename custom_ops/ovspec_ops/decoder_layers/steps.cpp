#include "decoder_layers/steps.hpp"

#include <algorithm>

#include "cache_write/op.hpp"
#include "common/tensors.hpp"
#include "decoder_layers/draft_steps.hpp"
#include "decoder_layers/operation_steps.hpp"
#include "decoder_layers/row_steps.hpp"
#include "decoder_layers/step_operands.hpp"
#include "linear/op.hpp"
#include "linear/run.hpp"
#include "verify_attention/op.hpp"

namespace ovspec {
namespace {

Action linear(const ProgramText& program, const StepText& step) {
    const bool adapts = step.operands.size() == 3;
    const Operands of(program, step, adapts ? 3 : 2, 0);
    const std::size_t x = of.rows(0);
    Linear node;
    LinearAttributes& a = node.attributes();
    a.format = step.word("format");
    a.groups = step.whole("groups");
    a.row_bits = step.whole("row_bits");
    std::vector<std::size_t> outputs;
    for (std::size_t i = 0; i < step.outputs.size(); i++) {
        outputs.push_back(of.out(i));
        a.sizes.push_back(static_cast<std::int64_t>(of.out_width(i)));
    }
    const LinearWeights described = node.describe(of.width(0));
    const WeightsOf weights = of.weights(1, node.panels() * described.panel_bytes());
    if (adapts)
        a.adapter_layers = step.wholes("adapter_layers");
    node.check_adapter_layers();
    const std::size_t adapters = adapts ? of.input(2) : 0;
    const auto sizes = a.sizes, layers = a.adapter_layers;
    return [=](const LayersPass& pass) {
        LinearWeights w = described;
        w.data = weights.in(pass);
        LinearOutput targets[most_outputs];
        for (std::size_t i = 0; i < outputs.size(); i++)
            targets[i] = {pass.at[outputs[i]], static_cast<std::size_t>(sizes[i])};
        if (!adapts)
            return run_linear(w, pass.at[x], pass.rows, targets, outputs.size());
        const LayersPass::Span& tables = pass.spans[adapters];
        if (tables.size != pass.rows * sizeof(std::uint64_t))
            fail(layers_op, "input ", adapters, " holds adapters of ", tables.size / sizeof(std::uint64_t),
                 " rows, expected ", pass.rows);
        const PassAdapters of_pass{tables.data, layers.data()};
        run_linear(w, pass.at[x], pass.rows, targets, outputs.size(), &of_pass);
    };
}

Action cache_write(const ProgramText& program, const StepText& step) {
    const Operands of(program, step, 5, 1);
    const std::size_t key = of.rows(0), value = of.rows(1), slots = of.input(4);
    const CacheOf keys = of.cache(2, "k_size"), values = of.cache(3, "v_size");
    of.same_width(of.width(0), keys.heads * keys.size);
    of.same_width(of.width(1), values.heads * values.size);
    const auto node = std::make_shared<CacheWrite>();
    return [=](const LayersPass& pass) {
        node->write(pass.at[key], pass.at[value], pass.rows, keys.in(pass, "key_cache"),
                    values.in(pass, "value_cache"), pass.inputs[slots]);
    };
}

Action attention(const ProgramText& program, const StepText& step) {
    const bool selects = step.operands.size() == 8;
    const Operands of(program, step, selects ? 8 : 5, 1);
    const std::size_t query = of.rows(0), y = of.out(0), width = of.width(0), tables = of.input(4);
    std::vector<TensorOf> selection; // blocks, their counts, and sinks
    for (std::size_t i = 5; i < step.operands.size(); i++)
        selection.push_back(TensorOf::of(program, of.operand(i)));
    for (const TensorOf& list : selection)
        if (list.kind == Operand::rows)
            fail(layers_op, "the line '", step.line, "' takes rows where a table is expected");
    if (selects && (selection[0].kind == Operand::nothing) != (selection[1].kind == Operand::nothing))
        fail(layers_op, "the line '", step.line, "' has selected blocks without counts, or the reverse");
    const CacheOf keys = of.cache(1, "k_size"), values = of.cache(2, "v_size");
    of.same_width(of.out_width(0), width / keys.size * values.size);
    const auto node = std::make_shared<VerifyAttention>();
    node->attributes() = {step.whole("kv_heads"),       step.whole("k_size"),
                          step.whole("v_size"),         step.number("scale"),
                          step.whole("sliding_window"), step.whole("past_window", 0),
                          step.whole("causal", 1) != 0};
    node->check_attributes();
    return [=](const LayersPass& pass) {
        AttentionCall call{};
        call.rows = pass.rows;
        call.width = width;
        call.query = pass.at[query];
        call.keys = keys.in(pass, "key_cache");
        call.values = values.in(pass, "value_cache");
        call.tables = &pass.inputs[tables];
        if (selects) {
            call.selected_blocks = selection[0].at(pass);
            call.selected_counts = selection[1].at(pass);
            call.sinks = selection[2].at(pass);
        }
        call.output = pass.at[y];
        node->attend(call);
    };
}

// Tables of one type and shape, one behind the other.
Action stack(const ProgramText& program, const StepText& step) {
    const Operands of(program, step, step.operands.size(), 1);
    std::vector<TensorOf> parts;
    for (const Operand& operand : step.operands)
        if (operand.kind == Operand::table || operand.kind == Operand::input)
            parts.push_back(TensorOf::of(program, operand));
    if (parts.empty() || parts.size() != step.operands.size())
        fail(layers_op, "the line '", step.line, "' joins what are no tables");
    const std::size_t out = of.out_table(0);
    return [=](const LayersPass& pass) {
        const ov::Tensor& first = *parts[0].at(pass);
        const std::size_t size = first.get_size();
        ov::Shape shape = first.get_shape();
        shape.insert(shape.begin(), parts.size());
        pass.tables[out]->set_shape(shape);
        if (size == 0)
            return; // of a pass in which nobody selects
        auto* to = pass.tables[out]->data<std::int32_t>();
        for (std::size_t i = 0; i < parts.size(); i++) {
            const ov::Tensor& part = *parts[i].at(pass);
            if (part.get_shape() != first.get_shape())
                fail(layers_op, "the line '", step.line, "' joins tables of shapes ", first.get_shape(),
                     " and ", part.get_shape());
            std::copy_n(part.data<const std::int32_t>(), size, to + i * size);
        }
    };
}

// Rows of the first operand. A pass that leaves the step out gets those of the second: see `left_out`.
Action either(const ProgramText& program, const StepText& step, std::size_t which) {
    const Operands of(program, step, 2, 1);
    step.word("if");
    const std::size_t y = of.out(0), width = of.out_width(0);
    of.same_width(of.width(0), width);
    of.same_width(of.width(1), width);
    const std::size_t x = of.rows(which);
    return [=](const LayersPass& pass) { std::copy_n(pass.at[x], pass.rows * width, pass.at[y]); };
}

// What a step does in a pass that leaves it out: it computes no rows, and its tables say so.
Action left_out(const ProgramText& program, const StepText& step, const Action& action) {
    if (step.name == "either")
        return either(program, step, 1);
    const auto is_table = [](const Operand& output) { return output.kind == Operand::table; };
    if (std::none_of(step.outputs.begin(), step.outputs.end(), is_table))
        return [](const LayersPass&) {};
    return [=](const LayersPass& pass) {
        LayersPass none = pass;
        none.rows = 0;
        action(none);
    };
}

Action known_action(const ProgramText& program, const StepText& step) {
    if (step.name == "linear")
        return linear(program, step);
    if (step.name == "cache_write")
        return cache_write(program, step);
    if (step.name == "attention")
        return attention(program, step);
    if (step.name == "stack")
        return stack(program, step);
    if (step.name == "either")
        return either(program, step, 0);
    if (Action found = row_step(program, step))
        return found;
    if (Action found = operation_step(program, step))
        return found;
    if (Action found = draft_step(program, step))
        return found;
    fail(layers_op, "step '", step.name, "' of the line '", step.line, "' is not known; update ovspec");
}

} // namespace

Action action_of(const ProgramText& program, const StepText& step) {
    const Action action = known_action(program, step);
    if (!step.settings.count("if"))
        return action;
    const std::size_t input = step.condition.index, place = step.condition.first;
    const Action none = left_out(program, step, action);
    return [=](LayersPass& pass) {
        const ov::Tensor& table = pass.inputs[input];
        if (table.get_element_type() != ov::element::i32 || table.get_size() <= place)
            fail(layers_op, "input ", input, " has ", table.get_size(), " values of type ",
                 table.get_element_type(), ", expected more than ", place, " of type i32");
        (table.data<const std::int32_t>()[place] ? action : none)(pass);
    };
}

} // namespace ovspec

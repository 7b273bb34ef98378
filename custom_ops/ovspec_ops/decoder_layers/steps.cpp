#include "decoder_layers/steps.hpp"

#include <algorithm>

#include "cache_write/op.hpp"
#include "common/fail.hpp"
#include "common/parallel.hpp"
#include "common/tensors.hpp"
#include "decoder_layers/kernel.hpp"
#include "linear/op.hpp"
#include "linear/run.hpp"
#include "verify_attention/op.hpp"

namespace ovspec {
namespace {

constexpr const char* op = "DecoderLayers";

// Weights in an input u8.
struct WeightsOf {
    std::size_t input, first, bytes;

    const std::uint8_t* in(const LayersPass& pass) const {
        const ov::Tensor& slab = pass.inputs[input];
        if (slab.get_byte_size() < bytes || slab.get_byte_size() - bytes < first)
            fail(op, "input ", input, " holds ", slab.get_byte_size(), " bytes, fewer than the ", bytes,
                 " of a step's weights from byte ", first, " on");
        return static_cast<const std::uint8_t*>(slab.data()) + first;
    }
};

// The operands of a step, checked as they are taken.
class Operands {
public:
    Operands(const ProgramText& program, const StepText& step, std::size_t inputs, std::size_t outputs)
        : program_(program), step_(step) {
        if (step.operands.size() != inputs || (outputs && step.outputs.size() != outputs))
            fail(op, "the line '", step.line, "' has ", step.operands.size(), " operands and ",
                 step.outputs.size(), " outputs, expected ", inputs, " and ", outputs);
    }

    std::size_t rows(std::size_t i) const { return of(i, Operand::rows, "rows"); }
    // Operand `i`, weights of so many bytes.
    WeightsOf weights(std::size_t i, std::size_t bytes) const {
        return {of(i, Operand::weights, "weights"), step_.operands[i].first, bytes};
    }
    std::size_t input(std::size_t i) const { return of(i, Operand::input, "an input"); }
    std::size_t width(std::size_t i) const { return program_.rows[rows(i)].width; }
    std::size_t out(std::size_t i) const { return step_.outputs[i]; }
    std::size_t out_width(std::size_t i) const { return program_.rows[out(i)].width; }

    void same_width(std::size_t a, std::size_t b) const {
        if (a != b)
            fail(op, "the line '", step_.line, "' joins rows of ", a, " and ", b, " values");
    }

private:
    std::size_t of(std::size_t i, Operand::Kind kind, const char* what) const {
        if (step_.operands[i].kind != kind)
            fail(op, "operand ", i, " of the line '", step_.line, "' is not ", what);
        return step_.operands[i].index;
    }

    const ProgramText& program_;
    const StepText& step_;
};

ov::Tensor rows_tensor(const LayersPass& pass, std::size_t index, std::size_t width) {
    return {ov::element::f32, ov::Shape{pass.rows, width}, pass.at[index]};
}

// each(row) for all rows of a pass.
template <class Each> void each_row(const LayersPass& pass, std::size_t width, const Each& each) {
    parallel_items(pass.rows, 4 * pass.rows * width, each);
}

Action rms(const ProgramText& program, const StepText& step) {
    const Operands of(program, step, 2, 1);
    const std::size_t x = of.rows(0), y = of.out(0), width = of.width(0);
    const auto size = static_cast<std::size_t>(step.whole("size"));
    const WeightsOf weights = of.weights(1, size * sizeof(float));
    const float epsilon = step.number("eps");
    of.same_width(width, of.out_width(0));
    if (size == 0 || width % size != 0)
        fail(op, "the line '", step.line, "' has parts of ", size, " values in rows of ", width);
    return [=](const LayersPass& pass) {
        const auto* factors = reinterpret_cast<const float*>(weights.in(pass));
        const StepKernels& kernels = OVSPEC_KERNELS(step_kernels);
        each_row(pass, width, [&](std::size_t r) {
            kernels.rms(pass.at[x] + r * width, factors, width, size, epsilon, pass.at[y] + r * width);
        });
    };
}

Action rope(const ProgramText& program, const StepText& step) {
    const Operands of(program, step, 3, 1);
    const std::size_t x = of.rows(0), cos = of.rows(1), sin = of.rows(2), y = of.out(0);
    const std::size_t width = of.width(0), size = of.width(1);
    of.same_width(size, of.width(2));
    of.same_width(width, of.out_width(0));
    if (size == 0 || size % 2 != 0 || width % size != 0)
        fail(op, "the line '", step.line, "' turns parts of ", size, " values in rows of ", width);
    return [=](const LayersPass& pass) {
        const StepKernels& kernels = OVSPEC_KERNELS(step_kernels);
        each_row(pass, width, [&](std::size_t r) {
            kernels.rope(pass.at[x] + r * width, pass.at[cos] + r * size, pass.at[sin] + r * size, width,
                         size, pass.at[y] + r * width);
        });
    };
}

Action of_two(const ProgramText& program, const StepText& step,
              void (*const StepKernels::*kernel)(const float*, const float*, std::size_t, float*)) {
    const Operands of(program, step, 2, 1);
    const std::size_t a = of.rows(0), b = of.rows(1), y = of.out(0), width = of.width(0);
    of.same_width(width, of.width(1));
    of.same_width(width, of.out_width(0));
    return [=](const LayersPass& pass) {
        const StepKernels& kernels = OVSPEC_KERNELS(step_kernels);
        each_row(pass, width, [&](std::size_t r) {
            (kernels.*kernel)(pass.at[a] + r * width, pass.at[b] + r * width, width, pass.at[y] + r * width);
        });
    };
}

Action linear(const ProgramText& program, const StepText& step) {
    const Operands of(program, step, 2, 0);
    const std::size_t x = of.rows(0);
    Linear node;
    LinearAttributes& a = node.attributes();
    a.format = step.word("format");
    a.groups = step.whole("groups");
    a.row_bits = step.whole("row_bits");
    for (const std::size_t output : step.outputs)
        a.sizes.push_back(static_cast<std::int64_t>(program.rows[output].width));
    const LinearWeights described = node.describe(of.width(0));
    const WeightsOf weights = of.weights(1, node.panels() * described.panel_bytes());
    const auto sizes = a.sizes;
    const auto outputs = step.outputs;
    return [=](const LayersPass& pass) {
        LinearWeights w = described;
        w.data = weights.in(pass);
        LinearOutput targets[most_outputs];
        for (std::size_t i = 0; i < outputs.size(); i++)
            targets[i] = {pass.at[outputs[i]], static_cast<std::size_t>(sizes[i])};
        run_linear(w, pass.at[x], pass.rows, targets, outputs.size());
    };
}

Action cache_write(const ProgramText& program, const StepText& step) {
    const Operands of(program, step, 5, 1);
    const std::size_t key = of.rows(0), value = of.rows(1), keys = of.input(2), values = of.input(3),
                      slots = of.input(4), key_width = of.width(0), value_width = of.width(1);
    const auto node = std::make_shared<CacheWrite>();
    node->attributes().kv_heads = step.whole("kv_heads");
    node->attributes().k_size = step.whole("k_size");
    node->attributes().v_size = step.whole("v_size");
    return [=](const LayersPass& pass) {
        ov::TensorVector outputs{ov::Tensor(ov::element::f32, {pass.rows, 0})};
        node->compute(outputs, {rows_tensor(pass, key, key_width), rows_tensor(pass, value, value_width),
                                pass.inputs[keys], pass.inputs[values], pass.inputs[slots]});
    };
}

Action attention(const ProgramText& program, const StepText& step) {
    const bool selects = step.operands.size() == 8;
    const Operands of(program, step, selects ? 8 : 5, 1);
    const std::size_t query = of.rows(0), keys = of.input(1), values = of.input(2), y = of.out(0),
                      query_width = of.width(0), width = of.out_width(0);
    std::vector<std::size_t> others; // tables, then selected blocks, their counts, and sinks
    for (std::size_t i = 4; i < step.operands.size(); i++)
        others.push_back(of.input(i));
    const auto node = std::make_shared<VerifyAttention>();
    node->attributes().kv_heads = step.whole("kv_heads");
    node->attributes().k_size = step.whole("k_size");
    node->attributes().v_size = step.whole("v_size");
    node->attributes().sliding_window = step.whole("sliding_window");
    node->attributes().scale = step.number("scale");
    return [=](const LayersPass& pass) {
        ov::TensorVector outputs{rows_tensor(pass, y, width)};
        ov::TensorVector inputs{rows_tensor(pass, query, query_width), pass.inputs[keys], pass.inputs[values],
                                ov::Tensor(ov::element::f32, {pass.rows, 0})};
        for (const std::size_t other : others)
            inputs.push_back(pass.inputs[other]);
        node->compute(outputs, inputs);
    };
}

} // namespace

Action action_of(const ProgramText& program, const StepText& step) {
    if (step.name == "rms")
        return rms(program, step);
    if (step.name == "linear")
        return linear(program, step);
    if (step.name == "rope")
        return rope(program, step);
    if (step.name == "cache_write")
        return cache_write(program, step);
    if (step.name == "attention")
        return attention(program, step);
    if (step.name == "add")
        return of_two(program, step, &StepKernels::add);
    if (step.name == "silu_multiply")
        return of_two(program, step, &StepKernels::silu_multiply);
    fail(op, "step '", step.name, "' of the line '", step.line, "' is not known; update ovspec");
}

} // namespace ovspec

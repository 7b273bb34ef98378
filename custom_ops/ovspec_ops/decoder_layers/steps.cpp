#include "decoder_layers/steps.hpp"

#include <algorithm>
#include <cstring>

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

// A cache: an input, or blocks at an address. A table holds numbers of 64 bits: first that of the blocks of
// each cache, then addresses. It is of bytes, because the plugin makes i32 of i64.
struct CacheOf {
    bool in_table;
    std::size_t input, entry, heads, size;
    bool bytes; // in a table: u8 by token, else f32

    CacheView in(const LayersPass& pass, const char* what) const {
        const ov::Tensor& tensor = pass.inputs[input];
        if (!in_table)
            return view_cache(op, what, tensor, static_cast<std::int64_t>(heads),
                              static_cast<std::int64_t>(size));
        if (tensor.get_byte_size() / sizeof(std::uint64_t) < entry + 2)
            fail(op, "input ", input, " holds ", tensor.get_byte_size(), " bytes, fewer than the ",
                 (entry + 2) * sizeof(std::uint64_t), " that cache ", entry, " needs");
        const auto number = [&](std::size_t i) {
            std::uint64_t value;
            std::memcpy(&value, static_cast<const std::uint8_t*>(tensor.data()) + i * sizeof(value),
                        sizeof(value));
            return value;
        };
        CacheView view;
        view.data = reinterpret_cast<const std::uint8_t*>(number(1 + entry));
        view.format = bytes ? CacheFormat::u8_token : CacheFormat::f32;
        view.blocks = view.data ? number(0) : 0;
        view.heads = heads;
        view.size = size;
        view.row_bytes = bytes ? size + 2 * sizeof(float) : size * sizeof(float);
        view.block_bytes = block_size * view.row_bytes;
        return view;
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
    // Operand `i`, the cache of heads of a size; of a table with the setting cache_type.
    CacheOf cache(std::size_t i, const char* size) const {
        const bool in_table = step_.operands[i].kind == Operand::entry;
        const std::size_t index = in_table ? step_.operands[i].index : input(i);
        check_kv_heads(op, step_.whole("kv_heads"));
        check_head_size(op, size, step_.whole(size));
        const std::string type = in_table ? step_.word("cache_type") : "u8";
        if (type != "u8" && type != "f32")
            fail(op, "cache_type is '", type, "' in the line '", step_.line, "', expected u8 or f32");
        return {in_table,
                index,
                step_.operands[i].first,
                static_cast<std::size_t>(step_.whole("kv_heads")),
                static_cast<std::size_t>(step_.whole(size)),
                type == "u8"};
    }
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
    const std::size_t query = of.rows(0), y = of.out(0), width = of.width(0), tables = of.input(4),
                      selected = selects ? of.input(5) : 0, counts = selects ? of.input(6) : 0,
                      sinks = selects ? of.input(7) : 0;
    const CacheOf keys = of.cache(1, "k_size"), values = of.cache(2, "v_size");
    of.same_width(of.out_width(0), width / keys.size * values.size);
    const auto node = std::make_shared<VerifyAttention>();
    node->attributes().sliding_window = step.whole("sliding_window");
    node->attributes().scale = step.number("scale");
    return [=](const LayersPass& pass) {
        AttentionCall call{};
        call.rows = pass.rows;
        call.width = width;
        call.query = pass.at[query];
        call.keys = keys.in(pass, "key_cache");
        call.values = values.in(pass, "value_cache");
        call.tables = &pass.inputs[tables];
        if (selects) {
            call.selected_blocks = &pass.inputs[selected];
            call.selected_counts = &pass.inputs[counts];
            call.sinks = &pass.inputs[sinks];
        }
        call.output = pass.at[y];
        node->attend(call);
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

#include "decoder_layers/row_steps.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "common/isa.hpp"
#include "decoder_layers/kernel.hpp"
#include "decoder_layers/step_operands.hpp"

namespace ovspec {
namespace {

using Norm = void (*)(const float*, const float*, std::size_t, std::size_t, float, float*);

Action norm(const ProgramText& program, const StepText& step, Norm StepKernels::* kernel) {
    const Operands of(program, step, 2, 1);
    const std::size_t x = of.rows(0), y = of.out(0), width = of.width(0);
    const auto size = static_cast<std::size_t>(step.whole("size"));
    const WeightsOf weights = of.weights(1, size * sizeof(float));
    const float epsilon = step.number("eps");
    of.same_width(width, of.out_width(0));
    if (size == 0 || width % size != 0)
        fail(layers_op, "the line '", step.line, "' has parts of ", size, " values in rows of ", width);
    return [=](const LayersPass& pass) {
        const auto* factors = reinterpret_cast<const float*>(weights.in(pass));
        const StepKernels& kernels = OVSPEC_KERNELS(step_kernels);
        each_row(pass, width, [&](std::size_t r) {
            (kernels.*kernel)(pass.at[x] + r * width, factors, width, size, epsilon, pass.at[y] + r * width);
        });
    };
}

using Rope = void (*)(const float*, const float*, const float*, std::size_t, std::size_t, std::size_t,
                      float*);

Action rope(const ProgramText& program, const StepText& step, Rope StepKernels::* kernel) {
    const Operands of(program, step, 3, 1);
    const std::size_t x = of.rows(0), cos = of.rows(1), sin = of.rows(2), y = of.out(0);
    const std::size_t width = of.width(0), angles = of.width(1);
    const bool halves = step.settings.count("size") != 0; // cos and sin are of half a part
    const std::size_t size = halves ? static_cast<std::size_t>(step.whole("size")) : angles;
    of.same_width(angles, of.width(2));
    of.same_width(width, of.out_width(0));
    if (size == 0 || size % 2 != 0 || width % size != 0 || (halves && 2 * angles != size))
        fail(layers_op, "the line '", step.line, "' turns parts of ", size, " values by ", angles,
             " angles in rows of ", width);
    return [=](const LayersPass& pass) {
        const StepKernels& kernels = OVSPEC_KERNELS(step_kernels);
        each_row(pass, width, [&](std::size_t r) {
            (kernels.*kernel)(pass.at[x] + r * width, pass.at[cos] + r * angles, pass.at[sin] + r * angles,
                              width, size, angles, pass.at[y] + r * width);
        });
    };
}

using OfTwo = void (*)(const float*, const float*, std::size_t, float*);

// Rows with rows, or with weights f32 that are the same for all of them.
Action of_two(const ProgramText& program, const StepText& step, OfTwo StepKernels::* kernel) {
    const Operands of(program, step, 2, 1);
    const std::size_t a = of.rows(0), y = of.out(0), width = of.width(0);
    of.same_width(width, of.out_width(0));
    if (of.operand(1).kind == Operand::weights) {
        const WeightsOf weights = of.weights(1, width * sizeof(float));
        return [=](const LayersPass& pass) {
            const auto* same = reinterpret_cast<const float*>(weights.in(pass));
            const StepKernels& kernels = OVSPEC_KERNELS(step_kernels);
            each_row(pass, width, [&](std::size_t r) {
                (kernels.*kernel)(pass.at[a] + r * width, same, width, pass.at[y] + r * width);
            });
        };
    }
    const std::size_t b = of.rows(1);
    of.same_width(width, of.width(1));
    return [=](const LayersPass& pass) {
        const StepKernels& kernels = OVSPEC_KERNELS(step_kernels);
        each_row(pass, width, [&](std::size_t r) {
            (kernels.*kernel)(pass.at[a] + r * width, pass.at[b] + r * width, width, pass.at[y] + r * width);
        });
    };
}

using OfOne = void (*)(const float*, std::size_t, float*);

Action of_one(const ProgramText& program, const StepText& step, OfOne StepKernels::* kernel) {
    const Operands of(program, step, 1, 1);
    const std::size_t x = of.rows(0), y = of.out(0), width = of.width(0);
    of.same_width(width, of.out_width(0));
    return [=](const LayersPass& pass) {
        const StepKernels& kernels = OVSPEC_KERNELS(step_kernels);
        each_row(pass, width, [&](std::size_t r) {
            (kernels.*kernel)(pass.at[x] + r * width, width, pass.at[y] + r * width);
        });
    };
}

// x times the one value of another's row.
Action scale(const ProgramText& program, const StepText& step) {
    const Operands of(program, step, 2, 1);
    const std::size_t x = of.rows(0), factor = of.rows(1), y = of.out(0), width = of.width(0);
    of.same_width(of.width(1), 1);
    of.same_width(width, of.out_width(0));
    return [=](const LayersPass& pass) {
        const StepKernels& kernels = OVSPEC_KERNELS(step_kernels);
        each_row(pass, width, [&](std::size_t r) {
            kernels.scale(pass.at[x] + r * width, pass.at[factor][r], width, pass.at[y] + r * width);
        });
    };
}

// Of every part of `size` values those from `first` on, for one output after the other.
Action slice(const ProgramText& program, const StepText& step) {
    const Operands of(program, step, 1, 0);
    const std::size_t x = of.rows(0), width = of.width(0);
    const auto size = static_cast<std::size_t>(step.whole("size"));
    const std::size_t parts = size == 0 ? 0 : width / size;
    struct To {
        std::size_t rows, first, count;
    };
    std::vector<To> tos;
    auto first = static_cast<std::size_t>(step.whole("first"));
    bool fits = parts * size == width && parts != 0 && first <= size;
    for (std::size_t i = 0; fits && i < step.outputs.size(); i++) {
        const std::size_t count = of.out_width(i) / parts;
        fits = count * parts == of.out_width(i) && count <= size - first;
        tos.push_back({of.out(i), first, count});
        first += count;
    }
    if (!fits)
        fail(layers_op, "the line '", step.line, "' takes more than parts of ", size,
             " values have, of rows of ", width);
    return [=](const LayersPass& pass) {
        each_row(pass, width, [&](std::size_t r) {
            for (const To& to : tos)
                for (std::size_t part = 0; part < parts; part++)
                    std::copy_n(pass.at[x] + r * width + part * size + to.first, to.count,
                                pass.at[to.rows] + (r * parts + part) * to.count);
        });
    };
}

// `parts` parts, each of a part of every operand.
Action concat(const ProgramText& program, const StepText& step) {
    const Operands of(program, step, step.operands.size(), 1);
    const auto parts = static_cast<std::size_t>(step.whole("parts"));
    struct From {
        std::size_t rows, size;
    };
    std::vector<From> froms;
    std::size_t size = 0;
    for (std::size_t i = 0; i < step.operands.size(); i++) {
        if (parts == 0 || of.width(i) < parts || of.width(i) % parts != 0)
            fail(layers_op, "the line '", step.line, "' has ", parts, " parts of rows of ", of.width(i));
        froms.push_back({of.rows(i), of.width(i) / parts});
        size += froms.back().size;
    }
    const std::size_t y = of.out(0);
    of.same_width(size * parts, of.out_width(0));
    return [=](const LayersPass& pass) {
        each_row(pass, size * parts, [&](std::size_t r) {
            float* to = pass.at[y] + r * size * parts;
            for (std::size_t part = 0; part < parts; part++)
                for (const From& from : froms) {
                    std::copy_n(pass.at[from.rows] + (r * parts + part) * from.size, from.size, to);
                    to += from.size;
                }
        });
    };
}

// The largest values of a row, in descending order, and where they stand; the first among equals. NaN counts
// as the smallest.
void largest(const float* x, std::size_t width, std::size_t count, float* values, std::int32_t* indices) {
    const auto before = [&](std::int32_t a, std::int32_t b) {
        const float p = x[a], q = x[b];
        return std::isnan(p) == std::isnan(q) ? p > q || (!(p < q) && a < b) : std::isnan(q);
    };
    auto& order = of_this_thread<std::vector<std::int32_t>>();
    order.resize(width);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(), before);
    for (std::size_t i = 0; i < count; i++) {
        indices[i] = order[i];
        values[i] = x[order[i]];
    }
}

Action top_k(const ProgramText& program, const StepText& step) {
    const Operands of(program, step, 1, 2);
    const std::size_t x = of.rows(0), width = of.width(0), values = of.out(0), count = of.out_width(0);
    const std::size_t indices = of.out_table(1);
    if (count == 0 || count > width)
        fail(layers_op, "the line '", step.line, "' takes ", count, " of ", width, " values");
    return [=](const LayersPass& pass) {
        ov::Tensor& table = *pass.tables[indices];
        table.set_shape({pass.rows, count});
        auto* places = table.data<std::int32_t>();
        each_row(pass, 4 * width, [&](std::size_t r) {
            largest(pass.at[x] + r * width, width, count, pass.at[values] + r * count, places + r * count);
        });
    };
}

} // namespace

Action row_step(const ProgramText& program, const StepText& step) {
    const std::string& name = step.name;
    if (name == "rms")
        return norm(program, step, &StepKernels::rms);
    if (name == "layer_norm")
        return norm(program, step, &StepKernels::layer_norm);
    if (name == "rope")
        return rope(program, step, &StepKernels::rope);
    if (name == "rope_pairs")
        return rope(program, step, &StepKernels::rope_pairs);
    if (name == "scale")
        return scale(program, step);
    if (name == "slice")
        return slice(program, step);
    if (name == "concat")
        return concat(program, step);
    if (name == "top_k")
        return top_k(program, step);
    for (const auto& [known, kernel] : {std::pair("add", &StepKernels::add),
                                        {"multiply", &StepKernels::multiply},
                                        {"silu_multiply", &StepKernels::silu_multiply}})
        if (name == known)
            return of_two(program, step, kernel);
    for (const auto& [known, kernel] : {std::pair("softmax", &StepKernels::softmax),
                                        {"normalize", &StepKernels::normalize},
                                        {"silu", &StepKernels::silu},
                                        {"gelu_tanh", &StepKernels::gelu_tanh},
                                        {"gelu_erf", &StepKernels::gelu_erf},
                                        {"relu", &StepKernels::relu},
                                        {"sigmoid", &StepKernels::sigmoid},
                                        {"tanh", &StepKernels::tanh}})
        if (name == known)
            return of_one(program, step, kernel);
    return nullptr;
}

} // namespace ovspec

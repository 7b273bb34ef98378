// What the steps of a program take and make.
#pragma once

#include <cstdint>

#include "common/fail.hpp"
#include "common/parallel.hpp"
#include "decoder_layers/steps.hpp"

namespace ovspec {

constexpr const char* layers_op = "DecoderLayers";

// Weights in an input u8.
struct WeightsOf {
    std::size_t input, first, bytes;

    const std::uint8_t* in(const LayersPass& pass) const {
        const ov::Tensor& slab = pass.inputs[input];
        if (slab.get_byte_size() < bytes || slab.get_byte_size() - bytes < first)
            fail(layers_op, "input ", input, " holds ", slab.get_byte_size(), " bytes, fewer than the ",
                 bytes, " of a step's weights from byte ", first, " on");
        return static_cast<const std::uint8_t*>(slab.data()) + first;
    }
};

// The operands of a step, checked as they are taken.
class Operands {
public:
    Operands(const ProgramText& program, const StepText& step, std::size_t inputs, std::size_t outputs)
        : program_(program), step_(step) {
        if (step.operands.size() != inputs || (outputs && step.outputs.size() != outputs))
            fail(layers_op, "the line '", step.line, "' has ", step.operands.size(), " operands and ",
                 step.outputs.size(), " outputs, expected ", inputs, " and ", outputs);
    }

    std::size_t rows(std::size_t i) const { return of(i, Operand::rows, "rows"); }
    // Operand `i`, weights of so many bytes.
    WeightsOf weights(std::size_t i, std::size_t bytes) const {
        return {of(i, Operand::weights, "weights"), step_.operands[i].first, bytes};
    }
    std::size_t input(std::size_t i) const { return of(i, Operand::input, "an input"); }
    std::size_t width(std::size_t i) const { return program_.rows[rows(i)].width; }
    std::size_t out(std::size_t i) const {
        if (step_.outputs[i].kind != Operand::rows)
            fail(layers_op, "output ", i, " of the line '", step_.line, "' is not rows: expected NAME:WIDTH");
        return step_.outputs[i].index;
    }
    std::size_t out_width(std::size_t i) const { return program_.rows[out(i)].width; }

    // Output `i`, a table of this type.
    std::size_t out_table(std::size_t i, const char* type) const {
        if (step_.outputs[i].kind != Operand::table || program_.tables[step_.outputs[i].index].type != type)
            fail(layers_op, "output ", i, " of the line '", step_.line, "' is no table of ", type);
        return step_.outputs[i].index;
    }
    const Operand& operand(std::size_t i) const { return step_.operands[i]; }

    void same_width(std::size_t a, std::size_t b) const {
        if (a != b)
            fail(layers_op, "the line '", step_.line, "' joins rows of ", a, " and ", b, " values");
    }

private:
    std::size_t of(std::size_t i, Operand::Kind kind, const char* what) const {
        if (step_.operands[i].kind != kind)
            fail(layers_op, "operand ", i, " of the line '", step_.line, "' is not ", what);
        return step_.operands[i].index;
    }

    const ProgramText& program_;
    const StepText& step_;
};

inline ov::Tensor rows_tensor(const LayersPass& pass, std::size_t index, std::size_t width) {
    return {ov::element::f32, ov::Shape{pass.rows, width}, pass.at[index]};
}

// What a step hands to an operation as a tensor.
struct TensorOf {
    Operand::Kind kind;
    std::size_t index, width = 0; // width: of rows

    static TensorOf of(const ProgramText& program, const Operand& operand) {
        if (operand.kind == Operand::weights)
            fail(layers_op, "an operation takes no part of the input ", program.inputs[operand.index]);
        return {operand.kind, operand.index,
                operand.kind == Operand::rows ? program.rows[operand.index].width : 0};
    }

    ov::Tensor in(const LayersPass& pass) const {
        switch (kind) {
        case Operand::rows:
            if (width == 0)
                return ov::Tensor(ov::element::f32, {pass.rows, 0});
            return rows_tensor(pass, index, width);
        case Operand::table:
            return pass.tables[index];
        case Operand::input:
            return pass.inputs[index];
        default:
            return ov::Tensor(ov::element::u8, {0});
        }
    }
};

// each(row) for all rows of a pass.
template <class Each> void each_row(const LayersPass& pass, std::size_t width, const Each& each) {
    parallel_items(pass.rows, 4 * pass.rows * width, each);
}

} // namespace ovspec

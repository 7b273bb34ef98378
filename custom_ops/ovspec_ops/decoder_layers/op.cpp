#include "decoder_layers/op.hpp"

#include <algorithm>

#include "common/parallel.hpp"
#include "common/tensors.hpp"
#include "decoder_layers/steps.hpp"

namespace ovspec {
namespace {

constexpr const char* name = "DecoderLayers";

// The step that makes a table gives it its shape.
ov::Tensor empty_table(const TableOf& table) {
    ov::Shape shape;
    for (const std::int64_t dim : table.dims)
        shape.push_back(static_cast<std::size_t>(std::max<std::int64_t>(dim, 0)));
    return {ov::element::Type(table.type), shape};
}

} // namespace

// A program whose lines have become actions.
struct LayersProgram {
    ProgramText text;
    std::vector<Action> actions;

    explicit LayersProgram(const std::string& program) : text(program) {
        for (const StepText& step : text.steps)
            actions.push_back(action_of(text, step));
    }
};

void DecoderLayers::validate_and_infer_types() {
    if (!attributes_.parsed)
        attributes_.parsed = std::make_shared<const LayersProgram>(attributes_.program);
    const LayersProgram& program = *attributes_.parsed;
    check_input_count(*this, program.text.inputs.size());
    ov::Dimension rows;
    for (const RowsOf& of : program.text.rows)
        if (of.input >= 0) {
            const auto index = static_cast<std::size_t>(of.input);
            check_input(*this, index, of.name.c_str(), ov::element::f32,
                        {-1, static_cast<std::int64_t>(of.width)});
            const auto& shape = get_input_partial_shape(index);
            if (shape.rank().is_static() && rows.is_dynamic())
                rows = shape[0];
        }
    for (const StepText& step : program.text.steps)
        for (const Operand& from : step.operands)
            if (from.kind == Operand::weights)
                check_input(*this, from.index, "weights", ov::element::u8, {-1});
            else if (from.kind == Operand::entry)
                check_input(*this, from.index, "caches", ov::element::u8, {-1});
    for (std::size_t i = 0; i < program.text.outputs.size(); i++) {
        const Operand& output = program.text.outputs[i];
        if (output.kind == Operand::table) {
            const TableOf& table = program.text.tables[output.index];
            const std::vector<ov::Dimension> dims(table.dims.begin(), table.dims.end());
            set_output_type(i, ov::element::Type(table.type), dims);
            continue;
        }
        const auto width = static_cast<std::int64_t>(program.text.rows[output.index].width);
        set_output_type(i, ov::element::f32, ov::PartialShape{rows, width});
    }
}

void DecoderLayers::compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    const LayersProgram& program = *attributes_.parsed;
    const ProgramText& text = program.text;
    std::size_t rows = 0;
    bool known = false;
    for (const RowsOf& of : text.rows)
        if (of.input >= 0) {
            const auto index = static_cast<std::size_t>(of.input);
            check_tensor(name, inputs, index, of.name.c_str(), ov::element::f32,
                         {known ? static_cast<std::int64_t>(rows) : -1, static_cast<std::int64_t>(of.width)});
            rows = inputs[index].get_shape()[0];
            known = true;
        }
    for (std::size_t i = 0; i < text.outputs.size(); i++)
        if (text.outputs[i].kind == Operand::rows)
            outputs[i].set_shape({rows, text.rows[text.outputs[i].index].width});
    auto memory = Pool<FloatBuffer>::take();
    float* own = memory->reserve(rows * text.row_floats);
    std::vector<ov::Tensor> tables;
    for (const TableOf& table : text.tables)
        tables.push_back(table.output >= 0 ? outputs[static_cast<std::size_t>(table.output)]
                                           : empty_table(table));
    LayersPass pass{rows, std::vector<float*>(text.rows.size()), tables, inputs};
    for (std::size_t i = 0; i < text.rows.size(); i++) {
        const RowsOf& of = text.rows[i];
        pass.at[i] = of.input >= 0
                         ? const_cast<float*>(inputs[static_cast<std::size_t>(of.input)].data<const float>())
                     : of.output >= 0 ? outputs[static_cast<std::size_t>(of.output)].data<float>()
                                      : own + rows * of.place;
    }
    Team::run([&] {
        for (const Action& action : program.actions)
            action(pass);
    });
}

} // namespace ovspec

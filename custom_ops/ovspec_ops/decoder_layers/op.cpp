#include "decoder_layers/op.hpp"

#include <algorithm>
#include <map>

#include "common/parallel.hpp"
#include "common/step_times.hpp"
#include "common/tensors.hpp"
#include "decoder_layers/draft_steps.hpp"

namespace ovspec {
namespace {

constexpr const char* name = "DecoderLayers";

// The step that makes a table gives it its shape.
ov::Tensor empty_table(const TableOf& table) {
    ov::Shape shape;
    for (const std::int64_t dim : table.dims)
        shape.push_back(static_cast<std::size_t>(std::max<std::int64_t>(dim, 0)));
    return {ov::element::i32, shape};
}

// How many numbers an input holds, where its shape says so.
ov::Dimension length_of(const ov::PartialShape& shape) {
    return shape.rank().is_static() && shape.size() == 1 ? shape[0] : ov::Dimension();
}

} // namespace

// A program whose lines have become actions.
struct LayersProgram {
    ProgramText text;
    std::vector<Action> actions;
    DraftInputs draft;
    std::map<std::size_t, const char*> byte_inputs; // and what they hold
    // Tables of a pass that are no outputs. They stay, as making tensors of small tables costs more than
    // their steps.
    mutable Pool<std::vector<ov::Tensor>> tables;

    explicit LayersProgram(const std::string& program) : text(program), draft(text) {
        for (const StepText& step : text.steps)
            actions.push_back(action_of(text, step));
        for (const StepText& step : text.steps)
            for (const Operand& from : step.operands)
                if (from.kind == Operand::weights)
                    byte_inputs[from.index] = "weights";
                else if (from.kind == Operand::entry)
                    byte_inputs[from.index] = "caches";
    }
};

void DecoderLayers::validate_and_infer_types() {
    if (!attributes_.parsed)
        attributes_.parsed = std::make_shared<const LayersProgram>(attributes_.program);
    const LayersProgram& program = *attributes_.parsed;
    check_input_count(*this, program.text.inputs.size());
    ov::Dimension rows, taken;
    for (const RowsOf& of : program.text.rows)
        if (of.input >= 0) {
            const auto index = static_cast<std::size_t>(of.input);
            check_input(*this, index, of.name.c_str(), ov::element::f32,
                        {-1, static_cast<std::int64_t>(of.width)});
            const auto& shape = get_input_partial_shape(index);
            if (shape.rank().is_static() && rows.is_dynamic())
                rows = shape[0];
        }
    if (program.text.taken_by >= 0)
        taken = length_of(get_input_partial_shape(static_cast<std::size_t>(program.text.taken_by)));
    for (const auto& [input, what] : program.byte_inputs)
        check_input(*this, input, what, ov::element::u8, {-1});
    for (std::size_t i = 0; i < program.text.outputs.size(); i++) {
        const Operand& output = program.text.outputs[i];
        if (output.kind == Operand::table) {
            const TableOf& table = program.text.tables[output.index];
            std::vector<ov::Dimension> dims(table.dims.begin(), table.dims.end());
            // The plugin copies outputs whose shapes it does not know beforehand.
            if (program.draft.drafts && output.index == program.draft.tokens) {
                const ov::Dimension plan = length_of(get_input_partial_shape(program.draft.plan));
                dims = {plan.is_static() ? plan - 1 : plan, taken};
            }
            set_output_type(i, ov::element::i32, dims);
            continue;
        }
        const RowsOf& of = program.text.rows[output.index];
        const auto width = static_cast<std::int64_t>(of.width);
        set_output_type(i, ov::element::f32, ov::PartialShape{of.taken ? taken : rows, width});
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
    const std::size_t taken =
        text.taken_by >= 0 ? inputs[static_cast<std::size_t>(text.taken_by)].get_size() : 0;
    for (std::size_t i = 0; i < text.outputs.size(); i++)
        if (text.outputs[i].kind == Operand::rows) {
            const RowsOf& of = text.rows[text.outputs[i].index];
            outputs[i].set_shape({of.taken ? taken : rows, of.width});
        }
    auto lent = program.tables.lend();
    std::vector<ov::Tensor>& tables = *lent;
    auto memory = Pool<FloatBuffer>::take(); // rows are large, so all operations share theirs
    const std::size_t most = std::max(rows, taken);
    float* own = memory->reserve(most * text.row_floats);
    LayersPass pass{rows, std::vector<float*>(text.rows.size()), {}, inputs, {}};
    for (const ov::Tensor& input : inputs)
        pass.spans.push_back({static_cast<const std::uint8_t*>(input.data()), input.get_byte_size()});
    while (tables.size() < text.tables.size())
        tables.push_back(empty_table(text.tables[tables.size()]));
    for (std::size_t i = 0; i < text.tables.size(); i++) {
        const int output = text.tables[i].output;
        pass.tables.push_back(output >= 0 ? &outputs[static_cast<std::size_t>(output)] : &tables[i]);
    }
    for (std::size_t i = 0; i < text.rows.size(); i++) {
        const RowsOf& of = text.rows[i];
        pass.at[i] = of.input >= 0
                         ? const_cast<float*>(inputs[static_cast<std::size_t>(of.input)].data<const float>())
                     : of.output >= 0 ? outputs[static_cast<std::size_t>(of.output)].data<float>()
                                      : own + most * of.place;
    }
    Team::run([&] {
        for (Runs runs(program.draft, pass); runs.next();)
            for (std::size_t i = 0; i < program.actions.size(); i++) {
                const StepTimer timer(text.steps[i].name.c_str());
                program.actions[i](pass);
            }
    });
}

} // namespace ovspec

#include "linear/op.hpp"

#include "common/tensors.hpp"
#include "linear/run.hpp"

namespace ovspec {
namespace {

constexpr const char* name = "Linear";

enum Input : std::size_t { hidden, weights, input_count };

std::string text(std::size_t x) {
    return std::to_string(x);
}

} // namespace

Linear::Linear(const ov::OutputVector& inputs, const Linear& a)
    : Op(inputs), format_(a.format_), groups_(a.groups_), row_bits_(a.row_bits_), sizes_(a.sizes_) {
    constructor_validate_and_infer_types();
}

LinearWeights Linear::describe(std::size_t inputs) const {
    LinearWeights w{};
    if (format_ != "u8" && format_ != "u4")
        fail(name, "attribute format is '" + format_ + "', expected u8 or u4");
    w.format = format_ == "u8" ? WeightFormat::u8 : WeightFormat::u4;
    if (inputs == 0 || inputs > most_inputs)
        fail(name, "rows have " + text(inputs) + " values, expected 1 to " + text(most_inputs));
    const bool fits = groups_ == 1 || (groups_ > 1 && w.format == WeightFormat::u4 &&
                                       groups_ <= static_cast<std::int64_t>(inputs) &&
                                       inputs % (8 * static_cast<std::size_t>(groups_)) == 0);
    if (!fits)
        fail(name, "attribute groups is " + std::to_string(groups_) + " for rows of " + text(inputs) +
                       " values in " + format_ +
                       ", expected 1, or with u4 a number that makes groups of a multiple of 8");
    if (row_bits_ != 16 && row_bits_ != 8)
        fail(name, "attribute row_bits is " + std::to_string(row_bits_) + ", expected 16 or 8");
    w.inputs = inputs;
    w.groups = static_cast<std::size_t>(groups_);
    w.row_bits = static_cast<std::size_t>(row_bits_);
    return w;
}

std::size_t Linear::panels() const {
    if (sizes_.empty() || sizes_.size() > most_outputs)
        fail(name,
             "attribute sizes holds " + text(sizes_.size()) + " sizes, expected 1 to " + text(most_outputs));
    std::size_t count = 0;
    for (const std::int64_t size : sizes_) {
        if (size < 1)
            fail(name, "attribute sizes holds " + std::to_string(size) + ", expected at least 1");
        count += (static_cast<std::size_t>(size) + panel_width - 1) / panel_width;
    }
    return count;
}

void Linear::validate_and_infer_types() {
    check_input_count(*this, input_count);
    const ov::element::Type type = get_input_element_type(hidden);
    if (type.is_static() && type != ov::element::f32)
        fail(name, "hidden (input 0) is of type " + type.get_type_name() + ", expected f32");
    ov::PartialShape shape = get_input_partial_shape(hidden);
    if (shape.rank().is_static() && shape.size() < 2)
        fail(name,
             "hidden (input 0) has " + text(shape.size()) + " dimensions, expected [rows, size] or more");
    std::int64_t rows = -1, bytes = -1;
    if (shape.rank().is_static() && shape[shape.size() - 1].is_static()) {
        rows = static_cast<std::int64_t>(panels());
        bytes = static_cast<std::int64_t>(
            describe(static_cast<std::size_t>(shape[shape.size() - 1].get_length())).panel_bytes());
    }
    check_input(*this, weights, "weights", ov::element::u8, {rows, bytes});
    for (std::size_t i = 0; i < sizes_.size(); i++) {
        if (shape.rank().is_static())
            shape[shape.size() - 1] = sizes_[i];
        set_output_type(i, ov::element::f32, shape);
    }
}

std::shared_ptr<ov::Node> Linear::clone_with_new_inputs(const ov::OutputVector& inputs) const {
    return std::make_shared<Linear>(inputs, *this);
}

bool Linear::visit_attributes(ov::AttributeVisitor& visitor) {
    visitor.on_attribute("format", format_);
    visitor.on_attribute("groups", groups_);
    visitor.on_attribute("row_bits", row_bits_);
    visitor.on_attribute("sizes", sizes_);
    return true;
}

bool Linear::evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    ov::Shape shape = inputs[hidden].get_shape();
    LinearWeights w = describe(shape.back());
    const ov::Shape expected{panels(), w.panel_bytes()};
    if (inputs[weights].get_shape() != expected)
        fail(name, "weights (input 1) hold " + text(inputs[weights].get_size()) + " bytes, expected " +
                       text(expected[0]) + " panels of " + text(expected[1]));
    w.data = inputs[weights].data<const std::uint8_t>();
    const std::size_t rows = inputs[hidden].get_size() / w.inputs;
    LinearOutput targets[most_outputs];
    for (std::size_t i = 0; i < sizes_.size(); i++) {
        shape.back() = static_cast<std::size_t>(sizes_[i]);
        outputs[i].set_shape(shape);
        targets[i] = {outputs[i].data<float>(), shape.back()};
    }
    run_linear(w, inputs[hidden].data<const float>(), rows, targets, sizes_.size());
    return true;
}

} // namespace ovspec

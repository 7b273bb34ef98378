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

LinearFormat parse_format(const std::string& format) {
    if (format == "u8")
        return LinearFormat::u8;
    if (format == "u4")
        return LinearFormat::u4;
    if (format == "f32")
        return LinearFormat::f32;
    if (format == "f16")
        return LinearFormat::f16;
    if (format == "bf16")
        return LinearFormat::bf16;
    fail(name, "attribute format is '" + format + "', expected u8, u4, f32, f16 or bf16");
}

// Throws if rows can't be rounded to this many bits for weights of this format.
void check_row_bits(LinearFormat format, std::int64_t bits) {
    const bool integers = format == LinearFormat::u8 || format == LinearFormat::u4;
    const bool fits =
        bits == 32 || (bits == 16 && (integers || format == LinearFormat::bf16)) || (bits == 8 && integers);
    if (!fits)
        fail(name, "attribute row_bits is " + std::to_string(bits) + ", expected " +
                       (integers                       ? "32, 16 or 8"
                        : format == LinearFormat::bf16 ? "32 or 16"
                                                       : "32"));
}

} // namespace

Linear::Linear(const ov::OutputVector& inputs, const Linear& a)
    : Op(inputs), format_(a.format_), groups_(a.groups_), row_bits_(a.row_bits_), sizes_(a.sizes_) {
    constructor_validate_and_infer_types();
}

LinearWeights Linear::describe(std::size_t inputs) const {
    LinearWeights w{};
    w.format = parse_format(format_);
    if (inputs == 0 || inputs > most_inputs)
        fail(name, "rows have " + text(inputs) + " values, expected 1 to " + text(most_inputs));
    const bool fits = groups_ == 1 || (groups_ > 1 && w.format == LinearFormat::u4 &&
                                       groups_ <= static_cast<std::int64_t>(inputs) &&
                                       inputs % (8 * static_cast<std::size_t>(groups_)) == 0);
    if (!fits)
        fail(name, "attribute groups is " + std::to_string(groups_) + " for rows of " + text(inputs) +
                       " values in " + format_ +
                       ", expected 1, or with u4 a number that makes groups of a multiple of 8");
    check_row_bits(w.format, row_bits_);
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
    check_hidden_input(*this);
    ov::PartialShape shape = get_input_partial_shape(hidden);
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
    const std::size_t rows = check_hidden(name, inputs[hidden]);
    ov::Shape shape = inputs[hidden].get_shape();
    LinearWeights w = describe(shape.back());
    const ov::Shape expected{panels(), w.panel_bytes()};
    if (inputs[weights].get_shape() != expected)
        fail(name, "weights (input 1) hold " + text(inputs[weights].get_size()) + " bytes, expected " +
                       text(expected[0]) + " panels of " + text(expected[1]));
    w.data = inputs[weights].data<const std::uint8_t>();
    LinearOutput targets[most_outputs];
    for (std::size_t i = 0; i < sizes_.size(); i++) {
        shape.back() = static_cast<std::size_t>(sizes_[i]);
        outputs[i].set_shape(shape);
        targets[i] = {outputs[i].data<float>(), shape.back()};
    }
    if (rows == 0) // of a layer that the pass leaves out
        return true;
    run_linear(w, inputs[hidden].data<const float>(), rows, targets, sizes_.size());
    return true;
}

} // namespace ovspec

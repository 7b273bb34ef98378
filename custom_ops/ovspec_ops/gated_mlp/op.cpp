#include "gated_mlp/op.hpp"

#include <algorithm>
#include <cmath>

#include "common/parallel.hpp"
#include "common/tensors.hpp"
#include "gated_mlp/channels.hpp"
#include "gated_mlp/kernel.hpp"
#include "gated_mlp/run.hpp"
#include "gated_mlp/weights.hpp"

namespace ovspec {
namespace {

constexpr const char* name = "GatedMLP";

enum Input : std::size_t {
    hidden,
    gate, // of each projection: data, scales, zero points
    up = gate + 3,
    down = up + 3,
    limits = down + 3,
    row_weights,
    input_count,
};

Activation parse_activation(const std::string& value) {
    return choice_of<Activation>(name, "activation", value,
                                 {{"silu", Activation::silu},
                                  {"gelu_tanh", Activation::gelu_tanh},
                                  {"gelu_erf", Activation::gelu_erf}});
}

struct Formats {
    bool gates_given; // input 1 holds the gates' values
    WeightFormat gate, up, down;

    Formats(const std::string& gates, const std::string& ups, const std::string& downs)
        : gates_given(gates == "values"),
          gate(gates_given ? WeightFormat::f32 : parse_format(name, "gate_format", gates)),
          up(parse_format(name, "up_format", ups)), down(parse_format(name, "down_format", downs)) {}

    WeightFormat of(std::size_t first) const {
        return first == Input::gate ? gate : first == Input::up ? up : down;
    }
};

// The matrices, from shapes that `shapes_of(first input)` gives; no gate where its values are given.
template <class ShapesOf>
GatedMlpWeights describe(const ShapesOf& shapes_of, std::size_t size, bool gates_given) {
    GatedMlpWeights w{gates_given ? ChannelMatrix{} : describe_rows(name, "gate", shapes_of(gate), size),
                      describe_rows(name, "up", shapes_of(up), size),
                      describe_columns(name, shapes_of(down), size)};
    const auto check = [&](const char* what, const ChannelMatrix& matrix) {
        if (matrix.channels != w.up.channels)
            fail(name, what, " has ", matrix.channels, " channels, expected those of up, ", w.up.channels);
    };
    if (!gates_given)
        check("gate", w.gate);
    check("down", w.down);
    return w;
}

void check_gates(const ov::element::Type& type, const ov::PartialShape& shape) {
    if ((type.is_static() && type != ov::element::f32) || (shape.rank().is_static() && shape.size() < 2))
        fail(name, "gate (input 1) is of type ", type, " and rank ", shape.rank(),
             ", expected f32 [.., channels] with gate_format values");
}

// How many channels this layer keeps; below zero: all.
float limit_of(const ov::Tensor& tensor, std::size_t layer, std::size_t channels) {
    if (tensor.get_size() == 0)
        return -1.0f;
    if (tensor.get_size() <= layer)
        fail(name, "verify_channel_limits holds ", tensor.get_size(),
             " values, expected one per gated MLP, and this is number ", layer);
    const float limit = tensor.data<const float>()[layer];
    const bool count = limit == std::floor(limit) && limit >= 1.0f &&
                       static_cast<double>(limit) <= static_cast<double>(channels);
    if (limit != -1.0f && !count)
        fail(name, "verify_channel_limits[", layer, "] is ", limit,
             ", expected -1 (all channels) or a whole number of channels from 1 to ", channels);
    return limit;
}

} // namespace

void GatedMLP::check_attributes() const {
    parse_activation(attributes_.activation);
    check_at_least(name, "layer", attributes_.layer, 0);
    if (attributes_.row_bits != 16 && attributes_.row_bits != 8)
        fail(name, "attribute row_bits is ", attributes_.row_bits, ", expected 16 or 8");
}

void GatedMLP::validate_and_infer_types() {
    check_attributes();
    const Formats formats(attributes_.gate_format, attributes_.up_format, attributes_.down_format);
    if (get_input_size() == input_count + 1)
        fail(name, "got the order of channels that older versions of ovspec had as an input; export the "
                   "model again");
    check_input_count(*this, input_count);
    check_hidden_input(*this);
    const ov::PartialShape shape = get_input_partial_shape(hidden);
    check_input(*this, limits, "verify_channel_limits", ov::element::f32, {-1});
    check_input(*this, row_weights, "verify_row_weights", ov::element::f32, {-1});
    bool known = shape.rank().is_static() && shape[shape.size() - 1].is_static();
    if (formats.gates_given)
        check_gates(get_input_element_type(gate), get_input_partial_shape(gate));
    for (std::size_t input = formats.gates_given ? up : gate; input < limits; input++)
        known = known && get_input_partial_shape(input).is_static();
    if (known)
        describe(
            [&](std::size_t first) {
                return WeightShapes{formats.of(first), get_input_element_type(first), get_input_shape(first),
                                    get_input_shape(first + 1), get_input_shape(first + 2)};
            },
            static_cast<std::size_t>(shape[shape.size() - 1].get_length()), formats.gates_given);
    set_output_type(0, ov::element::f32, shape);
    set_output_type(1, ov::element::i32, ov::PartialShape{1});
}

void GatedMLP::compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    const std::size_t rows = check_hidden(name, inputs[hidden]);
    const ov::Shape shape = inputs[hidden].get_shape();
    outputs[0].set_shape(shape);
    outputs[1].set_shape({1});
    if (rows == 0) { // of a layer that the pass leaves out; the weights of rows are those of the pass
        outputs[1].data<std::int32_t>()[0] = 0;
        return;
    }
    const Formats formats(attributes_.gate_format, attributes_.up_format, attributes_.down_format);
    const std::size_t size = shape.back();
    GatedMlpCall call;
    call.weights = describe(
        [&](std::size_t first) {
            return WeightShapes{formats.of(first), inputs[first].get_element_type(),
                                inputs[first].get_shape(), inputs[first + 1].get_shape(),
                                inputs[first + 2].get_shape()};
        },
        size, formats.gates_given);
    for (ChannelMatrix* matrix : {&call.weights.gate, &call.weights.up, &call.weights.down})
        matrix->row_bits = static_cast<std::size_t>(attributes_.row_bits);
    const std::size_t channels = call.weights.up.channels;
    if (formats.gates_given) {
        if (inputs[gate].get_element_type() != ov::element::f32 || inputs[gate].get_size() != rows * channels)
            fail(name, "gate (input 1) holds ", inputs[gate].get_size(), " values of ",
                 inputs[gate].get_element_type(), ", expected f32, one for each of ", rows, " rows and ",
                 channels, " channels");
        call.gates = inputs[gate].data<const float>();
    } else {
        set_data(name, call.weights.gate, inputs, gate);
    }
    set_data(name, call.weights.up, inputs, up);
    set_data(name, call.weights.down, inputs, down);
    call.activation = parse_activation(attributes_.activation);
    call.limit = limit_of(inputs[limits], static_cast<std::size_t>(attributes_.layer), channels);
    if (inputs[row_weights].get_size() != 0) {
        if (inputs[row_weights].get_size() != rows)
            fail(name, "verify_row_weights holds ", inputs[row_weights].get_size(),
                 " values, expected one for each of the ", rows, " rows");
        call.row_weights = inputs[row_weights].data<const float>();
        for (std::size_t r = 0; r < rows; r++)
            if (!std::isfinite(call.row_weights[r]) || call.row_weights[r] < 0.0f)
                fail(name, "verify_row_weights[", r, "] is ", call.row_weights[r],
                     ", expected a finite number of at least 0");
    }
    call.x = inputs[hidden].data<const float>();
    call.y = outputs[0].data<float>();
    call.rows = rows;
    outputs[1].data<std::int32_t>()[0] = static_cast<std::int32_t>(run_gated_mlp(call));
}

} // namespace ovspec

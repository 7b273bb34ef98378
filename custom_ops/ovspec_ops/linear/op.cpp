#include "linear/op.hpp"

#include "common/tensors.hpp"
#include "linear/run.hpp"

namespace ovspec {
namespace {

constexpr const char* name = "Linear";

enum Input : std::size_t { hidden, weights, adapters };

// Throws if rows can't be rounded to this many bits for weights of this format.
void check_row_bits(WeightFormat format, std::int64_t bits) {
    const bool integers = format == WeightFormat::u8 || format == WeightFormat::u4;
    const bool fits =
        bits == 32 || (bits == 16 && (integers || format == WeightFormat::bf16)) || (bits == 8 && integers);
    if (!fits)
        fail(name, "attribute row_bits is ", bits, ", expected ",
             (integers                       ? "32, 16 or 8"
              : format == WeightFormat::bf16 ? "32 or 16"
                                             : "32"));
}

} // namespace

LinearWeights Linear::describe(std::size_t inputs) const {
    const LinearAttributes& a = attributes_;
    LinearWeights w{};
    w.format = choice_of<WeightFormat>(name, "format", a.format,
                                       {{"u8", WeightFormat::u8},
                                        {"u4", WeightFormat::u4},
                                        {"f32", WeightFormat::f32},
                                        {"f16", WeightFormat::f16},
                                        {"bf16", WeightFormat::bf16}});
    if (inputs == 0 || inputs > most_inputs)
        fail(name, "rows have ", inputs, " values, expected 1 to ", most_inputs);
    const bool fits =
        a.groups == 1 || (a.groups > 1 && w.integers() && a.groups <= static_cast<std::int64_t>(inputs) &&
                          inputs % (8 * static_cast<std::size_t>(a.groups)) == 0);
    if (!fits)
        fail(name, "attribute groups is ", a.groups, " for rows of ", inputs, " values in ", a.format,
             ", expected 1, or with u8 and u4 a number that makes groups of a multiple of 8");
    check_row_bits(w.format, a.row_bits);
    w.inputs = inputs;
    w.groups = static_cast<std::size_t>(a.groups);
    w.row_bits = static_cast<std::size_t>(a.row_bits);
    return w;
}

std::size_t Linear::panels() const {
    const auto& sizes = attributes_.sizes;
    if (sizes.empty() || sizes.size() > most_outputs)
        fail(name, "attribute sizes holds ", sizes.size(), " sizes, expected 1 to ", most_outputs);
    std::size_t count = 0;
    for (const std::int64_t size : sizes) {
        if (size < 1)
            fail(name, "attribute sizes holds ", size, ", expected at least 1");
        count += (static_cast<std::size_t>(size) + panel_width - 1) / panel_width;
    }
    return count;
}

void Linear::check_adapter_layers() const {
    const std::size_t layers = attributes_.adapter_layers.size(), outputs = attributes_.sizes.size();
    if (layers != 0 && layers != outputs)
        fail(name, "attribute adapter_layers holds ", layers, " numbers, expected one of each of the ",
             outputs, " outputs, or none");
}

void Linear::validate_and_infer_types() {
    const auto& sizes = attributes_.sizes;
    const bool adapts = !attributes_.adapter_layers.empty();
    check_adapter_layers();
    check_input_count(*this, adapts ? 3 : 2);
    if (adapts)
        check_input(*this, adapters, "adapters", ov::element::u8, {-1, 8});
    check_hidden_input(*this);
    ov::PartialShape shape = get_input_partial_shape(hidden);
    const auto rows = static_cast<std::int64_t>(panels());
    std::int64_t bytes = -1;
    if (shape.rank().is_static() && shape[shape.size() - 1].is_static())
        bytes = static_cast<std::int64_t>(
            describe(static_cast<std::size_t>(shape[shape.size() - 1].get_length())).panel_bytes());
    check_input(*this, weights, "weights", ov::element::u8, {rows, bytes});
    for (std::size_t i = 0; i < sizes.size(); i++) {
        if (shape.rank().is_static())
            shape[shape.size() - 1] = sizes[i];
        set_output_type(i, ov::element::f32, shape);
    }
}

void Linear::compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    const auto& sizes = attributes_.sizes;
    const std::size_t rows = check_hidden(name, inputs[hidden]);
    ov::Shape shape = inputs[hidden].get_shape();
    LinearWeights w = describe(shape.back());
    const ov::Shape expected{panels(), w.panel_bytes()};
    if (inputs[weights].get_shape() != expected)
        fail(name, "weights (input 1) hold ", inputs[weights].get_size(), " bytes, expected ", expected[0],
             " panels of ", expected[1]);
    w.data = inputs[weights].data<const std::uint8_t>();
    LinearOutput targets[most_outputs];
    for (std::size_t i = 0; i < sizes.size(); i++) {
        shape.back() = static_cast<std::size_t>(sizes[i]);
        outputs[i].set_shape(shape);
        targets[i] = {outputs[i].data<float>(), shape.back()};
    }
    if (rows == 0)
        return;
    const auto& layers = attributes_.adapter_layers;
    PassAdapters of{nullptr, layers.data()};
    if (!layers.empty()) {
        check_tensor(name, inputs, adapters, "adapters", ov::element::u8,
                     {static_cast<std::int64_t>(rows), 8});
        of.tables = inputs[adapters].data<const std::uint8_t>();
    }
    run_linear(w, inputs[hidden].data<const float>(), rows, targets, sizes.size(),
               layers.empty() ? nullptr : &of);
}

} // namespace ovspec

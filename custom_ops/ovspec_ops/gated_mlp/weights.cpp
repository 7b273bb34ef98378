#include "gated_mlp/weights.hpp"

#include "common/tensors.hpp"
#include "gated_mlp/row_layout.hpp"

namespace ovspec {
namespace {

constexpr std::size_t most_inputs = 65536; // of rows of integers

std::size_t round_up(std::size_t x, std::size_t step) {
    return (x + step - 1) / step * step;
}

bool quantised(WeightFormat format) {
    return format == WeightFormat::u8 || format == WeightFormat::u4;
}

// A matrix of `channels` rows, each of `elements` of the format's type.
ChannelMatrix start(const char* op, const std::string& name, const WeightShapes& shapes, std::size_t hidden,
                    std::size_t elements) {
    const ov::element::Type type = shapes.format == WeightFormat::f32 ? ov::element::f32 : ov::element::u8;
    if (shapes.type != type || shapes.data.size() != 2 || shapes.data[1] != elements)
        fail(op, name, " weights are of shape ", shapes.data, " and type ", shapes.type,
             ", expected [channels, ", elements, "] of ", type);
    if (shapes.data[0] == 0)
        fail(op, name, " has no channels, expected at least 1");
    ChannelMatrix matrix{};
    matrix.format = shapes.format;
    matrix.channels = shapes.data[0];
    matrix.size = hidden;
    matrix.groups = 1;
    matrix.row_bytes = elements * type.size();
    return matrix;
}

void check_scales(const char* op, const std::string& name, const WeightShapes& shapes,
                  const ov::Shape& zero_points) {
    if (shapes.zero_points != zero_points)
        fail(op, name, " zero points are of shape ", shapes.zero_points, ", expected ", zero_points);
    const ov::Shape scales{zero_points[0], 2 * zero_points[1]};
    if (shapes.scales != scales)
        fail(op, name, " scales are of shape ", shapes.scales, ", expected ", scales, ", the bytes of f16");
}

// Number of groups, which is dimension `axis` of the zero points.
std::size_t groups_of(const char* op, const std::string& name, const WeightShapes& shapes, std::size_t axis,
                      std::size_t divided) {
    const std::size_t groups = shapes.zero_points.size() == 2 ? shapes.zero_points[axis] : 0;
    if (groups == 0 || divided % groups != 0)
        fail(op, name, " zero points are of shape ", shapes.zero_points,
             ", expected two dimensions with groups that divide ", divided);
    return groups;
}

} // namespace

WeightFormat parse_format(const char* op, const char* attribute, const std::string& value) {
    return choice_of<WeightFormat>(op, attribute, value,
                                   {{"f32", WeightFormat::f32},
                                    {"f16", WeightFormat::f16},
                                    {"u8", WeightFormat::u8},
                                    {"u4", WeightFormat::u4}});
}

ChannelMatrix describe_rows(const char* op, const std::string& name, const WeightShapes& shapes,
                            std::size_t hidden) {
    if (!quantised(shapes.format))
        return start(op, name, shapes, hidden, shapes.format == WeightFormat::f16 ? 2 * hidden : hidden);
    if (hidden > most_inputs) // sums of products have 32 bits
        fail(op, "rows have ", hidden, " values, expected at most ", most_inputs);
    const std::size_t groups = groups_of(op, name, shapes, 1, hidden);
    if (shapes.format == WeightFormat::u8 && groups != 1)
        fail(op, name, " weights of 8 bits have ", groups, " groups, expected 1: a scale per channel");
    const std::size_t bytes =
        shapes.format == WeightFormat::u8 ? hidden : row_size(groups, hidden / groups).vectors * 32;
    ChannelMatrix matrix = start(op, name, shapes, hidden, bytes);
    matrix.groups = groups;
    check_scales(op, name, shapes, {matrix.channels, groups});
    return matrix;
}

ChannelMatrix describe_columns(const char* op, const WeightShapes& shapes, std::size_t hidden) {
    const std::string name = "down";
    if (!quantised(shapes.format))
        return start(op, name, shapes, hidden, shapes.format == WeightFormat::f16 ? 2 * hidden : hidden);
    const std::size_t bytes =
        shapes.format == WeightFormat::u8 ? round_up(hidden, 64) : round_up(hidden, 128) / 2;
    ChannelMatrix matrix = start(op, name, shapes, hidden, bytes);
    matrix.groups = groups_of(op, name, shapes, 0, matrix.channels);
    if (shapes.format == WeightFormat::u8 && matrix.groups != 1)
        fail(op, name, " weights of 8 bits have ", matrix.groups, " groups, expected 1: a scale per output");
    check_scales(op, name, shapes, {matrix.groups, hidden});
    return matrix;
}

} // namespace ovspec

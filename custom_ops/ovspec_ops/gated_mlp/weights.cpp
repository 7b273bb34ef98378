#include "gated_mlp/weights.hpp"

#include "common/tensors.hpp"
#include "gated_mlp/row_layout.hpp"

namespace ovspec {
namespace {

std::size_t round_up(std::size_t x, std::size_t step) {
    return (x + step - 1) / step * step;
}

std::string text(std::size_t x) {
    return std::to_string(x);
}

std::string text(const ov::Shape& shape) {
    std::string out = "[";
    for (std::size_t i = 0; i < shape.size(); i++)
        out += (i ? "," : "") + text(shape[i]);
    return out + "]";
}

bool quantised(WeightFormat format) {
    return format == WeightFormat::u8 || format == WeightFormat::u4;
}

// A matrix of `channels` rows, each of `elements` of the format's type.
ChannelMatrix start(const char* op, const std::string& name, const WeightShapes& shapes, std::size_t hidden,
                    std::size_t elements) {
    const ov::element::Type type = shapes.format == WeightFormat::f32 ? ov::element::f32 : ov::element::u8;
    if (shapes.type != type || shapes.data.size() != 2 || shapes.data[1] != elements)
        fail(op, name + " weights are of shape " + text(shapes.data) + " and type " +
                     shapes.type.get_type_name() + ", expected [channels, " + text(elements) + "] of " +
                     type.get_type_name());
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
        fail(op, name + " zero points are of shape " + text(shapes.zero_points) + ", expected " +
                     text(zero_points));
    const ov::Shape scales{zero_points[0], 2 * zero_points[1]};
    if (shapes.scales != scales)
        fail(op, name + " scales are of shape " + text(shapes.scales) + ", expected " + text(scales) +
                     ", the bytes of f16");
}

// Number of groups, which is dimension `axis` of the zero points.
std::size_t groups_of(const char* op, const std::string& name, const WeightShapes& shapes, std::size_t axis,
                      std::size_t divided) {
    const std::size_t groups = shapes.zero_points.size() == 2 ? shapes.zero_points[axis] : 0;
    if (groups == 0 || divided % groups != 0)
        fail(op, name + " zero points are of shape " + text(shapes.zero_points) +
                     ", expected two dimensions with groups that divide " + text(divided));
    return groups;
}

} // namespace

WeightFormat parse_format(const char* op, const std::string& attribute, const std::string& value) {
    if (value == "f32")
        return WeightFormat::f32;
    if (value == "f16")
        return WeightFormat::f16;
    if (value == "u8")
        return WeightFormat::u8;
    if (value == "u4")
        return WeightFormat::u4;
    fail(op, "attribute " + attribute + " is '" + value + "', expected f32, f16, u8 or u4");
}

ChannelMatrix describe_rows(const char* op, const std::string& name, const WeightShapes& shapes,
                            std::size_t hidden) {
    if (!quantised(shapes.format))
        return start(op, name, shapes, hidden, shapes.format == WeightFormat::f16 ? 2 * hidden : hidden);
    const std::size_t groups = groups_of(op, name, shapes, 1, hidden);
    if (shapes.format == WeightFormat::u8 && groups != 1)
        fail(op,
             name + " weights of 8 bits have " + text(groups) + " groups, expected 1: a scale per channel");
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
    check_scales(op, name, shapes, {matrix.groups, hidden});
    return matrix;
}

} // namespace ovspec

// The weights of a gated MLP as its operation gets them.
#pragma once

#include <string>

#include <openvino/core/node.hpp>
#include <openvino/runtime/tensor.hpp>

#include "gated_mlp/kernel.hpp"

namespace ovspec {

// "f32", "f16", "u8" or "u4"; throws on another.
WeightFormat parse_format(const char* op, const char* attribute, const std::string& value);

// Format, and type and shapes of data, scales and zero points.
struct WeightShapes {
    WeightFormat format;
    ov::element::Type type;
    ov::Shape data, scales, zero_points;
};

// Gate or up `[channels, ...]` of rows of `hidden` inputs; throws where the shapes are of no format.
ChannelMatrix describe_rows(const char* op, const std::string& name, const WeightShapes& shapes,
                            std::size_t hidden);

// Down `[channels, ...]` of `hidden` outputs.
ChannelMatrix describe_columns(const char* op, const WeightShapes& shapes, std::size_t hidden);

} // namespace ovspec

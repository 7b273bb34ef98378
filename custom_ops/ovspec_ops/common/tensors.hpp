// What the operations share that needs OpenVINO types: checks of types and shapes, caches as CacheView.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>

#include <openvino/core/node.hpp>
#include <openvino/runtime/tensor.hpp>

#include "common/cache_view.hpp"
#include "common/isa.hpp"
#include "common/kernel_tables.hpp"
#include "common/sequences.hpp"
#include "common/weight_format.hpp"

namespace ovspec {

// Expected dimensions; -1: any. The plugin infers an operation's output shapes again in every pass, so checks
// allocate nothing where they find nothing.
using Dims = std::initializer_list<std::int64_t>;

// The value that an attribute names; throws where it is none of `choices`.
template <class Value>
Value choice_of(const char* op, const char* attribute, const std::string& given,
                std::initializer_list<std::pair<const char*, Value>> choices) {
    for (const auto& [name, value] : choices)
        if (given == name)
            return value;
    std::string names;
    for (const auto& [name, value] : choices)
        names += (names.empty() ? "" : ", ") + std::string(name);
    fail(op, "attribute ", attribute, " is '", given, "', expected one of ", names);
}

void check_at_least(const char* op, const char* attribute, std::int64_t value, std::int64_t least);
// Head sizes are multiples of 8 up to 1024.
void check_head_size(const char* op, const char* name, std::int64_t size);
void check_kv_heads(const char* op, std::int64_t kv_heads);

// Input `index` is of `type` and of the dimensions `shape`; what is still dynamic passes.
void check_input(const ov::Node& node, std::size_t index, const char* name, ov::element::Type type,
                 Dims shape);
void check_input_count(const ov::Node& node, std::size_t count);

// The same for a tensor at run time, whose rank may have been dynamic when the model was compiled. Call it
// before a dimension is read.
void check_tensor(const char* op, const ov::TensorVector& inputs, std::size_t index, const char* name,
                  ov::element::Type type, Dims shape);

// `hidden`, input 0: f32 `[.., size]` of at least two dimensions. Returns its rows.
std::size_t check_hidden(const char* op, const ov::Tensor& hidden);
void check_hidden_input(const ov::Node& node);

// A cache input whose type and shape may still be dynamic: the plugin fixes both when it compiles.
void check_cache_input(const ov::Node& node, std::size_t index, const char* name, std::int64_t kv_heads,
                       std::int64_t size);

// The cache in `tensor`; throws where its precision or layout is not one of CacheFormat.
CacheView view_cache(const char* op, const char* name, const ov::Tensor& tensor, std::int64_t kv_heads,
                     std::int64_t size);

inline void check_one_per_sequence(const char* op, const char* input, const ov::Tensor& tensor,
                                   std::size_t count) {
    if (tensor.get_size() != count)
        fail(op, input, " holds ", tensor.get_size(), " values, expected ", count, ": one per sequence");
}

// Gives a tensor a shape. OpenVINO's own takes a microsecond, for the shape that a tensor has too.
inline void reshape(ov::Tensor& tensor, std::initializer_list<std::size_t> shape) {
    const ov::Shape& had = tensor.get_shape();
    if (had.size() != shape.size() || !std::equal(shape.begin(), shape.end(), had.begin()))
        tensor.set_shape(ov::Shape(shape));
}

// `verify_tables` of a pass of so many rows.
struct PassTables {
    Sequences sequences;
    const std::int32_t* parents; // `[rows]` of a tree; null: chains

    static PassTables view(const char* op, const std::int32_t* data, std::size_t size, std::size_t rows);
    static PassTables view(const char* op, const ov::Tensor& tables, std::size_t rows) {
        return view(op, tables.data<const std::int32_t>(), tables.get_size(), rows);
    }
};

// Lets a matrix see its weights, from input `first` on: integers have scales and zero points behind them.
template <typename Matrix>
void set_data(const char* op, Matrix& matrix, const ov::TensorVector& inputs, std::size_t first) {
    matrix.data = static_cast<const std::uint8_t*>(inputs[first].data());
    if (matrix.format != WeightFormat::u8 && matrix.format != WeightFormat::u4)
        return;
    for (const std::size_t input : {first + 1, first + 2})
        if (inputs[input].get_element_type() != ov::element::u8)
            fail(op, input == first + 1 ? "scales" : "zero points", " (input ", input, ") are of type ",
                 inputs[input].get_element_type(), ", expected u8");
    matrix.scales = inputs[first + 1].data<const std::uint8_t>();
    matrix.zero_points = inputs[first + 2].data<const std::uint8_t>();
}

} // namespace ovspec

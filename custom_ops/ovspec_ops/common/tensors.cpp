#include "common/tensors.hpp"

namespace ovspec {
namespace {

constexpr std::int64_t most_kv_heads = 65536; // products with sizes fit 64 bits

const char* op_of(const ov::Node& node) {
    return node.get_type_info().name;
}

const char* const precisions = "expected f32, f16, bf16 or u8; set KV_CACHE_PRECISION to one of them";

std::int64_t length(std::size_t dimension) {
    return static_cast<std::int64_t>(dimension);
}

std::int64_t length(const ov::Dimension& dimension) {
    return dimension.is_static() ? dimension.get_length() : -1;
}

bool has_rank(const ov::Shape&) {
    return true;
}

bool has_rank(const ov::PartialShape& shape) {
    return shape.rank().is_static();
}

// Shapes are of a tensor, or of a node's input, where rank and dimensions may be unknown.
template <class Shape> bool has_dimensions(const Shape& shape, Dims dims) {
    if (!has_rank(shape))
        return true;
    bool fits = shape.size() == dims.size();
    for (std::size_t i = 0; fits && i < shape.size(); i++) {
        const std::int64_t found = length(shape[i]), expected = dims.begin()[i];
        fits = found == -1 || expected == -1 || found == expected;
    }
    return fits;
}

std::string input_name(const char* name, std::size_t index) {
    return std::string(name) + " (input " + std::to_string(index) + ")";
}

// `what()` names the cache.
template <class Shape, class What>
void check_cache_shape(const char* op, const What& what, ov::element::Type type, const Shape& shape,
                       std::int64_t kv_heads, std::int64_t size) {
    if (type.is_static() && type != ov::element::f32 && type != ov::element::f16 &&
        type != ov::element::bf16 && type != ov::element::u8)
        fail(op, what(), " is of type ", type, ", ", precisions);
    const std::int64_t token = static_cast<std::int64_t>(block_size);
    const bool quantised = type.is_dynamic() || type == ov::element::u8;
    const bool plain = type.is_dynamic() || type != ov::element::u8;
    if ((plain && has_dimensions(shape, {-1, kv_heads, token, size})) ||
        (quantised && (has_dimensions(shape, {-1, kv_heads, token, size + 8}) ||
                       has_dimensions(shape, {-1, kv_heads, token + 8, size}))))
        return;
    const std::string head = "[blocks, " + std::to_string(kv_heads) + ", ";
    const std::string real = head + std::to_string(token) + ", " + std::to_string(size) + "]";
    const std::string u8 = head + std::to_string(token) + ", " + std::to_string(size + 8) +
                           "] (by token) or " + head + std::to_string(token + 8) + ", " +
                           std::to_string(size) + "] (by channel)";
    fail(op, what(), " is of shape ", shape, " and type ", type, ", expected ",
         (type == ov::element::u8 ? u8 : real), "; check kv_heads and the head size");
}

template <class Shape>
void check_value(const char* op, std::size_t index, const char* name, ov::element::Type got_type,
                 ov::element::Type type, const Shape& got, Dims shape) {
    if (got_type.is_static() && got_type != type)
        fail(op, input_name(name, index), " is of type ", got_type, ", expected ", type);
    if (!has_dimensions(got, shape))
        fail(op, input_name(name, index), " is of shape ", got, ", expected ",
             ov::PartialShape(std::vector<ov::Dimension>(shape.begin(), shape.end())));
}

template <class Shape> void check_hidden_shape(const char* op, ov::element::Type type, const Shape& shape) {
    if (type.is_static() && type != ov::element::f32)
        fail(op, "hidden (input 0) is of type ", type, ", expected f32");
    if (has_rank(shape) && shape.size() < 2)
        fail(op, "hidden (input 0) has ", shape.size(), " dimensions, expected [rows, size] or more");
    if (has_rank(shape) && shape[shape.size() - 1] == 0)
        fail(op, "hidden (input 0) has rows of no values, expected at least 1");
}

} // namespace

void check_at_least(const char* op, const char* attribute, std::int64_t value, std::int64_t least) {
    if (value < least)
        fail(op, "attribute ", attribute, " is ", value, ", expected at least ", least);
}

void check_kv_heads(const char* op, std::int64_t kv_heads) {
    if (kv_heads < 1 || kv_heads > most_kv_heads)
        fail(op, "attribute kv_heads is ", kv_heads, ", expected 1 to ", most_kv_heads);
}

void check_head_size(const char* op, const char* name, std::int64_t size) {
    if (size < 8 || size > 1024 || size % 8 != 0)
        fail(op, "attribute ", name, " is ", size, ", expected a multiple of 8 from 8 to 1024");
}

void check_input_count(const ov::Node& node, std::size_t count) {
    if (node.get_input_size() != count)
        fail(op_of(node), "got ", node.get_input_size(), " inputs, expected ", count);
}

void check_input(const ov::Node& node, std::size_t index, const char* name, ov::element::Type type,
                 Dims shape) {
    check_value(op_of(node), index, name, node.get_input_element_type(index), type,
                node.get_input_partial_shape(index), shape);
}

void check_tensor(const char* op, const ov::TensorVector& inputs, std::size_t index, const char* name,
                  ov::element::Type type, Dims shape) {
    check_value(op, index, name, inputs[index].get_element_type(), type, inputs[index].get_shape(), shape);
}

void check_hidden_input(const ov::Node& node) {
    check_hidden_shape(op_of(node), node.get_input_element_type(0), node.get_input_partial_shape(0));
}

std::size_t check_hidden(const char* op, const ov::Tensor& hidden) {
    const ov::Shape& shape = hidden.get_shape();
    check_hidden_shape(op, hidden.get_element_type(), shape);
    return ov::shape_size(shape.begin(), shape.end() - 1);
}

void check_cache_input(const ov::Node& node, std::size_t index, const char* name, std::int64_t kv_heads,
                       std::int64_t size) {
    check_cache_shape(
        op_of(node), [&] { return input_name(name, index); }, node.get_input_element_type(index),
        node.get_input_partial_shape(index), kv_heads, size);
}

CacheView view_cache(const char* op, const char* name, const ov::Tensor& tensor, std::int64_t kv_heads,
                     std::int64_t size) {
    const ov::element::Type type = tensor.get_element_type();
    const ov::Shape& shape = tensor.get_shape();
    check_cache_shape(op, [&] { return std::string(name); }, type, shape, kv_heads, size);
    CacheView view;
    view.data = static_cast<const std::uint8_t*>(tensor.data());
    view.blocks = shape[0];
    view.heads = shape[1];
    view.size = static_cast<std::size_t>(size);
    view.row_bytes = shape[3] * type.size();
    view.block_bytes = shape[2] * view.row_bytes;
    if (type == ov::element::f32)
        view.format = CacheFormat::f32;
    else if (type == ov::element::f16)
        view.format = CacheFormat::f16;
    else if (type == ov::element::bf16)
        view.format = CacheFormat::bf16;
    else
        view.format = shape[2] == block_size ? CacheFormat::u8_token : CacheFormat::u8_channel;
    return view;
}

PassTables PassTables::view(const char* op, const std::int32_t* data, std::size_t size, std::size_t rows) {
    constexpr std::size_t lengths = 2;
    if (size < lengths || data[0] < 0 || data[1] < 0 ||
        size < lengths + 3 * static_cast<std::size_t>(data[0]) + 2 + static_cast<std::size_t>(data[1]))
        fail(op, "verify_tables holds ", size, " values, fewer than the tables whose lengths it begins with");
    const std::size_t count = static_cast<std::size_t>(data[0]), own = static_cast<std::size_t>(data[1]);
    if (own != 0 && own != rows && rows != 0) // a layer that the pass leaves out has no row
        fail(op, "verify_parents holds ", own, " values, expected ", rows, ", or none for a chain");
    const std::int32_t* begins = data + lengths;
    const std::int32_t* past = begins + count + 1;
    const std::int32_t* block_begins = past + count;
    const std::int32_t* following = block_begins + count + 1;
    const std::int32_t* blocks = following + own;
    const std::size_t table_size = size - static_cast<std::size_t>(blocks - data);
    return {{op, rows, count, begins, past, blocks, block_begins, table_size}, own ? following : nullptr};
}

} // namespace ovspec

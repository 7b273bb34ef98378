#include "cache_write/op.hpp"

#include "cache_write/kernel.hpp"
#include "common/parallel.hpp"
#include "common/tensors.hpp"

namespace ovspec {
namespace {

constexpr const char* name = "CacheWrite";

enum Input : std::size_t { key, value, key_cache, value_cache, slot_mapping, input_count };

void check_written(const char* what, const CacheView& cache) {
    if (cache.format != CacheFormat::u8_token && cache.format != CacheFormat::f32)
        fail(name, what, " has rows of ", cache.row_bytes, " bytes for ", cache.size,
             " values, expected u8 by token or f32; let the stock node write other caches");
}

} // namespace

void CacheWrite::validate_and_infer_types() {
    const auto& a = attributes_;
    check_kv_heads(name, a.kv_heads);
    check_head_size(name, "k_size", a.k_size);
    check_head_size(name, "v_size", a.v_size);
    check_input_count(*this, input_count);
    check_input(*this, key, "key", ov::element::f32, {-1, a.kv_heads * a.k_size});
    check_input(*this, value, "value", ov::element::f32, {-1, a.kv_heads * a.v_size});
    check_cache_input(*this, key_cache, "key_cache", a.kv_heads, a.k_size);
    check_cache_input(*this, value_cache, "value_cache", a.kv_heads, a.v_size);
    check_input(*this, slot_mapping, "slot_mapping", ov::element::i32, {-1});
    const auto& rows = get_input_partial_shape(key);
    set_output_type(0, ov::element::f32,
                    ov::PartialShape{rows.rank().is_static() ? rows[0] : ov::Dimension(), 0});
}

void CacheWrite::compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    const auto& a = attributes_;
    check_tensor(name, inputs, key, "key", ov::element::f32, {-1, a.kv_heads * a.k_size});
    check_tensor(name, inputs, value, "value", ov::element::f32, {-1, a.kv_heads * a.v_size});
    const std::size_t rows = inputs[key].get_shape()[0];
    if (inputs[value].get_shape()[0] != rows)
        fail(name, "value holds ", inputs[value].get_shape()[0], " rows, expected the ", rows, " of key");
    outputs[0].set_shape({rows, 0});
    write(inputs[key].data<const float>(), inputs[value].data<const float>(), rows,
          view_cache(name, "key_cache", inputs[key_cache], a.kv_heads, a.k_size),
          view_cache(name, "value_cache", inputs[value_cache], a.kv_heads, a.v_size), inputs[slot_mapping]);
}

void CacheWrite::write(const float* key_rows, const float* value_rows, std::size_t rows,
                       const CacheView& keys, const CacheView& values, const ov::Tensor& slot_mapping) const {
    check_written("key_cache", keys);
    check_written("value_cache", values);
    if (slot_mapping.get_element_type() != ov::element::i32)
        fail(name, "slot_mapping is of type ", slot_mapping.get_element_type(), ", expected i32");
    if (rows == 0) // whatever the slots
        return;
    if (slot_mapping.get_size() != rows)
        fail(name, "slot_mapping holds ", slot_mapping.get_size(), " slots, expected one for each of ", rows,
             " rows");
    const std::int32_t* slots = slot_mapping.data<const std::int32_t>();
    const std::size_t most = std::min(keys.blocks, values.blocks) * block_size;
    for (std::size_t r = 0; r < rows; r++)
        if (slots[r] < 0 || static_cast<std::size_t>(slots[r]) >= most)
            fail(name, "slot_mapping[", r, "] is ", slots[r], ", expected a slot below the ", most,
                 " of the caches");

    // The caches are buffers that the pass updates in place, as the stock node does.
    auto* key_bytes = const_cast<std::uint8_t*>(keys.data);
    auto* value_bytes = const_cast<std::uint8_t*>(values.data);
    const WriteKernels& kernels = OVSPEC_KERNELS(write_kernels);
    const std::size_t key_row = keys.heads * keys.size, value_row = values.heads * values.size;
    parallel_items(rows, rows * (key_row + value_row), [&](std::size_t r) {
        const std::size_t slot = static_cast<std::size_t>(slots[r]);
        kernels.write_row(keys, key_bytes, slot, key_rows + r * key_row);
        kernels.write_row(values, value_bytes, slot, value_rows + r * value_row);
    });
}

} // namespace ovspec

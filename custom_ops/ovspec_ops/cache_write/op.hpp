// OpenVINO operation CacheWrite: see README.md for inputs and semantics.
#pragma once

#include "common/cache_view.hpp"
#include "common/operation.hpp"

namespace ovspec {

struct CacheWriteAttributes {
    std::int64_t kv_heads = 0;
    std::int64_t k_size = 0;
    std::int64_t v_size = 0;

    void visit(ov::AttributeVisitor& visitor) {
        visitor.on_attribute("kv_heads", kv_heads);
        visitor.on_attribute("k_size", k_size);
        visitor.on_attribute("v_size", v_size);
    }
};

class CacheWrite : public Operation<CacheWrite, CacheWriteAttributes> {
public:
    OPENVINO_OP("CacheWrite", "ovspec");
    static constexpr const char* step_name = "cache_write";

    void validate_and_infer_types() override;
    void compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const;

    // Rows `[rows, kv_heads * size]` into the caches.
    void write(const float* key_rows, const float* value_rows, std::size_t rows, const CacheView& keys,
               const CacheView& values, const ov::Tensor& slot_mapping) const;
};

} // namespace ovspec

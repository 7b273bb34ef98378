// OpenVINO operation KeySummary: see README.md for inputs and semantics.
#pragma once

#include "common/cache_view.hpp"
#include "common/operation.hpp"

namespace ovspec {

struct KeySummaryAttributes {
    std::int64_t kv_heads = 0;
    std::int64_t k_size = 0;

    void visit(ov::AttributeVisitor& visitor) {
        visitor.on_attribute("kv_heads", kv_heads);
        visitor.on_attribute("k_size", k_size);
    }
};

// What one call reads and writes.
struct SummaryCall {
    std::size_t rows; // written by the pass
    CacheView keys;
    std::uint8_t* summary;
    const ov::Tensor* tables;
    const ov::Tensor* summarised;
};

class KeySummary : public Operation<KeySummary, KeySummaryAttributes> {
public:
    OPENVINO_OP("KeySummary", "ovspec");
    static constexpr const char* step_name = "key_summary";

    void validate_and_infer_types() override;
    void check_attributes() const;
    void compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const;
    void summarise(const SummaryCall& call) const;
};

} // namespace ovspec

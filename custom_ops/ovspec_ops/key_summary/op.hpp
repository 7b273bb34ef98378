// OpenVINO operation KeySummary: see README.md for inputs and semantics.
#pragma once

#include <string>

#include "common/operation.hpp"

namespace ovspec {

// Rows of `k_size` values that a summary of this kind holds per block and KV head, 1 ("mean") or 2
// ("min_max").
std::int64_t summary_rows(const char* op, const std::string& summary);

struct KeySummaryAttributes {
    std::int64_t kv_heads = 0;
    std::int64_t k_size = 0;
    std::string summary = "mean";

    void visit(ov::AttributeVisitor& visitor) {
        visitor.on_attribute("kv_heads", kv_heads);
        visitor.on_attribute("k_size", k_size);
        visitor.on_attribute("summary", summary);
    }
};

class KeySummary : public Operation<KeySummary, KeySummaryAttributes> {
public:
    OPENVINO_OP("KeySummary", "ovspec");

    void validate_and_infer_types() override;
    void compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const;
};

} // namespace ovspec

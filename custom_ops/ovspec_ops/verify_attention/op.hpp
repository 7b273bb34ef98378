// OpenVINO operation VerifyAttention: see README.md for inputs and semantics.
#pragma once

#include <limits>

#include "common/cache_view.hpp"
#include "common/operation.hpp"

namespace ovspec {

struct VerifyAttentionAttributes {
    std::int64_t kv_heads = 0;
    std::int64_t k_size = 0;
    std::int64_t v_size = 0;
    float scale = std::numeric_limits<float>::quiet_NaN();
    std::int64_t sliding_window = 0;
    std::int64_t past_window = 0;
    bool causal = true;

    void visit(ov::AttributeVisitor& visitor) {
        visitor.on_attribute("kv_heads", kv_heads);
        visitor.on_attribute("k_size", k_size);
        visitor.on_attribute("v_size", v_size);
        visitor.on_attribute("scale", scale);
        visitor.on_attribute("sliding_window", sliding_window);
        visitor.on_attribute("past_window", past_window);
        visitor.on_attribute("causal", causal);
    }
};

// What one call reads and writes.
struct AttentionCall {
    std::size_t rows, width; // of `query`
    const float* query;
    CacheView keys, values;
    const ov::Tensor* tables;
    const ov::Tensor *selected_blocks, *selected_counts, *sinks; // null: none of the three
    const float* attention; // rows of sequences that take no part; null: zeros
    float* output;          // `[rows, heads * v_size]`
};

class VerifyAttention : public Operation<VerifyAttention, VerifyAttentionAttributes> {
public:
    OPENVINO_OP("VerifyAttention", "ovspec");
    static constexpr const char* step_name = "attention";

    void validate_and_infer_types() override;
    void check_attributes() const;
    void compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const;
    void attend(const AttentionCall& call) const;
};

} // namespace ovspec

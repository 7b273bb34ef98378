// OpenVINO operation BlockSelect: see README.md for inputs and semantics.
#pragma once

#include <string>

#include "common/operation.hpp"

namespace ovspec {

struct BlockSelectAttributes {
    std::int64_t kv_heads = 0;
    std::int64_t k_size = 0;
    std::string rule = "mass";
    std::int64_t sink_blocks = 1;
    std::int64_t local_blocks = 1;
    float scale = 1.0f;

    void visit(ov::AttributeVisitor& visitor) {
        visitor.on_attribute("kv_heads", kv_heads);
        visitor.on_attribute("k_size", k_size);
        visitor.on_attribute("rule", rule);
        visitor.on_attribute("sink_blocks", sink_blocks);
        visitor.on_attribute("local_blocks", local_blocks);
        visitor.on_attribute("scale", scale);
    }
};

// What one call reads and writes.
struct SelectCall {
    std::size_t rows, width;     // of `query`
    const float* query;          // `[rows, width]`
    const std::uint8_t* summary; // `[blocks, kv_heads, bytes of a summary]`
    std::size_t blocks;
    const ov::Tensor *tables, *budgets, *coverage;
    ov::Tensor *selected, *counts;
};

class BlockSelect : public Operation<BlockSelect, BlockSelectAttributes> {
public:
    OPENVINO_OP("BlockSelect", "ovspec");
    static constexpr const char* step_name = "block_select";

    void validate_and_infer_types() override;
    void check_attributes() const;
    void compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const;
    void select(const SelectCall& call) const;
};

} // namespace ovspec

// OpenVINO operation BlockSelect: see README.md for inputs and semantics.
#pragma once

#include <string>

#include <openvino/op/op.hpp>

namespace ovspec {

class BlockSelect : public ov::op::Op {
public:
    OPENVINO_OP("BlockSelect", "ovspec");

    struct Attributes {
        std::int64_t kv_heads = 0;
        std::int64_t k_size = 0;
        std::string summary = "mean";
        std::string query = "last";
        std::int64_t sink_blocks = 1;
        std::int64_t local_blocks = 1;
        float scale = 1.0f;
    };

    BlockSelect() = default;
    BlockSelect(const ov::OutputVector& inputs, const BlockSelect& like);

    void validate_and_infer_types() override;
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    bool visit_attributes(ov::AttributeVisitor& visitor) override;
    bool has_evaluate() const override { return true; }
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override;

private:
    Attributes attributes_;
};

} // namespace ovspec

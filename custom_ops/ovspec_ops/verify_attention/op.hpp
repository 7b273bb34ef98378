// OpenVINO operation VerifyAttention: see README.md for inputs and semantics.
#pragma once

#include <limits>

#include <openvino/op/op.hpp>

namespace ovspec {

class VerifyAttention : public ov::op::Op {
public:
    OPENVINO_OP("VerifyAttention", "ovspec");

    VerifyAttention() = default;
    VerifyAttention(const ov::OutputVector& inputs, const VerifyAttention& attributes);

    void validate_and_infer_types() override;
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    bool visit_attributes(ov::AttributeVisitor& visitor) override;
    bool has_evaluate() const override { return true; }
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override;

private:
    std::int64_t kv_heads_ = 0;
    std::int64_t k_size_ = 0;
    std::int64_t v_size_ = 0;
    float scale_ = std::numeric_limits<float>::quiet_NaN();
    std::int64_t sliding_window_ = 0;
};

} // namespace ovspec

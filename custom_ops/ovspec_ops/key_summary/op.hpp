// OpenVINO operation KeySummary: see README.md for inputs and semantics.
#pragma once

#include <string>

#include <openvino/op/op.hpp>

namespace ovspec {

// Rows of `k_size` values that a summary of this kind holds per block and KV head, 1 ("mean") or 2
// ("min_max").
std::int64_t summary_rows(const char* op, const std::string& summary);

class KeySummary : public ov::op::Op {
public:
    OPENVINO_OP("KeySummary", "ovspec");

    KeySummary() = default;
    KeySummary(const ov::OutputVector& inputs, const KeySummary& attributes);

    void validate_and_infer_types() override;
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    bool visit_attributes(ov::AttributeVisitor& visitor) override;
    bool has_evaluate() const override { return true; }
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override;

private:
    std::int64_t kv_heads_ = 0;
    std::int64_t k_size_ = 0;
    std::string summary_ = "mean";
};

} // namespace ovspec

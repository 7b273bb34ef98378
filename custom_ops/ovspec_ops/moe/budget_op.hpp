// OpenVINO operation ExpertBudget: see README.md for inputs and semantics.
#pragma once

#include <openvino/op/op.hpp>

namespace ovspec {

class ExpertBudget : public ov::op::Op {
public:
    OPENVINO_OP("ExpertBudget", "ovspec");

    ExpertBudget() = default;
    ExpertBudget(const ov::OutputVector& inputs, const ExpertBudget& attributes);

    void validate_and_infer_types() override;
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    bool visit_attributes(ov::AttributeVisitor& visitor) override;
    bool has_evaluate() const override { return true; }
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override;

private:
    std::int64_t experts_ = 0;
    std::int64_t layer_ = 0;
};

} // namespace ovspec

// OpenVINO operation SparseMoE: see README.md for inputs and semantics.
#pragma once

#include <openvino/op/op.hpp>

namespace ovspec {

class SparseMoE : public ov::op::Op {
public:
    OPENVINO_OP("SparseMoE", "ovspec");

    SparseMoE() = default;
    SparseMoE(const ov::OutputVector& inputs, const SparseMoE& attributes);

    void validate_and_infer_types() override;
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    bool visit_attributes(ov::AttributeVisitor& visitor) override;
    bool has_evaluate() const override { return true; }
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override;

private:
    double limit_ = 0.0;
    double alpha_ = 1.0;
};

} // namespace ovspec

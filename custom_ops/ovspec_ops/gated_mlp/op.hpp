// OpenVINO operation GatedMLP: see README.md for inputs and semantics.
#pragma once

#include <string>

#include <openvino/op/op.hpp>

namespace ovspec {

class GatedMLP : public ov::op::Op {
public:
    OPENVINO_OP("GatedMLP", "ovspec");

    GatedMLP() = default;
    GatedMLP(const ov::OutputVector& inputs, const GatedMLP& attributes);

    void validate_and_infer_types() override;
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    bool visit_attributes(ov::AttributeVisitor& visitor) override;
    bool has_evaluate() const override { return true; }
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override;

private:
    std::string activation_ = "silu";
    std::string gate_format_, up_format_, down_format_;
    std::int64_t layer_ = 0;
    std::int64_t row_bits_ = 16;
};

} // namespace ovspec

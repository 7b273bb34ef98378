// OpenVINO operation Linear: see README.md for inputs and semantics.
#pragma once

#include <string>
#include <vector>

#include <openvino/op/op.hpp>

#include "linear/kernel.hpp"

namespace ovspec {

class Linear : public ov::op::Op {
public:
    OPENVINO_OP("Linear", "ovspec");

    Linear() = default;
    Linear(const ov::OutputVector& inputs, const Linear& attributes);

    void validate_and_infer_types() override;
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    bool visit_attributes(ov::AttributeVisitor& visitor) override;
    bool has_evaluate() const override { return true; }
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override;

private:
    // Weights of rows of `inputs` values, without their data; throws where the attributes do not fit.
    LinearWeights describe(std::size_t inputs) const;
    std::size_t panels() const;

    std::string format_;
    std::int64_t groups_ = 1;
    std::int64_t row_bits_ = 16;
    std::vector<std::int64_t> sizes_;
};

} // namespace ovspec

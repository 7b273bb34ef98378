// OpenVINO operation ExpertBudget: see README.md for inputs and semantics.
#pragma once

#include "common/operation.hpp"

namespace ovspec {

struct ExpertBudgetAttributes {
    std::int64_t experts = 0;
    std::int64_t layer = 0;

    void visit(ov::AttributeVisitor& visitor) {
        visitor.on_attribute("experts", experts);
        visitor.on_attribute("layer", layer);
    }
};

class ExpertBudget : public Operation<ExpertBudget, ExpertBudgetAttributes> {
public:
    OPENVINO_OP("ExpertBudget", "ovspec");
    static constexpr const char* step_name = "expert_budget";

    void validate_and_infer_types() override;
    void check_attributes() const;
    void compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const;
};

} // namespace ovspec

// OpenVINO operation SparseMoE: see README.md for inputs and semantics.
#pragma once

#include "common/operation.hpp"

namespace ovspec {

struct SparseMoEAttributes {
    double limit = 0.0;
    double alpha = 1.0;

    void visit(ov::AttributeVisitor& visitor) {
        visitor.on_attribute("limit", limit);
        visitor.on_attribute("alpha", alpha);
    }
};

class SparseMoE : public Operation<SparseMoE, SparseMoEAttributes> {
public:
    OPENVINO_OP("SparseMoE", "ovspec");
    static constexpr const char* step_name = "experts";

    void validate_and_infer_types() override;
    void check_attributes() const;
    void compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const;
};

} // namespace ovspec

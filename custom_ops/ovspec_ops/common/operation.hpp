// What every operation is as a node of OpenVINO.
#pragma once

#include <memory>

#include <openvino/op/op.hpp>

namespace ovspec {

// `Self`, an operation with `attributes_` that evaluates itself. `Attributes` are values with their defaults,
// and visit(visitor) that names each.
template <class Self, class Attributes> class Operation : public ov::op::Op {
public:
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        const auto clone = std::make_shared<Self>();
        clone->attributes_ = attributes_;
        clone->set_arguments(inputs);
        clone->constructor_validate_and_infer_types();
        return clone;
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        attributes_.visit(visitor);
        return true;
    }

    bool has_evaluate() const override { return true; }

protected:
    Attributes attributes_;
};

} // namespace ovspec

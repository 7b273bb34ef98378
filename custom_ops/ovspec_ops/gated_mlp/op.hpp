// OpenVINO operation GatedMLP: see README.md for inputs and semantics.
#pragma once

#include <string>

#include "common/operation.hpp"

namespace ovspec {

struct GatedMLPAttributes {
    std::string activation = "silu";
    std::string gate_format;
    std::string up_format;
    std::string down_format;
    std::int64_t layer = 0;
    std::int64_t row_bits = 16;

    void visit(ov::AttributeVisitor& visitor) {
        visitor.on_attribute("activation", activation);
        visitor.on_attribute("gate_format", gate_format);
        visitor.on_attribute("up_format", up_format);
        visitor.on_attribute("down_format", down_format);
        visitor.on_attribute("layer", layer);
        visitor.on_attribute("row_bits", row_bits);
    }
};

class GatedMLP : public Operation<GatedMLP, GatedMLPAttributes> {
public:
    OPENVINO_OP("GatedMLP", "ovspec");
    static constexpr const char* step_name = "gated_mlp";

    void validate_and_infer_types() override;
    void check_attributes() const;
    void compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const;
};

} // namespace ovspec

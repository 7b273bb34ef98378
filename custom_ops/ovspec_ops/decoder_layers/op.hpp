// OpenVINO operation DecoderLayers: see README.md for inputs and semantics.
#pragma once

#include <memory>
#include <string>

#include "common/operation.hpp"

namespace ovspec {

struct LayersProgram;

struct DecoderLayersAttributes {
    std::string program;
    std::shared_ptr<const LayersProgram> parsed; // of `program`; clones share it

    void visit(ov::AttributeVisitor& visitor) { visitor.on_attribute("program", program); }
};

class DecoderLayers : public Operation<DecoderLayers, DecoderLayersAttributes> {
public:
    OPENVINO_OP("DecoderLayers", "ovspec");
    static constexpr const char* step_name = nullptr; // its steps have names

    void validate_and_infer_types() override;
    void compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const;
};

} // namespace ovspec

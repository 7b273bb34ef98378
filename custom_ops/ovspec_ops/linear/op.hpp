// OpenVINO operation Linear: see README.md for inputs and semantics.
#pragma once

#include <string>
#include <vector>

#include "common/operation.hpp"
#include "linear/kernel.hpp"

namespace ovspec {

struct LinearAttributes {
    std::string format;
    std::int64_t groups = 1;
    std::int64_t row_bits = 16;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> adapter_layers; // of each output; empty: there are no adapters

    void visit(ov::AttributeVisitor& visitor) {
        visitor.on_attribute("format", format);
        visitor.on_attribute("groups", groups);
        visitor.on_attribute("row_bits", row_bits);
        visitor.on_attribute("sizes", sizes);
        visitor.on_attribute("adapter_layers", adapter_layers);
    }
};

class Linear : public Operation<Linear, LinearAttributes> {
public:
    OPENVINO_OP("Linear", "ovspec");
    static constexpr const char* step_name = "linear";

    void validate_and_infer_types() override;
    void compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const;

    // Weights of rows of `inputs` values, without their data; throws where the attributes do not fit.
    LinearWeights describe(std::size_t inputs) const;
    std::size_t panels() const;
    void check_adapter_layers() const;
};

} // namespace ovspec

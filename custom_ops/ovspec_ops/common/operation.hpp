// What every operation is as a node of OpenVINO.
#pragma once

#include <exception>
#include <memory>

#include <openvino/op/op.hpp>

#include "common/faults.hpp"
#include "common/held_calls.hpp"
#include "common/step_times.hpp"
#include "common/threads.hpp"

namespace ovspec {

// `Self`, an operation with `attributes_` and compute(outputs, inputs). `Attributes` are values with their
// defaults, and visit(visitor) that names each. `Self::step_name` is what it is called as a step of
// DecoderLayers.
//
// Every operation has the attribute `threads` too, of `with_threads`.
template <class Self, class Attributes> class Operation : public ov::op::Op {
public:
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        const auto clone = std::make_shared<Self>();
        clone->attributes_ = attributes_;
        clone->threads_ = threads_;
        clone->set_arguments(inputs);
        clone->constructor_validate_and_infer_types();
        return clone;
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        attributes_.visit(visitor);
        visitor.on_attribute("threads", threads_);
        return true;
    }

    bool has_evaluate() const override { return true; }

    // For a step of DecoderLayers, which computes with the operation and has no node of it.
    Attributes& attributes() { return attributes_; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
#ifdef OVSPEC_STD_THREADS
        const auto self = this->shared_from_this();
        const auto call = [self, this, outputs, inputs]() mutable { guarded(outputs, inputs); };
        if (HeldCalls::all().take(call))
            return true;
#endif
        const StepTimer timer(Self::step_name);
        guarded(outputs, inputs);
        return true;
    }

protected:
    Attributes attributes_;

private:
    void guarded(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
        try {
            with_threads(Self::get_type_info_static().name, threads_,
                         [&] { static_cast<const Self*>(this)->compute(outputs, inputs); });
        } catch (const std::exception& error) {
            Faults::all().add(error.what());
            throw;
        }
    }

    std::int64_t threads_ = 0;
};

} // namespace ovspec

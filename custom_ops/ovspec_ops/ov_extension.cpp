// The operations of this library, as OpenVINO finds them through core.add_extension.
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>

#include "block_select/op.hpp"
#include "cache_write/op.hpp"
#include "common/isa.hpp"
#include "decoder_layers/op.hpp"
#include "gated_mlp/op.hpp"
#include "key_summary/op.hpp"
#include "linear/op.hpp"
#include "moe/budget_op.hpp"
#include "moe/op.hpp"
#include "verify_attention/op.hpp"

namespace {

std::vector<ov::Extension::Ptr> operations() {
    ovspec::active_isa(); // an OVSPEC_ISA that cannot be met fails here, not in the first inference
    return {
        std::make_shared<ov::OpExtension<ovspec::VerifyAttention>>(),
        std::make_shared<ov::OpExtension<ovspec::CacheWrite>>(),
        std::make_shared<ov::OpExtension<ovspec::KeySummary>>(),
        std::make_shared<ov::OpExtension<ovspec::BlockSelect>>(),
        std::make_shared<ov::OpExtension<ovspec::SparseMoE>>(),
        std::make_shared<ov::OpExtension<ovspec::ExpertBudget>>(),
        std::make_shared<ov::OpExtension<ovspec::GatedMLP>>(),
        std::make_shared<ov::OpExtension<ovspec::Linear>>(),
        std::make_shared<ov::OpExtension<ovspec::DecoderLayers>>(),
    };
}

} // namespace

OPENVINO_CREATE_EXTENSIONS(operations());

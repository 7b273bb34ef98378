"""Graph transforms: `openvino.Model` in, `openvino.Model` out, with a report of what was changed."""

from ovspec_transforms.attention.anchors import (
    anchor_of,
    check_anchor_layers,
    choose_anchors,
    default_anchor_layers,
    list_overlap,
)
from ovspec_transforms.attention.long_rope import ROPE_LENGTHS, rope_limit, split_long_rope
from ovspec_transforms.attention.paged_cache import PagedLayer, paged_layers, to_paged
from ovspec_transforms.attention.paged_reader import PagedAttentionReader
from ovspec_transforms.attention.route_rows import route_rows
from ovspec_transforms.attention.select_blocks import select_blocks, selecting_layers, watch_selections
from ovspec_transforms.attention.select_blocks_stock import select_blocks_stock
from ovspec_transforms.attention.selection import Selection
from ovspec_transforms.errors import last_line
from ovspec_transforms.experts.budget_experts import (
    EXPERTS_READ,
    VERIFY_EXPERT_BUDGETS,
    budget_experts,
    check_expert_budget,
)
from ovspec_transforms.experts.budget_experts_stock import budget_experts_stock
from ovspec_transforms.experts.moe_layers import MoELayer, moe_layers
from ovspec_transforms.experts.sparse_moe import sparse_moe
from ovspec_transforms.experts.watch_routing import ROUTING_INDICES, ROUTING_WEIGHTS, watch_routing
from ovspec_transforms.ffn.ffn_layers import FfnLayer, ffn_layers
from ovspec_transforms.ffn.limit_channels import (
    CHANNELS_READ,
    VERIFY_CHANNEL_LIMITS,
    VERIFY_ROW_WEIGHTS,
    limit_channels,
)
from ovspec_transforms.ffn.round_rows import RowBits, round_rows
from ovspec_transforms.ffn.sparse_ffn import sparse_ffn
from ovspec_transforms.ffn.watch_channels import (
    GATE_ACTIVATIONS,
    watch_channels,
)
from ovspec_transforms.heads.gather_logits import gather_logits
from ovspec_transforms.linear.native_linear import Arithmetic, linear_layers, native_linear
from ovspec_transforms.report import PassReport
from ovspec_transforms.weights.decompression import decompression_convert

__all__ = [
    "CHANNELS_READ",
    "EXPERTS_READ",
    "GATE_ACTIVATIONS",
    "ROPE_LENGTHS",
    "ROUTING_INDICES",
    "ROUTING_WEIGHTS",
    "VERIFY_CHANNEL_LIMITS",
    "VERIFY_EXPERT_BUDGETS",
    "VERIFY_ROW_WEIGHTS",
    "Arithmetic",
    "FfnLayer",
    "MoELayer",
    "PagedAttentionReader",
    "PagedLayer",
    "PassReport",
    "RowBits",
    "Selection",
    "anchor_of",
    "budget_experts",
    "budget_experts_stock",
    "check_anchor_layers",
    "check_expert_budget",
    "choose_anchors",
    "decompression_convert",
    "default_anchor_layers",
    "ffn_layers",
    "gather_logits",
    "last_line",
    "limit_channels",
    "linear_layers",
    "list_overlap",
    "moe_layers",
    "native_linear",
    "paged_layers",
    "rope_limit",
    "round_rows",
    "route_rows",
    "select_blocks",
    "select_blocks_stock",
    "selecting_layers",
    "sparse_ffn",
    "sparse_moe",
    "split_long_rope",
    "to_paged",
    "watch_channels",
    "watch_routing",
    "watch_selections",
]

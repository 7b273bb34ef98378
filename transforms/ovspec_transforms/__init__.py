"""Graph transforms: `openvino.Model` in, `openvino.Model` out, with a report of what was changed."""

from ovspec_transforms.anchors import (
    anchor_of,
    check_anchor_layers,
    choose_anchors,
    default_anchor_layers,
    list_overlap,
)
from ovspec_transforms.budget_experts import (
    EXPERT_RULES,
    EXPERTS_READ,
    VERIFY_EXPERT_BUDGETS,
    VERIFY_EXPERT_SHARE_BOUNDS,
    ExpertRule,
    budget_experts,
    check_expert_budget,
)
from ovspec_transforms.budget_experts_stock import budget_experts_stock
from ovspec_transforms.errors import last_line
from ovspec_transforms.gather_logits import gather_logits
from ovspec_transforms.long_rope import ROPE_LENGTHS, rope_limit, split_long_rope
from ovspec_transforms.moe_layers import MoELayer, moe_layers
from ovspec_transforms.paged_cache import PagedLayer, paged_layers, to_paged
from ovspec_transforms.report import PassReport
from ovspec_transforms.route_rows import route_rows
from ovspec_transforms.select_blocks import select_blocks, selecting_layers, watch_selections
from ovspec_transforms.select_blocks_stock import select_blocks_stock
from ovspec_transforms.selection import Selection
from ovspec_transforms.sparse_moe import sparse_moe

__all__ = [
    "EXPERTS_READ",
    "EXPERT_RULES",
    "ROPE_LENGTHS",
    "VERIFY_EXPERT_BUDGETS",
    "VERIFY_EXPERT_SHARE_BOUNDS",
    "ExpertRule",
    "MoELayer",
    "PagedLayer",
    "PassReport",
    "Selection",
    "anchor_of",
    "budget_experts",
    "budget_experts_stock",
    "check_anchor_layers",
    "check_expert_budget",
    "choose_anchors",
    "default_anchor_layers",
    "gather_logits",
    "last_line",
    "list_overlap",
    "moe_layers",
    "paged_layers",
    "rope_limit",
    "route_rows",
    "select_blocks",
    "select_blocks_stock",
    "selecting_layers",
    "sparse_moe",
    "split_long_rope",
    "to_paged",
    "watch_selections",
]

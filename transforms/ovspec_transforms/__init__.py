"""Graph transforms: `openvino.Model` in, `openvino.Model` out, with a report of what was changed."""

from ovspec_transforms.anchors import (
    anchor_of,
    check_anchor_layers,
    choose_anchors,
    default_anchor_layers,
    list_overlap,
)
from ovspec_transforms.errors import last_line
from ovspec_transforms.gather_logits import gather_logits
from ovspec_transforms.paged_cache import PagedLayer, paged_layers, to_paged
from ovspec_transforms.report import PassReport
from ovspec_transforms.route_rows import route_rows
from ovspec_transforms.select_blocks import select_blocks, selecting_layers, watch_selections
from ovspec_transforms.select_blocks_stock import select_blocks_stock
from ovspec_transforms.selection import Selection

__all__ = [
    "PagedLayer",
    "PassReport",
    "Selection",
    "anchor_of",
    "check_anchor_layers",
    "choose_anchors",
    "default_anchor_layers",
    "gather_logits",
    "last_line",
    "list_overlap",
    "paged_layers",
    "route_rows",
    "select_blocks",
    "select_blocks_stock",
    "selecting_layers",
    "to_paged",
    "watch_selections",
]

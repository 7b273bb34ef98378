"""Graph transforms: `openvino.Model` in, `openvino.Model` out, with a report of what was changed."""

from ovspec_transforms.errors import last_line
from ovspec_transforms.gather_logits import gather_logits
from ovspec_transforms.paged_cache import PagedLayer, paged_layers, to_paged
from ovspec_transforms.report import PassReport
from ovspec_transforms.route_rows import route_rows
from ovspec_transforms.select_blocks import check_anchor_layers, default_anchor_layers, select_blocks

__all__ = [
    "PagedLayer",
    "PassReport",
    "check_anchor_layers",
    "default_anchor_layers",
    "gather_logits",
    "last_line",
    "paged_layers",
    "route_rows",
    "select_blocks",
    "to_paged",
]

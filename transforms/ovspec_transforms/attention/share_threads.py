"""Operations of ours that compute with more threads than the plugin's stream has."""

from __future__ import annotations

import openvino as ov

from ovspec_transforms.attention.route_rows import VERIFY_ATTENTION

_OURS = (VERIFY_ATTENTION, "Linear", "GatedMLP", "SparseMoE", "DecoderLayers")


def share_threads(model: ov.Model, threads: int) -> None:
    """Let attention and products with weights compute with so many threads; the bits stay.

    Compiled for one thread, the plugin's own nodes, small ones here, wait for nobody, and these operations
    have their threads all the same. One row of the demo target took 730 us so, 940 with one thread, and 900
    with two threads of the plugin.

    Args:
        model: is changed in place.
    """
    for node in model.get_ops():
        if node.get_type_name() in _OURS:
            node.set_attribute("threads", threads)

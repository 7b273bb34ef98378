"""Reader of PagedAttentionExtension nodes in a compiled model from a file."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov
from openvino.op import _PagedAttentionExtension

from ovspec_transforms.attention.paged_cache import KEY, KEY_CACHE, VALUE, VALUE_CACHE
from ovspec_transforms.graph import PAGED_ATTENTION


class PagedAttentionReader(ov.Op):
    """Restores the runtime information of `PagedAttentionExtension`; an argument of `Core.add_extension`.

    The CPU plugin needs the number and the size of the heads there. OpenVINO 2026.4 does not write them and
    therefore refuses models that it exported. They follow from the shapes: in a compiled model the caches are
    `[blocks, heads, block size, ..]`.
    """

    class_type_info = ov.DiscreteTypeInfo(PAGED_ATTENTION, "extension")

    def __init__(self) -> None:
        super().__init__(self)
        self._node: ov.Node | None = None

    @classmethod
    def get_type_info(cls) -> ov.DiscreteTypeInfo:
        """The operation that is read."""
        return cls.class_type_info

    def set_arguments(self, inputs: Sequence[ov.Output]) -> None:
        """Make the stock node over `inputs`."""
        node = _PagedAttentionExtension(list(inputs))
        for side, rows, cache in (("k", KEY, KEY_CACHE), ("v", VALUE, VALUE_CACHE)):
            heads = inputs[cache].get_partial_shape()[1].get_length()
            width = inputs[rows].get_partial_shape()[-1].get_length()
            info = node.get_rt_info()
            info[f"num_{side}_heads"], info[f"{side}_head_size"] = heads, width // heads
        self._node = node

    def visit_attributes(self, visitor: ov.AttributeVisitor) -> bool:
        """Take no attribute: `write_kv_cache` is true in every model of ours, as in a new node."""
        return False  # there is nothing to infer; the node is whole

    def outputs(self) -> list[ov.Output]:
        """Those of the stock node, which takes this one's place; asked for once.

        OpenVINO never frees this object, so it lets go of the node, which holds the graph in front of it.
        """
        assert self._node is not None
        outputs, self._node = list(self._node.outputs()), None
        return outputs

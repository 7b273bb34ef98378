"""Caches of a known size for our operations, in a graph whose other shapes are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ovspec_transforms.attention.route_rows import VERIFY_ATTENTION
from ovspec_transforms.attention.write_caches import CACHE_WRITE

_CACHES = {VERIFY_ATTENTION: (1, 2), CACHE_WRITE: (2, 3)}  # inputs


def fix_caches(model: ov.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Reshape the caches in front of every `VerifyAttention` and `CacheWrite` to the shapes that they have.

    The CPU plugin makes the number of a cache's blocks dynamic, whatever the model says. In every pass it
    infers the shapes of an operation of ours with such an input, from constants that it makes of all inputs:
    16 us a layer. A Reshape to the same shape takes 1 us and copies nothing.

    Args:
        model: is changed in place.
        shapes: of the caches, by the names of the inputs.
    """
    for node in model.get_ordered_ops():
        for cache in map(node.input, _CACHES.get(node.get_type_name(), ())):
            source = cache.get_source_output()
            shape = np.array(shapes[source.get_any_name()], np.int64)
            cache.replace_source_output(ops.reshape(source, shape, special_zero=False).output(0))
    model.validate_nodes_and_infer_types()

"""Caches that a graph reads by their addresses, and that are none of its inputs."""

from __future__ import annotations

from dataclasses import dataclass

import openvino as ov

from ovspec_transforms.graph import remove_unread
from ovspec_transforms.layers.step import CACHE_SIDES


@dataclass(frozen=True, slots=True)
class AddressedCache:
    """A cache whose address is in the input `cache_table`.

    Attributes:
        name: such as `key_cache.0`.
        element_type: as OpenVINO names it.
        block_shape: of one of its blocks.
    """

    name: str
    element_type: str
    block_shape: tuple[int, ...]


def remove_addressed(model: ov.Model) -> tuple[AddressedCache, ...]:
    """Remove the inputs that no node reads; OpenVINO checks each input of a model at every pass.

    Args:
        model: behind its last transform, and changed in place.

    Returns:
        The caches among them, in the order of the inputs.
    """
    caches = list[AddressedCache]()
    for output in remove_unread(model):
        for name in output.get_names():
            if name.partition(".")[0] in CACHE_SIDES:
                shape = tuple(size.get_length() for size in list(output.get_partial_shape())[1:])
                caches.append(AddressedCache(name, output.get_element_type().get_type_name(), shape))
    return tuple(caches)

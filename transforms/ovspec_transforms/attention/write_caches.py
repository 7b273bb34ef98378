"""Keys and values written by our own operation, where the stock node did nothing else."""

from __future__ import annotations

import openvino as ov

import ovspec_ops
from ovspec_transforms.attention.paged_cache import (
    KEY,
    KEY_CACHE,
    VALUE,
    VALUE_CACHE,
    PagedLayer,
    paged_layers,
)
from ovspec_transforms.graph import (
    PAGED_ATTENTION,
    add_parameter,
    let_read,
    remove_unread,
    rewrite_nodes,
    source_node,
)
from ovspec_transforms.report import TransformReport

CACHE_WRITE = "CacheWrite"
SLOT_MAPPING = "slot_mapping"
_SCALES = 8  # bytes in front of a row: scale and zero point


def write_caches(model: ov.Model, element_type: ov.Type) -> TransformReport:
    """Replace the stock node in front of every `VerifyAttention` by `CacheWrite`.

    The stock node prepares attention that nobody reads, 25 to 65 us a layer of a pass of few rows. The bytes
    stay the same where it got f32; in bf16 it rounds values first.

    Adds the input `slot_mapping` i32 `[rows]`, the slot of each row's key and value, and removes those that
    the stock node alone has read.

    Args:
        model: behind `route_rows` and whatever reads the caches, and changed in place.
        element_type: of the caches, u8 (by token) or f32.
    """
    layers = len(paged_layers(model))
    slots = add_parameter(model, SLOT_MAPPING, [-1], ov.Type.i32)

    def rewrite(node: ov.Node) -> bool:
        layer = PagedLayer.of(node)
        sizes = {KEY_CACHE: layer.key_head_size, VALUE_CACHE: layer.value_head_size}
        for position, size in sizes.items():
            cache = source_node(node, position)
            cache.set_element_type(element_type)
            row = size + (_SCALES if element_type == ov.Type.u8 else 0)
            cache.set_partial_shape(ov.PartialShape([-1, layer.num_kv_heads, ovspec_ops.BLOCK_SIZE, row]))
        inputs = [node.input(position).get_source_output() for position in (KEY, VALUE, *sizes)]
        attributes = {
            "kv_heads": layer.num_kv_heads,
            "k_size": layer.key_head_size,
            "v_size": layer.value_head_size,
        }
        written = ovspec_ops.create(CACHE_WRITE, [*inputs, slots.output(0)], attributes)
        written.set_friendly_name(f"{layer.name}/{CACHE_WRITE}")
        let_read(node.output(0), written.output(0))
        return True

    report = rewrite_nodes(model, "WriteCaches", PAGED_ATTENTION, rewrite).require(layers)
    remove_unread(model)
    return report

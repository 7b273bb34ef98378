"""Transforms of an exported graph before it is compiled."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov

from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.operations.ffn_budgets import FfnConfig
from ovspec.operations.linear_backend import native_layers
from ovspec_transforms import (
    AdaptedLayer,
    RowSight,
    TransformReport,
    decoder_layers,
    gather_logits,
    hidden_states,
    join_layers,
    rope_angles,
    rope_limit,
    round_rows,
    route_rows,
    select_blocks,
    select_blocks_stock,
    skip_layers,
    split_long_rope,
    to_paged,
    tree_mask,
    visual_rows,
    write_caches,
)


def transform(
    model: ov.Model,
    attention: AttentionConfig,
    block_size: int,
    experts: ExpertConfig | None = None,
    ffn: FfnConfig | None = None,
    gates_apart: bool = False,
    boundaries: Sequence[int] = (),
    masks_trees: bool = False,
    skips_layers: bool = False,
    sights: Sequence[RowSight] = (),
) -> list[TransformReport]:
    """Turn the stateful IR of optimum-intel into the paged graph that `ModelRunner` runs, in place.

    `lower` comes behind it. With `masks_trees`
    stock attention verifies draft trees; selection in stock operations knows chains only. With `skips_layers`
    a pass can leave layers out, and the states that it returns are those behind the last layer. `sights` are
    those of `route_rows`.
    """
    reports = [to_paged(model), gather_logits(model)]
    if (given := visual_rows(model)).changed:
        reports.append(given)
    if skips_layers:
        boundaries = (len(decoder_layers(model)),)
    if boundaries:
        reports.append(hidden_states(model, boundaries))
    if rope_limit(model) is not None:
        reports.append(split_long_rope(model))
    if skips_layers:
        reports.append(skip_layers(model))
    anchors, selection = attention.anchor_layers, attention.selection
    if attention.backend == "native":
        reports.append(route_rows(model, sights))
        if attention.selects:
            reports.append(select_blocks(model, anchors, selection, attention.watches))
    elif attention.selects:
        reports.append(select_blocks_stock(model, anchors, block_size, attention.covers))
    elif masks_trees:
        reports.append(tree_mask(model))
    reports += experts.transform(model) if experts else []
    reports += ffn.transform(model, gates_apart) if ffn else []
    return reports


def lower(
    model: ov.Model, backends: Backends, adapted: Sequence[AdaptedLayer] = (), joins: bool = True
) -> list[TransformReport]:
    """Put native operations in the place of what is left of a transformed graph's layers, in place.

    Args:
        adapted: linear layers that adapters may add to.
        joins: whether stretches of layers become one operation each, where they can.
    """
    reports = [rope_angles(model)] if backends.on_cpu else []
    if backends.written_type:
        reports.append(write_caches(model, backends.written_type))
    if backends.linear == "native":
        reports.append(native_layers(model, backends.arithmetic, backends.linear_required, adapted))
    if backends.row_bits is not None and (rounded := round_rows(model, backends.row_bits)).changed:
        reports.append(rounded)
    if joins and backends.joins_layers:
        reports.append(join_layers(model, backends.drafts))
    return reports

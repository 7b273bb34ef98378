"""What a memory plan has to know of a target that is not made yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import openvino as ov

from ovspec.attention_config import AttentionConfig
from ovspec.compile import check_properties, with_defaults
from ovspec.expert_budgets import ExpertConfig
from ovspec.ffn_budgets import FfnConfig
from ovspec.linear_backend import LinearBackend
from ovspec.model_cache import ModelCache
from ovspec.model_plan import Backends
from ovspec.paged_graph import graph_choices
from ovspec.row_rounding import rounding_settings, rounds_rows, row_bits
from ovspec_models import ModelInfo


def planned_backends(
    info: ModelInfo,
    device: str,
    properties: Mapping[str, object],
    attention: AttentionConfig,
    experts: ExpertConfig,
    ffn: FfnConfig | None,
    linear: LinearBackend | None,
) -> Backends:
    """The operations of a target, and whether CACHE_DIR holds it as they are chosen.

    Args:
        info: the target.
        device, properties, attention, experts, ffn, linear: as `ModelRunner` takes them.

    Raises:
        ValueError: a CACHE_DIR, or a property, that can't be served.
    """
    wanted = rounding_settings(info.folder, properties)
    backends = Backends.default(wanted, device, attention.backend, linear, experts.backend, ffn)
    if not backends.keeps:
        return backends
    core, settings = ov.Core(), with_defaults(properties, device)
    check_properties(core, device, settings)
    rounding = row_bits(device, wanted) if rounds_rows(info.folder, ffn, backends.linear) else 16
    choices = graph_choices(attention, experts, ffn, backends.linear, rounding)
    cache = ModelCache(core, info.folder, device, settings, choices)
    return replace(backends, keeps=not cache.refuses(), kept=cache.holds())

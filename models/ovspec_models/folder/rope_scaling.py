"""How many positions of a text a model has, by config.json: with scaled rotary embeddings, or with chunks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from ovspec_models.folder.shown import shown
from ovspec_models.folder.sparse_verify import is_int

_DYNAMIC = (
    "its rope_scaling is of type dynamic, by which every token of a longer text would change the rotation of "
    "all keys in the cache; type yarn has more positions"
)
_CHUNKED = (
    "some of its layers read chunks of the text, which OpenVINO's paged attention does not know, and so it "
    "is served inside the first chunk; transformers computes longer texts"
)


def scaled_positions(text: Mapping[str, Any], stated: int | None, model_type: str) -> int | None:
    """Positions of a model: those that it was trained with, times the factor of YaRN and linear scaling.

    Their documents say to leave ``max_position_embeddings`` as it was. A model whose number covers the
    product already keeps it. Scaling of other kinds (llama3, longrope) is counted in it. A model whose layers
    read chunks of the text has those of the first chunk.

    Args:
        text: the text model's part of config.json.
        stated: its ``max_position_embeddings``; ``None``: no limit, and so is the result.
        model_type: of Gemma 3, whose number counts linear scaling already.

    Raises:
        ValueError: scaling of a form that is not known; it names the field.
    """
    found = [stated]
    for scaling in _scalings(text):
        kind = _kind(scaling)
        if kind not in ("yarn", "linear") or stated is None:
            continue
        # As transformers: the field of the model counts before that of the scaling.
        outer = text.get("original_max_position_embeddings") if kind == "yarn" else None
        original = outer if outer is not None else scaling.get("original_max_position_embeddings")
        if original is None:
            original = stated
            if kind == "linear" and model_type.startswith("gemma3"):
                continue
        found.append(_product(original, scaling.get("factor")))
    most = max((positions for positions in found if positions is not None), default=None)
    chunk = _first_chunk(text)
    return chunk if most is None else min(most, chunk or most)


def why_no_more(text: Mapping[str, Any]) -> str:
    """Why texts end at ``max_position_embeddings`` although a model goes on; empty: it does not."""
    if _first_chunk(text):
        return _CHUNKED
    return _DYNAMIC if any(_kind(scaling) == "dynamic" for scaling in _scalings(text)) else ""


def _first_chunk(text: Mapping[str, Any]) -> int | None:
    """Tokens of a text that layers with chunks compute as layers without; ``None``: the model has no chunks.

    Llama 4 also scales queries of its layers without positions, from token ``floor_scale`` on.
    """
    chunk, scaled = text.get("attention_chunk_size"), text.get("floor_scale")
    if not is_int(chunk) or chunk < 1:
        return None
    if text.get("attn_temperature_tuning") and is_int(scaled):
        chunk = min(chunk, max(1, scaled - 1))
    return int(chunk)


def _scalings(text: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The scaling, or one for each type of layers; its old name counts first, as in transformers."""
    name = "rope_scaling" if text.get("rope_scaling") else "rope_parameters"
    value = text.get(name) or {}
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {shown(value)}, expected a JSON object")
    parts: list[Mapping[str, Any]] = [part for part in value.values() if isinstance(part, dict)]
    return parts if parts and len(parts) == len(value) else [value]


def _kind(scaling: Mapping[str, Any]) -> Any:
    return scaling.get("rope_type", scaling.get("type"))


def _product(original: Any, factor: Any) -> int | None:
    if factor is None:  # DeepSeek: the ratio of the two numbers of positions
        return None
    if not is_int(original) or original <= 0:
        raise ValueError(
            f"original_max_position_embeddings is {shown(original)}, expected a positive integer"
        )
    number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
    if not number or not 0 < factor < math.inf:
        raise ValueError(f"the factor of rope_scaling is {shown(factor)}, expected a number above 0")
    return math.floor(original * Fraction(factor))  # a product of large numbers is no float

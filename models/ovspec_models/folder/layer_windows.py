"""Sliding windows of the layers of a head that drafts blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from ovspec_models.folder.shown import shown
from ovspec_models.folder.sparse_verify import is_int

_FULL, _SLIDING = "full_attention", "sliding_attention"
#: Layers that a head may have; a damaged number would fill the memory.
MOST_LAYERS = 256
_MOST = 2**31 - 1


def layer_windows(folder: Path, config: dict[str, Any], of_speculators: bool) -> tuple[int, ...]:
    """How many tokens before its block each layer sees by config.json, 0 for all.

    Args:
        folder: of the head, for messages.
        config: its config.json, with the sizes of its layers among its own settings.
        of_speculators: whether it is in the form of the package speculators, which counts windows from the
            first token of a block.

    Raises:
        ValueError: config.json does not say them as that package does.
    """
    layers, types = config.get("num_hidden_layers"), config.get("layer_types")
    if not is_int(layers) or not 1 <= layers <= MOST_LAYERS:
        raise ValueError(
            f"{folder / 'config.json'}: num_hidden_layers is {shown(layers)}, expected 1 to {MOST_LAYERS}; "
            "get config.json again"
        )
    said, window = config.get("use_sliding_window"), config.get("sliding_window")
    if said is not None and not isinstance(said, bool):
        _refuse(folder, "use_sliding_window", said, "expected true or false")
    if types is None:
        if said:
            _refuse(
                folder, "layer_types", types, "expected what each layer is, as use_sliding_window is true"
            )
        return (0,) * layers
    if not isinstance(types, list) or len(types) != layers or any(t not in (_FULL, _SLIDING) for t in types):
        _refuse(
            folder, "layer_types", types, f"expected {_FULL!r} or {_SLIDING!r} for each of {layers} layers"
        )
    if _SLIDING not in types:
        return (0,) * layers
    if not of_speculators:
        _refuse(
            folder,
            "layer_types",
            types,
            "and windows that speculators has not written begin elsewhere for each row of a block, by a rule "
            "with no reference to test against; take a head in the format of speculators",
        )
    if not said:
        # The package reads the window of such a head as none, and its layer as one with full attention.
        _refuse(folder, "use_sliding_window", said, f"expected true, as layer_types has {_SLIDING!r}")
    if not is_int(window) or not 1 <= window <= _MOST:
        _refuse(
            folder, "sliding_window", window, f"expected a number of tokens, as layer_types has {_SLIDING!r}"
        )
    return tuple(window if kind == _SLIDING else 0 for kind in types)


def _refuse(folder: Path, name: str, value: object, reason: str) -> NoReturn:
    raise ValueError(f"head '{folder}': {name} of config.json is {shown(value)}, {reason}")

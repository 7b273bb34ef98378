"""A LoRA adapter's tensors, as PEFT and kohya's scripts write them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec.errors import InvalidValueError
from ovspec_models.folder.shown import cut, shown
from ovspec_ops.linear.adapters import LowRank

CONFIG = "adapter_config.json"
_PARTS = re.compile(r"(?P<layer>.+)[._]lora[._](?P<part>A|B|down|up)\.weight")
_SIDES = {"A": "a", "down": "a", "B": "b", "up": "b"}
_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
# What PEFT computes in another way than W + scale * B A, or on other layers than the model's.
_REFUSED = (
    *("use_dora", "lora_bias", "modules_to_save", "target_parameters", "trainable_token_indices"),
    *("alora_invocation_tokens", "layer_replication"),
)
# Initial matrices beside which W stays as it is; those of PiSSA and others are taken from it.
_INITIAL = (None, True, False, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, slots=True, eq=False)
class AdapterLayer:
    """What an adapter adds to one linear layer: scale * B (A x).

    Attributes:
        name: of the layer, as the file has it.
        product: B (A x).
        outputs: of the layer.
        scale: lora_alpha / rank, or what the file says in its place; 1 where it says nothing.
    """

    name: str
    product: LowRank
    outputs: int
    scale: float

    @property
    def inputs(self) -> int:
        """Of the layer."""
        return int(self.product.a.shape[1])


def read_layers(where: str, content: bytes, config: Mapping[str, Any]) -> tuple[AdapterLayer, ...]:
    """The layers of an adapter.

    Args:
        where: the file, for messages.
        content: of the file, in safetensors' format.
        config: of `adapter_config.json`; empty where there is none.

    Raises:
        ValueError: a file that is damaged or no LoRA adapter, or an adapter of another kind.
    """
    _check_kind(where, config)
    alphas, sides = dict[str, float](), dict[str, dict[str, NDArray[np.float32]]]()
    for name, tensor in _tensors(where, content).items():
        if found := _PARTS.fullmatch(name):
            sides.setdefault(found["layer"], {})[_SIDES[found["part"]]] = _matrix(where, name, tensor)
        elif name.endswith(".alpha") and tensor.size == 1 and np.isfinite(tensor).all():
            alphas[name.removesuffix(".alpha")] = float(tensor.ravel()[0])
        else:
            raise InvalidValueError(
                f"{where}: the tensor {cut(name)} is no lora_A or lora_B (lora_down, lora_up, alpha) of a "
                "linear layer, and an adapter with others is not taken; train it without"
            )
    if not sides:
        raise InvalidValueError(f"{where} holds no LoRA adapter: it has no tensor named ...lora_A.weight")
    if others := sorted(alphas.keys() - sides.keys()):
        raise InvalidValueError(f"{where}: {cut(others[0])} has an alpha and no matrices; save it again")
    alphas, root = _alphas(where, config, sides.keys()) | alphas, bool(config.get("use_rslora"))
    return tuple(_layer(where, name, of, alphas.get(name), root) for name, of in sorted(sides.items()))


def reading_bytes(path: Path) -> int:
    """Memory that it takes to read a file, at most; 0 where there is none."""
    # Its bytes, and twice in f32 what is f16 in it, of which the half is laid out anew.
    return 4 * path.stat().st_size if path.is_file() else 0


def read_config(path: Path) -> dict[str, Any]:
    """`adapter_config.json` beside an adapter; empty where there is none.

    Raises:
        ValueError: it can't be read.
    """
    file = path.parent / CONFIG
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidValueError(f"{file} can't be read ({cut(str(error), 200)}); save it again") from error
    if not isinstance(config, dict):
        raise InvalidValueError(f"{file} is no object; save it again")
    return config


def _check_kind(where: str, config: Mapping[str, Any]) -> None:
    """Refuse what is no W + scale * B A with the model's own W."""
    if (kind := config.get("peft_type", "LORA")) != "LORA":
        raise InvalidValueError(f"{where}: peft_type={shown(kind)} in {CONFIG}, expected 'LORA'")
    for name in _REFUSED:
        if value := config.get(name):
            raise InvalidValueError(
                f"{where}: {name}={shown(value)} in {CONFIG} is not taken; train the adapter without"
            )
    if (initial := config.get("init_lora_weights")) not in _INITIAL:
        raise InvalidValueError(
            f"{where}: init_lora_weights={shown(initial)} in {CONFIG}: the adapter is for weights that were "
            "changed when its training began; save it with PEFT's path_initial_model_for_weight_conversion"
        )


def _tensors(where: str, content: bytes) -> dict[str, NDArray[np.float32]]:
    """All tensors as f32, by their names."""
    try:
        from safetensors import SafetensorError, deserialize
    except ImportError as error:
        raise InvalidValueError(
            f"{where}: adapters need safetensors: install it with `pip install 'ovspec[adapters]'`"
        ) from error
    try:
        entries = deserialize(content)
    except SafetensorError as error:
        reason = cut(str(error), 200)
        raise InvalidValueError(
            f"{where} is no safetensors file or is damaged ({reason}); save it again"
        ) from error
    found = dict[str, NDArray[np.float32]]()
    while entries:  # given up one by one, so that the file is not held a second time
        name, entry = entries.pop()
        if (kind := entry["dtype"]) not in _TYPES:
            raise InvalidValueError(f"{where}: the tensor {cut(name)} is {kind}, expected F32, F16 or BF16")
        data: NDArray[Any] = np.frombuffer(entry["data"], _TYPES[kind])
        if kind == "BF16":
            data = (data.astype(np.uint32) << 16).view(np.float32)
        found[name] = data.astype(np.float32).reshape(entry["shape"])
    return found


def _matrix(where: str, name: str, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
    """A finite matrix; as in GenAI, further dimensions of size 1 may follow its two."""
    shape = tensor.shape
    if len(shape) < 2 or 0 in shape or set(shape[2:]) - {1}:
        raise InvalidValueError(f"{where}: the tensor {cut(name)} has the shape {shape}, expected a matrix")
    if not np.isfinite(tensor).all():
        raise InvalidValueError(f"{where}: the tensor {cut(name)} has values that are not finite")
    return tensor.reshape(shape[:2])


def _layer(
    where: str, name: str, sides: Mapping[str, NDArray[np.float32]], alpha: float | None, root: bool
) -> AdapterLayer:
    if len(sides) != 2:
        missing = "lora_B (lora_up)" if "a" in sides else "lora_A (lora_down)"
        raise InvalidValueError(f"{where}: the layer {cut(name)} has no {missing}; save it again")
    a, b = sides["a"], sides["b"]
    if len(a) != b.shape[1]:
        raise InvalidValueError(
            f"{where}: the layer {cut(name)} has A of rank {len(a)} and B of rank {b.shape[1]}, expected the "
            "same; save it again"
        )
    scale = 1.0 if alpha is None else alpha / (math.sqrt(len(a)) if root else len(a))
    return AdapterLayer(name, LowRank.pack(a, b), len(b), scale)


def _alphas(where: str, config: Mapping[str, Any], layers: Collection[str]) -> dict[str, float]:
    """What `adapter_config.json` says: of all layers, and of those whose names end as in `alpha_pattern`.

    Of several endings of a name the first one counts, as in PEFT.
    """
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise InvalidValueError(f"{where}: alpha_pattern={shown(patterns)} in {CONFIG}, expected an object")
    alpha = config.get("lora_alpha")
    found = {} if alpha is None else dict.fromkeys(layers, _number(where, "lora_alpha", alpha))
    for ending, value in reversed(patterns.items()):
        named = [layer for layer in layers if f".{layer}".endswith(f".{ending}")]
        if not named:
            raise InvalidValueError(
                f"{where}: alpha_pattern in {CONFIG} names {cut(ending)}, which ends no name of a layer"
            )
        found |= dict.fromkeys(named, _number(where, f"alpha_pattern of {cut(ending)}", value))
    return found


def _number(where: str, name: str, value: object) -> float:
    number = finite(value)
    if number is None:
        raise InvalidValueError(f"{where}: {name}={shown(value)} in {CONFIG}, expected a number")
    return number


def finite(value: object) -> float | None:
    """A finite number as a float; `None` for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None

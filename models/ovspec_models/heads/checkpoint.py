"""The checkpoint of a head: config.json and weights, as it was published."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_models.head_info import with_layer_sizes
from ovspec_models.shapes import ModelShape, RopeScaling
from ovspec_models.sparse_verify import is_int
from ovspec_transforms import decompression_convert

_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


@dataclass(frozen=True, slots=True)
class HeadCheckpoint:
    """Configuration and weights of a head.

    Attributes:
        folder: of the checkpoint.
        config: its config.json.
        arrays: its weights by name, in f32 and integers.
    """

    folder: Path
    config: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    @classmethod
    def read(
        cls, folder: str | Path, reads: Callable[[dict[str, Any]], Callable[[str], bool]]
    ) -> HeadCheckpoint:
        """Read a folder.

        Args:
            folder: of the checkpoint.
            reads: by config.json, which weights.

        Raises:
            ValueError: it has no config.json, or no weights that can be read.
        """
        path = Path(folder)
        config = read_config(path)
        return cls(path, config, _arrays(path, reads(config)))

    def shape(self, draft_vocab_size: int, layers: int = 1, qk_norm: bool = False) -> ModelShape:
        """The sizes of its layers.

        Args:
            draft_vocab_size: tokens that it can draft.
            layers: how many.
            qk_norm: whether queries and keys pass a norm.

        Raises:
            ValueError: a size is missing or wrong, or rotary positions of a kind that is not known.
        """
        config = self.config
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "llama3"):
            raise ValueError(f"head '{self.folder}': rope_type {kind!r} is not known, expected llama3")
        try:
            heads = config["num_attention_heads"]
            return ModelShape(
                name="head",
                model_type="llama",
                hidden_size=config["hidden_size"],
                intermediate_size=config["intermediate_size"],
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=config.get("num_key_value_heads") or heads,
                head_dim=config.get("head_dim") or config["hidden_size"] // heads,
                max_position_embeddings=config.get("max_position_embeddings") or 2048,
                rope_theta=float(config.get("rope_theta") or rope.get("rope_theta") or 1e4),
                qk_norm=qk_norm,
                tie_word_embeddings=False,
                vocab_size=draft_vocab_size,
                rms_norm_eps=float(config.get("rms_norm_eps") or 1e-6),
                rope_scaling=RopeScaling(**{n: rope[n] for n in _LLAMA3}) if kind == "llama3" else None,
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"head '{self.folder}': config.json lacks {error}; get it again") from error

    def array(self, *names: str, dims: tuple[int, ...] | None = None) -> NDArray[Any]:
        """The weight that has one of these names.

        Raises:
            ValueError: there is none, or it has another shape than `dims`.
        """
        for name in names:
            if name in self.arrays:
                array = self.arrays[name]
                return array if dims is None else self.check_shape(names[0], array, dims)
        raise ValueError(f"head '{self.folder}' has no weight {names[0]}; is it of another kind?")

    def check_shape(self, name: str, array: NDArray[Any], *allowed: tuple[int, ...]) -> NDArray[Any]:
        """The weight of this name, which must be of one of these shapes.

        Raises:
            ValueError: it has another shape.
        """
        if array.shape not in allowed:
            raise ValueError(
                f"head '{self.folder}': {name} has the shape {list(array.shape)}, expected "
                f"{list(allowed[0])}; get config.json and weights from the same place"
            )
        return array

    def output_sizes(self, names: Callable[[int], tuple[str, ...]], key: str) -> tuple[int, int]:
        """Vocabulary and hidden size of heads that have an output layer each.

        Args:
            names: that the output layer of a head may have, by its number.
            key: of config.json, for the number of heads.

        Raises:
            ValueError: an output layer is missing or no matrix, or there is one too many.
        """
        heads = self.count(key)
        first, *_ = [self.array(*names(head)) for head in range(heads)]
        if set(names(heads)) & set(self.arrays):
            raise ValueError(
                f"head '{self.folder}': {key} of config.json is {heads}, the checkpoint has more; set it to "
                "their number"
            )
        if first.ndim != 2:
            raise ValueError(
                f"head '{self.folder}': {names(0)[0]} has the shape {list(first.shape)}, expected "
                "[vocabulary, hidden size]; get the checkpoint again"
            )
        return first.shape

    def count(self, key: str) -> int:
        """A number of at least 1 in config.json.

        Raises:
            ValueError: it is none.
        """
        value = self.config.get(key)
        if not is_int(value) or value < 1:
            raise ValueError(
                f"head '{self.folder}': {key} of config.json is {value!r}, expected a positive integer"
            )
        return value


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a head.

    Raises:
        ValueError: it can't be read.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"head '{folder}': config.json can't be read ({error}); get it again") from error
    return with_layer_sizes(config)


class CheckpointWeights:
    """Weights of a checkpoint as nodes of a graph.

    Args:
        arrays: by name.
        is_f32: keep f32; otherwise matrices are stored in f16.
    """

    def __init__(self, arrays: dict[str, NDArray[Any]], is_f32: bool) -> None:
        self._arrays = arrays
        self._is_f32 = is_f32

    def vector(self, name: str, rank: int) -> ov.Node:
        """A norm's weight, f32 ``[1, ..., 1, size]`` of the given rank."""
        values = self._arrays[name].astype(np.float32)
        return ops.constant(values.reshape((1,) * (rank - 1) + values.shape), name=f"self.{name}")

    def matrix(self, name: str) -> ov.Node:
        """A linear layer's weight, f32 ``[out, in]`` after decompression."""
        values = self._arrays[name]
        if self._is_f32:
            return ops.constant(values.astype(np.float32), name=f"self.{name}")
        return decompression_convert(ops.constant(values.astype(np.float16), name=f"self.{name}"))


def head_model(
    kind: str, outputs: Mapping[str, ov.Node], inputs: Sequence[ov.Node], stores: Sequence[ov.Node] = ()
) -> ov.Model:
    """The graph of a head, with its outputs by name and the mark of its kind."""
    for name, output in outputs.items():
        output.output(0).set_names({name})
    model = ov.Model([ops.result(output) for output in outputs.values()], list(stores), list(inputs), kind)
    model.set_rt_info("True", [f"{kind}_mode"])
    return model


def _arrays(folder: Path, reads: Callable[[str], bool]) -> dict[str, NDArray[Any]]:
    """Weights of a folder; NumPy has no bf16, torch reads it."""
    import torch
    from safetensors import safe_open

    tensors: dict[str, Any] = {}
    try:
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys() if reads(name)}  # noqa: SIM118
        if not any(folder.glob("*.safetensors")):
            for path in sorted([*folder.glob("*.bin"), *folder.glob("*.pt")]):
                loaded = torch.load(path, map_location="cpu", weights_only=True)
                # Beside the weights a training leaves the state of its optimiser.
                tensors |= {
                    name: found
                    for name, found in loaded.items()
                    if isinstance(found, torch.Tensor) and reads(name)
                }
    except Exception as error:  # the errors of damaged files have no class in common
        raise ValueError(f"head '{folder}': its weights can't be read ({error}); get them again") from error
    if not tensors:
        raise ValueError(
            f"head '{folder}' has no weights of its kind in *.safetensors, *.bin or *.pt; get them too"
        )
    return {
        name: (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        for name, tensor in tensors.items()
    }

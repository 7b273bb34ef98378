"""The checkpoint of a head: config.json and weights, as it was published."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_models.folder.head_info import with_layer_sizes
from ovspec_models.folder.json_file import read_json
from ovspec_models.folder.shown import cut, shown
from ovspec_models.folder.sparse_verify import is_int
from ovspec_models.shapes import ModelShape, RopeScaling
from ovspec_transforms import decompression_convert

_MOST, _MOST_REAL = 2**31 - 1, 1e30
_AGAIN = "get config.json again"
_FLOATS = ("float16", "bfloat16", "float32", "float64")
# Which of the target's tokens a head drafts; these are no weights.
_TABLES = ("d2t", "t2d")
# Objects of Python that transformers' training leaves beside the weights.
_ARGUMENTS = "training_args.bin"
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class NotedWeights(dict[str, NDArray[Any]]):
    """Weights by name, which notes those that are read.

    Attributes:
        read: their names.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]] | None = None) -> None:
        super().__init__(arrays or {})
        self.read = set[str]()

    def __getitem__(self, name: str) -> NDArray[Any]:
        self.read.add(name)
        return super().__getitem__(name)


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
    arrays: NotedWeights

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

    def shape(
        self, draft_vocab_size: int, layers: int = 1, qk_norm: bool = False, partial: bool = False
    ) -> ModelShape:
        """The sizes of its layers.

        Args:
            draft_vocab_size: tokens that it can draft.
            layers: how many.
            qk_norm: whether queries and keys pass a norm.
            partial: whether the graph can give rotary positions to some channels of a head only.

        Raises:
            ValueError: a size is missing or wrong, or rotary positions of a kind that is not known.
        """
        rope = self.rope()
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "llama3"):
            raise ValueError(
                f"head '{self.folder}': rope_type is {shown(kind)}, expected 'default' or 'llama3': others "
                "are not known; take another head"
            )
        if not partial and rope.get("partial_rotary_factor") not in (None, 1):
            raise ValueError(
                f"head '{self.folder}': partial_rotary_factor is {shown(rope['partial_rotary_factor'])}, "
                "only 1.0 is known; take another head"
            )
        heads, hidden = self.count("num_attention_heads"), self.count("hidden_size")
        kv_heads = self.count("num_key_value_heads", heads)
        scaling = {name: self.number(name, None, rope) for name in _LLAMA3} if kind == "llama3" else None
        try:
            return ModelShape(
                name="head",
                model_type="llama",
                hidden_size=hidden,
                intermediate_size=self.count("intermediate_size"),
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=kv_heads,
                head_dim=self.count("head_dim", hidden // heads),
                max_position_embeddings=self.count("max_position_embeddings", 2048),
                rope_theta=self.number("rope_theta", 1e4, rope),
                qk_norm=qk_norm,
                tie_word_embeddings=False,
                vocab_size=draft_vocab_size,
                rms_norm_eps=self.number("rms_norm_eps", 1e-6),
                rope_scaling=RopeScaling(**scaling) if scaling else None,  # type: ignore[arg-type]
            )
        except ValueError as error:
            raise ValueError(f"head '{self.folder}': config.json: {error}") from error

    def rope(self) -> dict[str, Any]:
        """What config.json says of rotary positions.

        Raises:
            ValueError: it is no object, or says two things.
        """
        theta = self.config.get("rope_theta")
        said: dict[str, Any] = {} if theta is None else {"rope_theta": theta}
        for name in ("rope_scaling", "rope_parameters"):
            if value := self.config.get(name):
                if not isinstance(value, dict):
                    raise ValueError(
                        f"head '{self.folder}': {name} of config.json is {shown(value)}, expected an object; "
                        f"{_AGAIN}"
                    )
                value = {key: one for key, one in value.items() if one is not None}
                other = next((key for key in value if key in said and said[key] != value[key]), None)
                if other is not None:
                    raise ValueError(
                        f"head '{self.folder}': {cut(other)} of config.json is both {shown(said[other])} and "
                        f"{shown(value[other])}; {_AGAIN}"
                    )
                said |= value
        return said

    def check_all_read(self, ignored: Callable[[str], bool]) -> None:
        """Refuse a head with weights that its graph does not hold.

        Args:
            ignored: by name, whether a weight changes nothing in the graph.

        Raises:
            ValueError: it names the first of them.
        """
        left = [name for name in self.arrays if name not in self.arrays.read and not ignored(name)]
        if left:
            raise ValueError(
                f"head '{self.folder}' has the weight {left[0]}, which this kind of head does not read, and "
                "might draft wrongly without it; take another head"
            )

    def held(self, *names: str) -> str | None:
        """Which of its names a weight has that a checkpoint may be without; `None`: it is without it."""
        return next((name for name in names if name in self.arrays), None)

    def array(self, *names: str, dims: tuple[int, ...] | None = None) -> NDArray[Any]:
        """The weight that has one of these names.

        Raises:
            ValueError: there is none, or it has another shape than `dims`.
        """
        held = self.held(*names)
        if held is None:
            raise ValueError(
                f"head '{self.folder}' has no weight {names[0]}, which its config.json asks for; get the "
                "whole checkpoint again"
            )
        array = self.arrays[held]
        return array if dims is None else self.check_shape(names[0], array, dims)

    def matrix(self, *names: str) -> NDArray[Any]:
        """As `array`, a matrix of any size.

        Raises:
            ValueError: there is none, or it is no matrix.
        """
        array = self.array(*names)
        if array.ndim != 2:
            raise ValueError(
                f"head '{self.folder}': {names[0]} has the shape {list(array.shape)}, expected a matrix; get "
                "the checkpoint again"
            )
        return array

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
        first, *_ = [self.matrix(*names(head)) for head in range(heads)]
        if set(names(heads)) & set(self.arrays):
            raise ValueError(
                f"head '{self.folder}': {key} of config.json is {heads}, the checkpoint has more; set it to "
                "their number"
            )
        return len(first), first.shape[1]

    def count(
        self,
        key: str,
        default: int | None = None,
        most: int = _MOST,
        config: Mapping[str, Any] | None = None,
    ) -> int:
        """A number of 1 to `most` in config.json or what is given of it, or the default where it says none.

        Raises:
            ValueError: it is none.
        """
        value = (self.config if config is None else config).get(key)
        if value is None and default is not None:
            return default
        if not is_int(value) or not 1 <= value <= most:
            up_to = "" if most == _MOST else f" up to {most}"
            raise ValueError(
                f"head '{self.folder}': {key} of config.json is {shown(value)}, expected a positive "
                f"integer{up_to}; {_AGAIN}"
            )
        return value

    def number(self, key: str, default: float | None, config: Mapping[str, Any] | None = None) -> float:
        """A positive number in config.json, or in an object of it; the default where it says none.

        Raises:
            ValueError: it is none.
        """
        value = (self.config if config is None else config).get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _MOST_REAL:
            raise ValueError(
                f"head '{self.folder}': {key} of config.json is {shown(value)}, expected a positive number; "
                f"{_AGAIN}"
            )
        return value if key == "original_max_position_embeddings" else float(value)


def is_buffer(name: str) -> bool:
    """Whether a weight is one that older versions of transformers saved and config.json determines."""
    return name.endswith("rotary_emb.inv_freq")


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a head.

    Raises:
        ValueError: it can't be read.
    """
    return with_layer_sizes(read_json(folder / "config.json", "get it again"))


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

    def bias(self, name: str) -> ov.Node | None:
        """What the layer with this weight adds, f32 ``[out]``; `None`: nothing."""
        own = f"{name.removesuffix('.weight')}.bias"
        return self.vector(own, 1) if own in self._arrays else None


def head_model(
    kind: str, outputs: Mapping[str, ov.Node], inputs: Sequence[ov.Node], stores: Sequence[ov.Node] = ()
) -> ov.Model:
    """The graph of a head, with its outputs by name and the mark of its kind."""
    for name, output in outputs.items():
        output.output(0).set_names({name})
    model = ov.Model([ops.result(output) for output in outputs.values()], list(stores), list(inputs), kind)
    model.set_rt_info("True", [f"{kind}_mode"])
    return model


def take_part(model: ov.Model, inputs: Sequence[str], outputs: Sequence[str]) -> ov.Model:
    """Take a part out of the graph of a head, in place, with those of these ports that there are."""
    given = [port.get_node() for port in model.inputs if port.get_names() & {*inputs}]
    results = [result for result in model.get_results() if result.input(0).get_tensor().names & {*outputs}]
    for result in results:
        model.remove_result(result)
    for node in given:
        model.remove_parameter(node)
    return ov.Model(results, given, outputs[0])


def _arrays(folder: Path, reads: Callable[[str], bool]) -> NotedWeights:
    """Weights of a folder; NumPy has no bf16, torch reads it."""
    import torch
    from safetensors import safe_open

    tensors: dict[str, Any] = {}
    try:
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys() if reads(name)}  # noqa: SIM118
        if not any(folder.glob("*.safetensors")):
            files = sorted([*folder.glob("*.bin"), *folder.glob("*.pt")])
            for path in (one for one in files if one.name != _ARGUMENTS):
                loaded = torch.load(path, map_location="cpu", weights_only=True)
                # Beside the weights a training leaves the state of its optimiser.
                tensors |= {
                    name: found
                    for name, found in loaded.items()
                    if isinstance(found, torch.Tensor) and reads(name)
                }
    except Exception as error:  # the errors of damaged files have no class in common
        reason = cut(str(error), 200)
        raise ValueError(f"head '{folder}': its weights can't be read ({reason}); get them again") from error
    if not tensors:
        raise ValueError(
            f"head '{folder}' has no weights of its kind in *.safetensors, *.bin or *.pt; get them too"
        )
    for index in folder.glob("*.index.json"):
        _check_shards(index, tensors, reads)
    _check_numbers(folder, tensors)
    return NotedWeights(
        {
            name: (tensor.float() if tensor.is_floating_point() else tensor).numpy()
            for name, tensor in tensors.items()
        }
    )


def _check_shards(index: Path, tensors: Mapping[str, Any], reads: Callable[[str], bool]) -> None:
    """Refuse a head of which a file is missing: a part that it has of its own would become the target's."""
    files = read_json(index, _AGAIN).get("weight_map")
    for name, file in files.items() if isinstance(files, dict) else ():
        if reads(name) and name not in tensors:
            raise ValueError(
                f"head '{index.parent}' has no weight {name}, which {index.name} says is in {shown(file)}; "
                "get the whole checkpoint again"
            )


def _check_numbers(folder: Path, tensors: Mapping[str, Any]) -> None:
    """Refuse weights that stand for others, as quantised ones do: what multiplies them is not known."""
    for name, tensor in tensors.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in _FLOATS and name.removeprefix("model.") not in _TABLES:
            raise ValueError(
                f"head '{folder}': {name} holds numbers of the type {kind}, expected one of "
                f"{', '.join(_FLOATS)}; get the checkpoint that was not quantised"
            )

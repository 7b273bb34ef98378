"""Random weights, made in the compressed type and wrapped in the decompression graph that NNCF writes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol
from zlib import crc32

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_models.shapes import ModelShape
from ovspec_transforms import decompression_convert

WEIGHT_FORMATS = ("int8", "int4", "fp16", "fp32")

# Standard deviation of a uniform integer over all values of 8 and of 4 bits.
_STD_U8 = math.sqrt((256**2 - 1) / 12)
_STD_U4 = math.sqrt((16**2 - 1) / 12)
_CHUNK_BYTES = 1 << 22

# Logits of a unit-variance state over 32,000 tokens are near uniform, which no language model is. Three
# puts about a third of the mass on the first token.
_FINAL_NORM_GAIN = 3.0

# Attention scores then have a standard deviation of four, and attention is as peaked as in trained
# models. At one it averages over the context, all rows of a deep model become alike, and a router
# sends them all to the same experts.
_QUERY_KEY_GAIN = 2.0


def is_int4(name: str) -> bool:
    """Whether an int4 model holds this weight in 4 bits; NNCF leaves embedding and LM head in int8."""
    return name not in ("model.embed_tokens.weight", "lm_head.weight")


def check_format(shape: ModelShape, weight_format: str, group_size: int) -> None:
    """Raise ValueError unless the format is known and, for int4, its groups divide every input channel."""
    if weight_format not in WEIGHT_FORMATS:
        expected = ", ".join(WEIGHT_FORMATS)
        raise ValueError(
            f"weight_format is {weight_format!r}, expected one of {expected}; choose one of these"
        )
    if weight_format != "int4":
        return
    if group_size < 2 or group_size % 2:
        raise ValueError(
            f"group_size is {group_size}, expected an even number of channels; 128 is the default"
        )
    for name, dims in shape.weight_shapes().items():
        if len(dims) > 1 and is_int4(name) and dims[-1] % group_size:
            raise ValueError(
                f"group_size is {group_size}, expected a divisor of the {dims[-1]} input channels of {name}; "
                "choose a smaller power of two"
            )


def weight_bytes(
    shape: ModelShape, weight_format: str = "int8", group_size: int = 128, sym: bool = False
) -> int:
    """Bytes of all weights as `build_model` stores them, scales and zero points included.

    The CPU plugin repacks the weights at the first inference, and then holds about as much again.

    Raises:
        ValueError: as in `build_model`.
    """
    check_format(shape, weight_format, group_size)
    total = 0
    for name, dims in shape.weight_shapes().items():
        count, rows = math.prod(dims), math.prod(dims[:-1])
        if len(dims) == 1 or weight_format == "fp32":
            total += 4 * count
        elif weight_format == "fp16":
            total += 2 * count
        elif weight_format == "int4" and is_int4(name):
            groups = count // group_size
            total += count // 2 + 2 * groups + (0 if sym else (groups + 1) // 2)
        else:
            total += count + 3 * rows
    return total


class Weights(Protocol):
    """The weights of a model by name, as nodes; `RandomWeights` or those of a checkpoint."""

    def vector(self, name: str, rank: int) -> ov.Node:
        """A norm's weight, f32 ``[1, ..., 1, size]`` of the given rank."""

    def matrix(self, name: str) -> ov.Node:
        """A linear layer's weight, f32 ``[..., out, in]`` after decompression."""

    def bias(self, name: str) -> ov.Node | None:
        """What the layer with this weight adds, f32 ``[out]``; `None`: nothing."""


class RandomWeights:
    """Weight nodes of one model; each gets random numbers of its own, in memory of its own.

    A weight depends on `seed` and its name only, so a model with fewer layers has the first layers of the
    deeper one. Linear weights have standard deviation ``1 / sqrt(in)``: every layer's output then has
    about the variance of its input. Queries and keys are twice as large, by their norm's weights or, in
    models without such norms, by their projections'.
    """

    def __init__(self, shape: ModelShape, weight_format: str, group_size: int, sym: bool, seed: int) -> None:
        check_format(shape, weight_format, group_size)
        if seed < 0:
            raise ValueError(f"seed is {seed}, expected an integer >= 0; choose another")
        self._shapes = shape.weight_shapes()
        query_key = (
            ("q_norm.weight", "k_norm.weight") if shape.qk_norm else ("q_proj.weight", "k_proj.weight")
        )
        self._gains = dict.fromkeys(query_key, _QUERY_KEY_GAIN) | {"model.norm.weight": _FINAL_NORM_GAIN}
        self._format = weight_format
        self._group_size = group_size
        self._sym = sym
        self._seed = seed

    def vector(self, name: str, rank: int) -> ov.Node:
        """A norm's weight, f32 ``[1, ..., 1, size]`` of the given rank; values within 10% of the gain."""
        (size,) = self._shapes[name]
        values = self._gain(name) * self._rng(name).uniform(0.9, 1.1, size).astype(np.float32)
        return _named(ops.constant(values.reshape((1,) * (rank - 1) + (size,))), f"self.{name}")

    def matrix(self, name: str) -> ov.Node:
        """A linear layer's weight, f32 ``[..., out, in]`` after decompression, stored as the format asks."""
        dims, rng = self._shapes[name], self._rng(name)
        std = self._gain(name) / math.sqrt(dims[-1])
        if self._format == "fp32":
            return _constant(f"self.{name}", dims, ov.Type.f32, lambda part: _fill_float(part, rng, std))
        if self._format == "fp16":
            stored = _constant(f"self.{name}", dims, ov.Type.f16, lambda part: _fill_float(part, rng, std))
            return decompression_convert(stored)
        if self._format == "int4" and is_int4(name):
            return self._int4(name, dims, rng, std)
        return self._int8(name, dims, rng, std)

    def bias(self, name: str) -> None:
        """No layer has one."""

    def _int8(self, name: str, dims: tuple[int, ...], rng: np.random.Generator, std: float) -> ov.Node:
        stored = _constant(f"self.{name}", dims, ov.Type.u8, lambda part: _fill_bytes(part, rng))
        per_row = (*dims[:-1], 1)
        zero_point = ops.constant(rng.integers(124, 133, per_row, dtype=np.uint8))
        scale = _scales(rng, std / _STD_U8, per_row)
        return _dequantised(f"self.{name}", stored, zero_point, scale)

    def _int4(self, name: str, dims: tuple[int, ...], rng: np.random.Generator, std: float) -> ov.Node:
        groups = dims[-1] // self._group_size
        grouped = (*dims[:-1], groups, self._group_size)
        dtype = ov.Type.i4 if self._sym else ov.Type.u4
        stored = _constant(f"self.{name}", grouped, dtype, lambda part: _fill_bytes(part, rng))
        per_group = (*dims[:-1], groups, 1)
        zero_point = None
        if not self._sym:
            # 0x77, 0x78, 0x87 and 0x88: zero points 7 and 8, the middle of the 16 values.
            nibbles = np.array([0x77, 0x78, 0x87, 0x88], np.uint8)
            zero_point = _constant("", per_group, ov.Type.u4, lambda part: _fill_choice(part, rng, nibbles))
        scale = _scales(rng, std / _STD_U4, per_group, signed=self._sym)
        return _dequantised(f"self.{name}", stored, zero_point, scale, dims)

    def _gain(self, name: str) -> float:
        return next((gain for end, gain in self._gains.items() if name.endswith(end)), 1.0)

    def _rng(self, name: str) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64([self._seed, crc32(name.encode())]))


def _constant(
    name: str, dims: tuple[int, ...], dtype: ov.Type, fill: Callable[[NDArray[np.generic]], None]
) -> ov.Node:
    """A constant whose memory is allocated once, by OpenVINO, and filled in place in small parts."""
    tensor = ov.Tensor(dtype, ov.Shape(list(dims)))
    flat = tensor.data.reshape(-1)
    step = _CHUNK_BYTES // flat.itemsize
    for start in range(0, flat.size, step):
        fill(flat[start : start + step])
    return _named(ov.op.Constant(tensor, shared_memory=True), name)


def _fill_bytes(part: NDArray[np.generic], rng: np.random.Generator) -> None:
    words = rng.integers(0, 1 << 64, -(-part.nbytes // 8), dtype=np.uint64)
    part.view(np.uint8)[:] = words.view(np.uint8)[: part.nbytes]


def _fill_choice(part: NDArray[np.generic], rng: np.random.Generator, values: NDArray[np.uint8]) -> None:
    part.view(np.uint8)[:] = rng.choice(values, part.nbytes)


def _fill_float(part: NDArray[np.generic], rng: np.random.Generator, std: float) -> None:
    uniform = rng.random(part.size, dtype=np.float32)
    part[:] = (uniform - np.float32(0.5)) * np.float32(std * math.sqrt(12.0))


def _scales(rng: np.random.Generator, mean: float, dims: tuple[int, ...], signed: bool = False) -> ov.Node:
    scales = mean * rng.uniform(0.8, 1.2, dims)
    if signed:
        # i4 reaches from -8 to 7. NNCF picks the sign that uses -8, so the mean of -0.5 evens out.
        scales *= rng.choice([-1.0, 1.0], dims)
    return ops.constant(scales.astype(np.float16))


def _dequantised(
    name: str,
    stored: ov.Node,
    zero_point: ov.Node | None,
    scale: ov.Node,
    merged: tuple[int, ...] | None = None,
) -> ov.Node:
    """``(stored - zero_point) * scale`` in f16, groups merged into `merged` where given, then f32."""
    value = ops.convert(stored, "f16")
    if zero_point is not None:
        shift = ops.convert(_named(zero_point, f"{name}/zero_point"), "f16")
        value = ops.subtract(value, shift, name=f"{name}/zero_point/subtract")
    value = ops.multiply(value, _named(scale, f"{name}/scale"), name=f"{name}/fq_weights_1")
    if merged is not None:
        value = ops.reshape(value, np.array(merged, np.int64), special_zero=False)
    return ops.convert(value, "f32", name=f"{name}/fq_weights_1/convert")


def _named(node: ov.Node, name: str) -> ov.Node:
    if name:
        node.set_friendly_name(name)
    return node

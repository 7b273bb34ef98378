"""Random contents for a KV cache, so that a pass reads real pages without a prefill of the context."""

from __future__ import annotations

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.cache.cache import CacheTensor, cache_layout
from ovspec_ops.key_summary.reference import PARTS

_TILE_BLOCKS = 64
_PARAMETER_BYTES = 8  # one f32 scale and one f32 zero point
_SCALE, _ZERO_POINT = 1 / 74, 128.0  # scales uniform bytes to a standard deviation of 1
_SUMMARY_SCALE, _SUMMARY_ZERO = 1 / 4.61, -7.5 / 4.61  # the same for numbers of 4 bits, 0 to 15


def fill(tensor: ov.Tensor, spec: CacheTensor, block_size: int, rng: np.random.Generator) -> None:
    """Fill a block-wise tensor with finite random values of mean 0 and a standard deviation near 1.

    Every block is written: the kernel maps pages that were never written to one page of zeros, and reading
    them costs nothing. Keys and values repeat every 64 blocks. Summaries do not repeat, so that selected
    blocks are spread over the whole context.
    """
    data = tensor.data.view(np.uint8).reshape(tensor.shape[0], -1)
    tile = _tile(spec, block_size, rng)
    for begin in range(0, len(data), len(tile)):
        if begin and spec.name.startswith("key_summary."):
            tile = _tile(spec, block_size, rng)
        data[begin : begin + len(tile)] = tile[: len(data) - begin]


def _tile(spec: CacheTensor, block_size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """u8 `[64, bytes per block]`."""
    shape = (_TILE_BLOCKS, *spec.block_shape)
    layout = cache_layout(spec, block_size)
    if spec.name.startswith("key_summary.") and spec.element_type == ov.Type.u8:
        tile = _random_bytes(shape, rng)
        parameters = np.repeat(np.array([_SUMMARY_SCALE, _SUMMARY_ZERO], np.float32), PARTS)
        tile[..., : parameters.nbytes] = parameters.view(np.uint8)
    elif layout == "u8 by token":
        tile = _random_bytes(shape, rng)
        tile[..., :_PARAMETER_BYTES] = np.array([_SCALE, _ZERO_POINT], np.float32).view(np.uint8)
    elif layout == "u8 by channel":
        tile = _random_bytes(shape, rng)
        rows = spec.block_shape[1] - block_size
        if rows != _PARAMETER_BYTES:
            raise ValueError(f"{spec.name}: {rows} rows of scales and zero points a block, expected 8")
        for begin, value in ((0, _SCALE), (4, _ZERO_POINT)):
            part = tile[:, :, begin : begin + 4]  # the bytes of numbers, one behind the other
            part[...] = np.full(part.size // 4, value, np.float32).view(np.uint8).reshape(part.shape)
    elif layout in ("f32", "f16"):
        dtype = np.float32 if layout == "f32" else np.float16
        tile = rng.standard_normal(shape, np.float32).astype(dtype).view(np.uint8)
    elif layout == "bf16":
        bits = rng.standard_normal(shape, np.float32).view(np.uint32)
        tile = (bits >> 16).astype(np.uint16).view(np.uint8)
    elif layout == "i32":
        tile = np.zeros(shape, np.int32).view(np.uint8)  # block lists: nothing is selected yet
    else:
        raise ValueError(f"{spec.name}: the device keeps it in {layout}, which the bench can't fill")
    return tile.reshape(_TILE_BLOCKS, -1)


def _random_bytes(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.uint8]:
    return rng.integers(0, 256, shape, np.uint8)

"""Where the blocks of a cache lie: in the memory of the machine, or in that of a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.devices.devices import is_gpu, openvino_core
from ovspec.devices.huge_pages import advise_huge_pages


class CacheBlocks(Protocol):
    """A tensor `[blocks, ...]`; what NumPy sees of it are bytes, because it has no bf16.

    Attributes:
        tensor: what a request reads and writes.
    """

    tensor: Any

    def read(self, blocks: NDArray[np.integer]) -> NDArray[np.uint8]:
        """Return a copy of blocks, `[blocks, bytes]`."""

    def write(self, blocks: NDArray[np.integer], data: NDArray[np.uint8]) -> None:
        """Write blocks."""

    def move(self, blocks: NDArray[np.integer], places: NDArray[np.integer], axis: int) -> None:
        """Copy tokens within the tensor.

        Args:
            blocks: `[2, tokens]`, from which blocks to which.
            places: `[2, tokens]`, where in their blocks.
            axis: of a block along which its tokens lie.
        """

    def copy(self, source: Any, begin: int, at: int, count: int) -> None:
        """Copy `count` consecutive blocks of `source`, from `begin` on, to those from `at` on."""

    def keep_first(self, count: int) -> None:
        """Forget all but the first blocks; `tensor` is another then, and takes no further memory."""


class HostBlocks:
    """Blocks in the machine's memory, which NumPy reads and writes in place."""

    def __init__(self, element_type: ov.Type, shape: list[int]) -> None:
        self.tensor = ov.Tensor(element_type, ov.Shape(shape))
        advise_huge_pages(self.tensor)

    def read(self, blocks: NDArray[np.integer]) -> NDArray[np.uint8]:
        """As `CacheBlocks.read`."""
        found: NDArray[np.uint8] = _bytes(self.tensor)[blocks]
        return found

    def write(self, blocks: NDArray[np.integer], data: NDArray[np.uint8]) -> None:
        """As `CacheBlocks.write`."""
        _bytes(self.tensor)[blocks] = data

    def move(self, blocks: NDArray[np.integer], places: NDArray[np.integer], axis: int) -> None:
        """As `CacheBlocks.move`."""
        _move(_bytes(self.tensor).reshape(*self.tensor.shape[: axis + 2], -1), blocks, places, axis)

    def copy(self, source: HostBlocks, begin: int, at: int, count: int) -> None:
        """As `CacheBlocks.copy`."""
        _bytes(self.tensor)[at : at + count] = _bytes(source.tensor)[begin : begin + count]

    def keep_first(self, count: int) -> None:
        """As `CacheBlocks.keep_first`."""
        last = [count, *list(self.tensor.shape)[1:]]
        self.tensor = ov.Tensor(self.tensor, ov.Coordinate([0] * len(last)), ov.Coordinate(last))


class DeviceBlocks:
    """Blocks in a device's own memory.

    The GPU plugin copies a tensor of the machine to the device for every pass and never back: a cache there
    would stay empty.

    Args:
        element_type, shape: of the tensor. It begins with zeros: attention multiplies by 0 what a block holds
            after its last token, and that may be NaN in fresh memory.
    """

    def __init__(self, context: ov.RemoteContext, element_type: ov.Type, shape: list[int]) -> None:
        self._context, self._element_type, self._block_shape = context, element_type, shape[1:]
        self.tensor = context.create_tensor(element_type, ov.Shape(shape), {})
        zeros = ov.Tensor(element_type, ov.Shape(shape))
        _bytes(zeros)[:] = 0
        self.tensor.copy_from(zeros)

    def read(self, blocks: NDArray[np.integer]) -> NDArray[np.uint8]:
        """As `CacheBlocks.read`."""
        parts = []
        for begin, count in _runs(blocks):
            host = ov.Tensor(self._element_type, ov.Shape([count, *self._block_shape]))
            _slice(self.tensor, begin, count).copy_to(host)
            parts.append(_bytes(host))
        return np.concatenate(parts)

    def write(self, blocks: NDArray[np.integer], data: NDArray[np.uint8]) -> None:
        """As `CacheBlocks.write`.

        OpenVINO 2026.4 copies wrong bytes from the machine to a part of a remote tensor; within the device
        parts are copied right.
        """
        host = ov.Tensor(self._element_type, ov.Shape([len(blocks), *self._block_shape]))
        _bytes(host)[:] = data
        whole = self._context.create_tensor(self._element_type, host.shape, {})
        whole.copy_from(host)
        done = 0
        for begin, count in _runs(blocks):
            _slice(self.tensor, begin, count).copy_from(_slice(whole, done, count))
            done += count

    def move(self, blocks: NDArray[np.integer], places: NDArray[np.integer], axis: int) -> None:
        """As `CacheBlocks.move`; whole blocks go to the machine and back."""
        touched, local = np.unique(blocks, return_inverse=True)
        data = self.read(touched)
        values = data.view(_INTEGERS[self._element_type.size]).reshape(len(touched), *self._block_shape)
        _move(values, local.reshape(blocks.shape), places, axis)
        self.write(touched, data)

    def copy(self, source: DeviceBlocks, begin: int, at: int, count: int) -> None:
        """As `CacheBlocks.copy`."""
        _slice(self.tensor, at, count).copy_from(_slice(source.tensor, begin, count))

    def keep_first(self, count: int) -> None:
        """As `CacheBlocks.keep_first`."""
        self.tensor = _slice(self.tensor, 0, count)


_INTEGERS = {1: np.uint8, 2: np.uint16, 4: np.uint32}  # by their bytes


def _move(data: NDArray[Any], blocks: NDArray[np.integer], places: NDArray[np.integer], axis: int) -> None:
    rows = np.moveaxis(data, 1 + axis, 1)
    # Indexing with arrays copies before it writes.
    rows[blocks[1], places[1]] = rows[blocks[0], places[0]]


NewBlocks = Callable[[ov.Type, list[int]], CacheBlocks]


def blocks_on(device: str) -> NewBlocks:
    """What allocates the blocks of a model's caches, on its device."""
    if not is_gpu(device):
        return HostBlocks
    context = openvino_core().get_default_context(device)
    return lambda element_type, shape: DeviceBlocks(context, element_type, shape)


def _runs(blocks: NDArray[np.integer]) -> list[tuple[int, int]]:
    """Consecutive blocks, as their first and their number."""
    runs = np.split(blocks, np.flatnonzero(np.diff(blocks) != 1) + 1)
    return [(int(run[0]), len(run)) for run in runs]


def _slice(tensor: ov.RemoteTensor, begin: int, count: int) -> ov.RemoteTensor:
    shape = list(tensor.get_shape())
    first, last = [begin] + [0] * (len(shape) - 1), [begin + count, *shape[1:]]
    return ov.RemoteTensor(tensor, ov.Coordinate(first), ov.Coordinate(last))


def _bytes(tensor: ov.Tensor) -> NDArray[np.uint8]:
    data: NDArray[np.uint8] = tensor.data.view(np.uint8).reshape(tensor.shape[0], -1)
    return data

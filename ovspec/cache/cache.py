"""The paged KV cache: block tables of sequences, and the tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.adapters.model_adapters import LoadedBlend
from ovspec.cache.cache_memory import CacheBlocks, HostBlocks, NewBlocks
from ovspec.cache.sequence_states import SequenceStates
from ovspec.cache.visual_prompt import VisualPrompt
from ovspec.devices.freed_memory import give_back_freed_memory
from ovspec_transforms import CACHE_SIDES, CACHE_TABLE

_FIRST_BLOCKS = 64
# Blocks for an answer behind a prompt, 1,024 tokens. The system gives memory where it is written, so those
# that are not used cost nothing.
_ANSWER_BLOCKS = 32
# Bytes of old tensors that the C library may hold while a cache grows. Giving them back takes as long as
# copying many small tensors.
_MOST_FREED = 2**26


@dataclass(slots=True)
class HeldKeys:
    """Keys of a sequence's last tokens at the anchor layers, for backends that cannot read the cache.

    Attributes:
        begin: position of the first key.
        keys: f32 `[tokens, values of all anchors]`. After a rollback some may be past the sequence's end.
        unknown: logical blocks whose keys were not all known when the block was last written.
    """

    begin: int = 0
    keys: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    unknown: set[int] = field(default_factory=set)

    @property
    def end(self) -> int:
        """Position after the last key."""
        return self.begin + len(self.keys)

    def slice(self, begin: int, end: int) -> NDArray[np.float32]:
        """Keys of positions `begin` .. `end - 1`."""
        return self.keys[begin - self.begin : end - self.begin]


@dataclass(slots=True)
class CachedSequence:
    """Blocks and state of one sequence in the cache of one model.

    Attributes:
        table: i32 `[blocks]`, physical block of every logical block.
        length: tokens whose keys and values are valid. A rollback sets it lower: the next pass overwrites the
            rows after it before anything reads them.
        held_keys: keys of its last tokens, kept by the selection of the stock backend.
        summarised: tokens whose keys are in the summaries of their blocks, where the model keeps such.
        digests: of its first full blocks, those that other sequences may share.
        tokens: i64 `[length or more]`, the cached tokens; kept for models with long RoPE only.
        long_rope: whether its keys have the long frequencies of such a model.
        states: those of layers without keys and values, if the model has such.
        adapters: what its rows add to the model's layers; `None`: nothing.
        visual: what pictures bring to it; `None`: nothing.
    """

    table: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    length: int = 0
    held_keys: HeldKeys = field(default_factory=HeldKeys)
    summarised: int = 0
    digests: list[bytes] = field(default_factory=list)
    tokens: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    long_rope: bool = False
    states: SequenceStates | None = None
    adapters: LoadedBlend | None = None
    visual: VisualPrompt | None = None

    def rollback(self, length: int) -> None:
        """Drop every token from `length` on; with linear attention, go back to the longest state held.

        Raises:
            ValueError: `length` is negative or larger than the cached length.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"rollback to {length}: expected 0 to {self.length}, the tokens in the cache")
        if self.states is not None:
            length = self.states.cut(length)
        self.length, self.summarised = length, min(self.summarised, length)

    def fork(self) -> CachedSequence:
        """The same content once more; the caller counts who refers to the blocks."""
        return replace(
            self,
            held_keys=replace(self.held_keys, unknown=set(self.held_keys.unknown)),
            digests=list(self.digests),
            states=None if self.states is None else self.states.fork(),
        )

    def keep_state(self, length: int) -> None:
        """Keep what it takes to roll back to `length` tokens, until this is called with another number."""
        if self.states is not None:
            self.states.kept = length

    def keep_states(self, since: int | None) -> None:
        """Keep states from behind `since` tokens on, to roll back to; `None`: the last."""
        if self.states is not None:
            self.states.since = since

    def keyed(self, tokens: Sequence[int]) -> Sequence[int]:
        """Tokens as others know them: those of a picture are alike where the pictures are."""
        return tokens if self.visual is None else self.visual.keyed(tokens)

    def clear(self) -> None:
        """Forget everything; the blocks are somebody else's now."""
        self.table, self.digests = np.zeros(0, np.int32), []
        self.length, self.held_keys, self.summarised = 0, HeldKeys(), 0
        if self.states is not None:
            self.states.clear()


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """Name, element type and shape `[block_size, ...]` of one block-wise tensor of the graph."""

    name: str
    element_type: ov.Type
    block_shape: tuple[int, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return math.prod(self.block_shape) * int(self.element_type.size)


class KVCache:
    """The block-wise tensors of one compiled model (keys, values, summaries), grown on demand.

    The request gets those that are its inputs, and a table with the addresses of all where it reads one.

    Args:
        new_blocks: allocates blocks where the request's device has its caches.
        key_axis: axis of a block of keys along which its tokens lie, in a float type.

    Attributes:
        max_bytes: limit for all tensors together, or `None`.
    """

    def __init__(
        self,
        request: ov.InferRequest,
        tensors: Iterable[CacheTensor],
        new_blocks: NewBlocks = HostBlocks,
        key_axis: int = 1,
    ) -> None:
        self._request, self._new_blocks, self._key_axis = request, new_blocks, key_axis
        self.specs = tuple(tensors)
        self._blocks: dict[str, CacheBlocks] = {}
        self._capacity = 0
        self.max_bytes: int | None = None
        self._inputs = {name for port in request.model_inputs for name in port.get_names()}
        self._table = _AddressTable(request, [spec.name for spec in self.specs])

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all tensors together."""
        return sum(spec.block_bytes for spec in self.specs)

    @property
    def capacity(self) -> int:
        """Blocks of each tensor."""
        return self._capacity

    def ensure(self, num_blocks: int, soon: int = 0) -> None:
        """Grow every tensor to at least `num_blocks` blocks and keep the contents.

        Doubling makes copies rare, and `soon` spares a long prompt most of them. One tensor is replaced at a
        time, and the memory of old ones returned to the system, not to the C library alone: the additional
        peak is one tensor, and up to 64 MB of old ones.

        Args:
            num_blocks: blocks needed now.
            soon: blocks needed once the prompts in the pass have been read; a cache that grows takes so many,
                and some for the answers, where `max_bytes` allows.

        Raises:
            RuntimeError: they would exceed `max_bytes`, or the memory of the machine or the device.
        """
        if num_blocks <= self._capacity:
            return
        capacity = max(_FIRST_BLOCKS, num_blocks, min(2 * self._capacity, num_blocks + 1024))
        if soon:
            capacity = max(capacity, soon + _ANSWER_BLOCKS)
        if self.max_bytes is not None:
            most = self.max_bytes // self.block_bytes
            if num_blocks > most:
                raise RuntimeError(
                    f"the KV cache needs {num_blocks} blocks ({num_blocks * self.block_bytes / 1e9:.2f} GB), "
                    f"cache_size allows {self.max_bytes / 1e9:.2f} GB; raise it, or shorten the prompts"
                )
            capacity = min(capacity, most)
        self.resize(capacity)

    def resize(self, capacity: int) -> None:
        """Give every tensor so many blocks, at least those that it has, and keep the contents.

        Raises:
            RuntimeError: out of memory; all tensors have as many blocks as before.
        """
        freed = 0
        try:
            for spec in self.specs:
                old = self._blocks.get(spec.name)
                grown = self._allocate(spec, capacity)
                if old is not None:
                    grown.copy(old, 0, 0, self._capacity)
                self._use(spec, grown)
                del old
                freed += self._capacity * spec.block_bytes
                if freed > _MOST_FREED:
                    give_back_freed_memory()
                    freed = 0
        except RuntimeError:
            # Where keys and values of a layer differ in their number of blocks, OpenVINO leaves the outputs
            # of a pass as they were, without an error.
            for spec in self.specs if self._capacity else ():
                self._blocks[spec.name].keep_first(self._capacity)
                self._use(spec, self._blocks[spec.name])
            raise
        finally:
            if freed:
                give_back_freed_memory()
        self._capacity = capacity
        self._table.numbers[0] = capacity

    def _use(self, spec: CacheTensor, blocks: CacheBlocks) -> None:
        self._blocks[spec.name] = blocks
        self._table.set(spec.name, blocks.tensor)
        if spec.name in self._inputs:
            self._request.set_tensor(spec.name, blocks.tensor)

    def _allocate(self, spec: CacheTensor, blocks: int) -> CacheBlocks:
        try:
            return self._new_blocks(spec.element_type, [blocks, *spec.block_shape])
        except (MemoryError, RuntimeError) as error:
            tokens = self._capacity * self._block_tokens
            raise RuntimeError(
                f"the KV cache can't grow to {blocks} blocks ({blocks * self.block_bytes / 1e9:.1f} GB): out "
                f"of memory; it has room for {tokens} tokens of all texts together: ask for a max_context of "
                "that at most, or for a smaller KV_CACHE_PRECISION"
            ) from error

    def read(self, name: str, blocks: NDArray[np.integer]) -> NDArray[np.uint8]:
        """A copy of blocks of a tensor, `[blocks, bytes]`; NumPy has no bf16."""
        return self._blocks[name].read(blocks)

    def write(self, name: str, blocks: NDArray[np.integer], data: NDArray[Any]) -> None:
        """Write blocks of a tensor."""
        if len(blocks):
            self._blocks[name].write(blocks, data.view(np.uint8).reshape(len(blocks), -1))

    def move(self, name: str, blocks: NDArray[np.integer], places: NDArray[np.integer]) -> None:
        """Copy tokens of keys or values; see `CacheBlocks.move`."""
        self._blocks[name].move(blocks, places, self.token_axis(name))

    def copy(self, source: int, target: int) -> None:
        """Copy the contents of a block."""
        for blocks in self._blocks.values():
            blocks.copy(blocks, source, target, 1)

    def tensor(self, name: str) -> Any:
        """The tensor that the request reads and writes under `name`, on its device."""
        return self._blocks[name].tensor

    @property
    def _block_tokens(self) -> int:
        """Tokens of a block, as values lie in it."""
        values = (spec for spec in self.specs if spec.name.startswith("value_cache."))
        return next((spec.block_shape[self.token_axis(spec.name)] for spec in values), 0)

    @property
    def on_device(self) -> bool:
        """Whether the blocks are laid out as a GPU has them: the tokens of keys lie along the last axis."""
        return self._key_axis != 1

    def shares_scales(self, block_size: int) -> bool:
        """Whether tokens of a block share scales, so that one that is written changes the others."""
        return any(
            spec.name.startswith("key_cache.") and spec.block_shape[self.token_axis(spec.name)] != block_size
            for spec in self.specs
        )

    def token_axis(self, name: str) -> int:
        """The axis of a block along which the tokens of keys or values lie, in a float type."""
        return self._key_axis if name.startswith("key_cache.") else 1


class _AddressTable:
    """Where caches are, for graphs with the input `cache_table`; see `join_layers`.

    Args:
        request: that reads it, where its graph does.
        names: of the caches.

    Attributes:
        numbers: i64 `[1 + entries]`, the number of blocks first; only of such a graph are they kept.
    """

    def __init__(self, request: ov.InferRequest, names: Iterable[str]) -> None:
        self._entries = dict[str, int]()
        is_read = any(CACHE_TABLE in port.get_names() for port in request.model_inputs)
        for name in names if is_read else ():
            side, _, layer = name.rpartition(".")
            self._entries[name] = len(CACHE_SIDES) * int(layer) + CACHE_SIDES[side]
        self.numbers = np.zeros(2 + max(self._entries.values(), default=-1), np.int64)
        if is_read:
            request.set_tensor(CACHE_TABLE, ov.Tensor(self.numbers.view(np.uint8), shared_memory=True))

    def set(self, name: str, tensor: ov.Tensor) -> None:
        """Take the address of a cache."""
        if name in self._entries:
            self.numbers[1 + self._entries[name]] = tensor.data.ctypes.data


def cache_layout(spec: CacheTensor, block_size: int) -> str:
    """Precision and layout of a cache tensor, e.g. "f16", "u8 by token" or "u8 by channel"."""
    name: str = spec.element_type.get_type_name()
    if name != "u8":
        return name
    return "u8 by token" if spec.block_shape[1] == block_size else "u8 by channel"

"""Graphs of a small model, compiled for the shapes of passes that come again and again."""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.runtime.cache import CachedSequence, KVCache
from ovspec.runtime.compile import cache_tensors, compile_paged
from ovspec.runtime.pass_inputs import PassInputs
from ovspec.runtime.tables import Rows, build_tables, is_short_chain
from ovspec_transforms import VERIFY_TABLES

_LOG = logging.getLogger(__name__)

SMALL_MODEL = 16 << 20  # bytes of weights; measured with 2 to 12 MB
#: How they run. Between two passes the other threads fall asleep, and a pass of a small model is over before
#: they pay: on two idle cores the demo target wrote 1,987 tokens/s with one thread and 1,962 with two, 1,465
#: and 1,427 with four drafts. Pinned, the only threads of several processes would wait for one core.
_ONE_THREAD = {"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False}
_MOST_ROWS = 8
# Compiling takes 70 to 170 ms of one thread, which 30 to 165 us less a pass bring back after some 1,000
# passes. A text that has come so far goes on.
PASSES = 128
_MOST_GRAPHS = 4  # of some 12 MB
_GROWING = ("block_indices", VERIFY_TABLES)  # with the text
_PROVEN_PASSES = 3

# Waited for when the interpreter ends; one at a time leaves the other cores to the passes.
COMPILER = ThreadPoolExecutor(1, "ovspec-fixed-graphs")

Compile = Callable[[ov.Model], ov.CompiledModel]


class Kind(NamedTuple):
    """What the shapes of a pass of one sequence's few rows follow from, as the attributes of `Rows`."""

    rows: int
    sampled: int
    states: int

    @classmethod
    def of(cls, batch: Sequence[Rows], added: int) -> Kind | None:
        """The kind of a pass; `None` where it is of several sequences, of many rows, or a tree.

        Args:
            batch: the rows of the pass.
            added: rows that nobody reads, which a single row does without.
        """
        rows, count = batch[0], len(batch[0].tokens)
        if len(batch) > 1 or count > _MOST_ROWS or not is_short_chain(rows):
            return None
        return cls(count + added if count > 1 else 1, rows.sampled, rows.states)


@dataclass(slots=True)
class _Passes:
    """Those of one kind: how many there were, and the graph that is compiled for them."""

    count: int = 0
    compiling: Future[ov.CompiledModel | None] | None = None
    inputs: PassInputs | None = None


@dataclass(slots=True)
class FixedGraphs:
    """Compiles a graph for a kind of pass, beside the passes, once there were 128 of it.

    Where shapes are known beforehand, the plugin infers none in a pass, and prepares nothing anew where the
    number of rows changes. An operation of ours costs it 1 us then in place of 5. One row of the demo
    target took 395 us in place of 560, of its draft model 85 in place of 113.

    These graphs have the weights and the cache of the model's own one. They are used only where their logits
    have its bits.

    Args:
        model: behind its transforms; small, as it stays in memory.
        compile: compiles a model with the settings of `own`, by `one_thread`.
        own: the model compiled for any shapes.
        names: inputs of the model beside the caches.
        cache: of the model.
        block_size: tokens of its blocks.
    """

    model: ov.Model
    compile: Compile
    own: ov.CompiledModel
    names: Sequence[str]
    cache: KVCache
    block_size: int
    _kinds: dict[Kind, _Passes] = field(default_factory=dict)
    _asked: int = 0

    def find(self, batch: Sequence[Rows], added: int) -> tuple[PassInputs | None, int]:
        """Count a pass; the inputs of the graph for it, `None` where there is none yet, and the added rows.

        Args:
            batch, added: as of `Kind.of`.
        """
        kind = Kind.of(batch, added)
        if kind is None:
            return None, added
        passes = self._kinds.setdefault(kind, _Passes())
        passes.count += 1
        if passes.count == PASSES and self._asked < _MOST_GRAPHS:
            self._asked += 1
            passes.compiling = COMPILER.submit(self._compile, kind, batch[0].features)
        if passes.compiling is not None and passes.compiling.done():
            compiled, passes.compiling = _result(passes.compiling, kind), None
            if compiled is not None:
                passes.inputs = PassInputs(compiled.create_infer_request(), self.names)
                self.cache.attach(passes.inputs.request)
        return passes.inputs, kind.rows - len(batch[0].tokens) if passes.inputs else added

    def wait(self) -> None:
        """Wait for the graphs that are being compiled."""
        concurrent.futures.wait([p.compiling for p in self._kinds.values() if p.compiling is not None])

    def _compile(self, kind: Kind, features: NDArray[np.float32] | None) -> ov.CompiledModel | None:
        """The model compiled for a kind of pass; `None` where its logits have other bits."""
        model = self.model.clone()
        tables = self._tables(kind, features, 0)
        model.reshape({name: list(tables[name].shape) for name in self.names if name not in _GROWING})
        compiled = self.compile(model)
        same = np.array_equal(self._logits(self.own, kind, features), self._logits(compiled, kind, features))
        return compiled if same else None

    def _tables(
        self, kind: Kind, features: NDArray[np.float32] | None, past: int
    ) -> dict[str, NDArray[np.generic]]:
        """Inputs of a pass of this kind over a cache of its own."""
        blocks = np.arange(_PROVEN_PASSES * _MOST_ROWS // self.block_size + 1, dtype=np.int32)
        tokens = np.arange(past, past + kind.rows, dtype=np.int64)
        rows = Rows(
            CachedSequence(blocks, past),
            tokens,
            sampled=kind.sampled,
            states=kind.states,
            features=features if features is None else np.resize(features, (kind.rows, *features.shape[1:])),
        )
        return build_tables([rows], self.block_size, VERIFY_TABLES in self.names, self.names)

    def _logits(
        self, compiled: ov.CompiledModel, kind: Kind, features: NDArray[np.float32] | None
    ) -> NDArray[np.uint32]:
        """Bits of the logits of a few passes, one behind the other."""
        inputs, found = PassInputs(compiled.create_infer_request(), self.names), []
        cache = KVCache(inputs.request, cache_tensors(compiled))
        cache.ensure(_PROVEN_PASSES * _MOST_ROWS // self.block_size + 1)
        for number in range(_PROVEN_PASSES):
            inputs.write(self._tables(kind, features, number * kind.rows))
            inputs.request.infer(share_outputs=True)
            found.append(np.array(inputs.request.get_tensor("logits").data, np.float32))
        return np.concatenate(found).view(np.uint32)


def _result(compiling: Future[ov.CompiledModel | None], kind: Kind) -> ov.CompiledModel | None:
    """What came of it; the passes can go on without."""
    try:
        return compiling.result()
    except (MemoryError, RuntimeError, ValueError) as error:
        _LOG.warning("ovspec: no graph is compiled for %s (%s); its passes go on as before", kind, error)
        return None


def one_thread(core: ov.Core, device: str, settings: Mapping[str, object]) -> Compile:
    """What compiles a model for one thread, if the user's settings do not ask for more."""
    return partial(compile_paged, core, device=device, settings={**_ONE_THREAD, **settings})


def is_small(model: ov.Model) -> bool:
    """Whether a model has so few weights that the operations' own costs count in a pass."""
    constants = (node for node in model.get_ops() if node.get_type_name() == "Constant")
    weights: int = sum(node.get_byte_size() for node in constants)
    return weights <= SMALL_MODEL

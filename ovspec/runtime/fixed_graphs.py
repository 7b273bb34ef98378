"""Graphs of a small model, compiled for the shapes of passes that come again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.runtime.background_compile import BackgroundCompile, is_compiling
from ovspec.runtime.cache import CachedSequence, KVCache
from ovspec.runtime.compile import compile_paged, fuses_mlps
from ovspec.runtime.next_rows import NextRows
from ovspec.runtime.pass_inputs import PassInputs
from ovspec.runtime.quicker_graph import QuickerGraph
from ovspec.runtime.tables import Rows, build_tables, is_short_chain
from ovspec_ops.verify_attention import tables_length
from ovspec_transforms import HIDDEN_ROWS, SAMPLED_TOKENS_INDICES, VERIFY_TABLES, fix_caches, share_threads

SMALL_MODEL = 16 << 20  # bytes of weights; measured with 2 to 12 MB
#: How they run. Between two passes the other threads fall asleep, and a pass of a small model is over before
#: they pay: on two idle cores with AMX the demo target wrote 1,987 tokens/s with one thread and 1,962 with
#: two, 1,465 and 1,427 with four drafts. Pinned, the only threads of several processes would wait for a core.
_ONE_THREAD = {"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False}
# Of native operations that have several. One row of a small layer is 10 us of work for one thread; nothing
# was measured with more than two cores.
_MOST_THREADS = 4
# Settings of where the plugin's threads run. Shared threads would not follow them, so there are none then.
_PLACES = ("SCHEDULING_CORE_TYPE", "ENABLE_CPU_PINNING")
_MOST_ROWS = 8
_MOST_GRAPHS = 4  # of some 12 MB
_RETURNED = (SAMPLED_TOKENS_INDICES, HIDDEN_ROWS)  # rows whose logits and states are wanted
_GROWING = ("block_indices", VERIFY_TABLES)  # with the text
# Passes that are compared, behind a text of several blocks: stock attention divides one among threads, and
# adds its parts in another order than one thread does.
_PROVEN_PASSES, _PROVEN_PAST = 3, 100

Compile = Callable[[ov.Model], ov.CompiledModel]


class Compilers(NamedTuple):
    """What compiles a small model for known shapes.

    Attributes:
        alone: for one thread, as `one_thread`.
        threaded: for several threads; `None` where its own graph has one, or `alone` has several. If native
            operations do the work, the plugin keeps one thread and they have the others.
        threads: that native operations may have where the plugin has one.
    """

    alone: Compile
    threaded: Compile | None
    threads: int

    @classmethod
    def of(
        cls,
        core: ov.Core,
        device: str,
        settings: Mapping[str, object],
        own: ov.CompiledModel,
        native: bool,
    ) -> Compilers:
        """Those that honour the user's settings.

        Args:
            core, device, settings, own: as of `one_thread`.
            native: whether attention and all products with weights are native operations.
        """
        alone = one_thread(core, device, settings, own)
        of_pass = int(own.get_property("INFERENCE_NUM_THREADS")) // int(own.get_property("NUM_STREAMS"))
        if of_pass <= 1 or "INFERENCE_NUM_THREADS" in settings or fuses_mlps(own):
            return cls(alone, None, 1)
        threads = 1 if any(name in settings for name in _PLACES) else min(of_pass, _MOST_THREADS)

        def threaded(model: ov.Model) -> ov.CompiledModel:
            if threads == 1 or not native:
                return compile_paged(core, model, device, settings)
            share_threads(model, threads)
            return compile_paged(core, model, device, {**_ONE_THREAD, **settings})

        return cls(alone, threaded, threads)


def one_thread(
    core: ov.Core, device: str, settings: Mapping[str, object], own: ov.CompiledModel | None = None
) -> Compile:
    """What compiles a model for one thread, if the user's settings do not ask for more.

    Args:
        core, device, settings: as of `compile_paged`.
        own: the model as it is compiled; MLPs that are fused there need two threads, to have the same bits.
    """

    def compile(model: ov.Model) -> ov.CompiledModel:
        few = {} if own is not None and fuses_mlps(own) else _ONE_THREAD
        return compile_paged(core, model, device, {**few, **settings})

    return compile


class Kind(NamedTuple):
    """Key of a graph: what the shapes of a pass of one sequence's few rows follow from, as in `Rows`."""

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

    def holds(self, other: Kind) -> bool:
        """Whether a pass of the other kind fits this one, with rows behind its own that nobody reads."""
        all_read = all(kind.sampled == kind.rows and kind.states in (0, kind.rows) for kind in (self, other))
        return all_read and other.rows < self.rows and bool(other.states) == bool(self.states)


@dataclass(slots=True)
class FixedGraphs:
    """Compiles a graph for a kind of pass, beside the passes, once there were 128 of it.

    Where shapes are known beforehand, the plugin infers none in a pass, and prepares nothing anew where the
    number of rows changes. An operation of ours then costs it 1 us, not 5; attention 1 us, not 17.
    One row of the demo target took 395 us in place of 560, of its draft model 85 in place of 113.

    These graphs have the weights and the cache of the model's own one. They are used only where their logits
    have its bits, of a draft where their likeliest tokens are its own. With native attention the size of the
    cache is one of the shapes, and graphs are compiled anew where it grows.

    Args:
        model: behind its transforms; small, as it stays in memory.
        own: the model compiled for any shapes.
        names: inputs of the model beside the caches.
        cache: of the model.
        block_size: tokens of its blocks.
        compilers: of graphs of one thread and of several; the quicker one stays.
        fills: whether rows have their bits whatever rows stand behind them. A pass for which there is no
            graph then takes that of more rows: the last passes of a text, whose drafts are shorter, took 3
            to 5 ms without, and 1.2 ms with it.

    Attributes:
        drafts: whether the target decides what stands of the logits. One thread is best for models as small
            as drafts: two of the plugin take 1.15 to 1.3 of its time with 2 to 4 MB of weights.
    """

    model: ov.Model
    own: ov.CompiledModel
    names: Sequence[str]
    cache: KVCache
    block_size: int
    compilers: Compilers
    fills: bool
    drafts: bool = field(default=False, init=False)
    _graphs: BackgroundCompile[Kind, QuickerGraph] = field(init=False)
    _blocks: int = field(default=0, init=False)
    _next_rows: NextRows | None = None

    def __post_init__(self) -> None:
        self._graphs = BackgroundCompile(self.cache, _MOST_GRAPHS)

    def find(self, batch: Sequence[Rows], added: int) -> tuple[PassInputs | None, int]:
        """Count a pass; the inputs of the graph for it, `None` where there is none yet, and the added rows.

        The cache has the blocks of the pass.

        Args:
            batch, added: as of `Kind.of`.
        """
        kind, self._next_rows = Kind.of(batch, added), None
        if self._has_grown:
            self._graphs.renew()
            self._blocks = self.cache.capacity
        if kind is None or (self._native and self._blocks < self._proven_blocks):
            return None, added
        features, blocks = batch[0].features, self._blocks
        graph, count = self._graphs.find(kind, lambda: self._compile(kind, features, blocks)), kind.rows
        if graph is None and self.fills:
            graph, count = self._filled(kind, batch[0])
        if graph is None:
            return None, added
        inputs, more = graph.next(timed=not is_compiling()), count - len(batch[0].tokens)
        if not more:
            self._next_rows = NextRows.behind(inputs, batch[0], self.block_size)
        return inputs, more

    def _filled(self, kind: Kind, rows: Rows) -> tuple[QuickerGraph | None, int]:
        """A graph of more rows for a pass that needs no further block for them, and their number."""
        size = self.block_size
        room = size * max(len(rows.sequence.table), -(-rows.context // size)) - rows.past
        ready = self._graphs.ready
        fitting = [other for other in ready if other.holds(kind) and other.rows <= room]
        found = min(fitting, key=lambda other: other.rows, default=kind)
        return ready.get(found), found.rows

    def forward_next(
        self, sequence: CachedSequence, tokens: Sequence[int]
    ) -> tuple[NDArray[np.float32], float] | None:
        """A pass right behind one of the same sequence and graph, as `NextRows.run`.

        `None` too where the last pass was another; `ModelRunner.forward` takes the tokens then.
        """
        return self._next_rows.run(sequence, tokens) if self._next_rows and not self._has_grown else None

    @property
    def _native(self) -> bool:
        """Whether attention is native: the size of the cache is one of the shapes."""
        return VERIFY_TABLES in self.names

    @property
    def _has_grown(self) -> bool:
        return self._native and self.cache.capacity != self._blocks

    def wait(self) -> None:
        """Wait for the graphs that are being compiled."""
        self._graphs.wait()

    def _compile(self, kind: Kind, features: NDArray[np.float32] | None, blocks: int) -> QuickerGraph | None:
        """The model compiled for a kind of pass; `None` where its logits have other bits.

        Args:
            blocks: of the cache, where attention is native.
        """
        tables = self._tables(kind, features, 0)
        shapes = {name: list(tables[name].shape) for name in self.names if name not in _GROWING}
        whole = {name: tables[name] for name in _RETURNED if name in self.names and self.fills}
        if self._native:
            whole[VERIFY_TABLES] = np.zeros(tables_length(1, blocks), np.int32)
        shapes |= {name: list(array.shape) for name, array in whole.items()}
        expected, graphs = self._logits(self.own, kind, features, self._proven_blocks), list[PassInputs]()
        for compile in (self.compilers.alone, None if self.drafts else self.compilers.threaded):
            if compile is None:
                continue
            model = self.model.clone()
            model.reshape(shapes)
            if self._native:
                fix_caches(model, {spec.name: [blocks, *spec.block_shape] for spec in self.cache.specs})
            compiled = compile(model)
            if self._same(expected, self._logits(compiled, kind, features, blocks, whole)):
                graphs.append(PassInputs(compiled.create_infer_request(), self.names, whole))
        return QuickerGraph(graphs, self.cache.detach) if graphs else None

    def _same(self, expected: NDArray[np.float32], found: NDArray[np.float32]) -> bool:
        if self.drafts:
            return np.array_equal(expected.argmax(-1), found.argmax(-1))
        return np.array_equal(expected.view(np.uint32), found.view(np.uint32))

    def _tables(
        self, kind: Kind, features: NDArray[np.float32] | None, past: int
    ) -> dict[str, NDArray[np.generic]]:
        """Inputs of a pass of this kind over a cache of its own."""
        tokens = np.arange(past, past + kind.rows, dtype=np.int64)
        rows = Rows(
            CachedSequence(np.arange(self._proven_blocks, dtype=np.int32), past),
            tokens,
            sampled=kind.sampled,
            states=kind.states,
            features=features if features is None else np.resize(features, (kind.rows, *features.shape[1:])),
        )
        return build_tables([rows], self.block_size, self._native, self.names)

    @property
    def _proven_blocks(self) -> int:
        """Of the passes that are compared."""
        return (_PROVEN_PAST + _PROVEN_PASSES * _MOST_ROWS) // self.block_size + 1

    def _logits(
        self,
        compiled: ov.CompiledModel,
        kind: Kind,
        features: NDArray[np.float32] | None,
        blocks: int,
        whole: Mapping[str, NDArray[np.generic]] = MappingProxyType({}),
    ) -> NDArray[np.float32]:
        """Logits of a few passes, one behind the other and behind a text that `own` has read."""
        reading, found = PassInputs(self.own.create_infer_request(), self.names), []
        cache = KVCache(reading.request, self.cache.specs)
        cache.resize(max(blocks, self._proven_blocks))
        reading.write(self._tables(kind._replace(rows=_PROVEN_PAST), features, 0))
        reading.infer()
        inputs = PassInputs(compiled.create_infer_request(), self.names, whole)
        cache.attach(inputs.request)
        for number in range(_PROVEN_PASSES):
            inputs.write(self._tables(kind, features, _PROVEN_PAST + number * kind.rows))
            inputs.infer()
            found.append(np.array(inputs.request.get_tensor("logits").data, np.float32))
        return np.concatenate(found)


def is_small(model: ov.Model) -> bool:
    """Whether a model has so few weights that the operations' own costs count in a pass."""
    constants = (node for node in model.get_ops() if node.get_type_name() == "Constant")
    weights: int = sum(node.get_byte_size() for node in constants)
    return weights <= SMALL_MODEL

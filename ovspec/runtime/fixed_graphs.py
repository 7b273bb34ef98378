"""Graphs of a model, compiled for the shapes of passes that come again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.runtime.background_compile import BackgroundCompile, is_compiling
from ovspec.runtime.cache import CachedSequence, KVCache
from ovspec.runtime.cache_memory import SmallPages
from ovspec.runtime.fixed_compilers import FixedCompilers
from ovspec.runtime.next_rows import NextRows
from ovspec.runtime.pass_inputs import PassInputs
from ovspec.runtime.quicker_graph import QuickerGraph
from ovspec.runtime.tables import Rows, build_tables, is_short_chain
from ovspec_ops.verify_attention import tables_length
from ovspec_transforms import HIDDEN_ROWS, SAMPLED_TOKENS_INDICES, VERIFY_TABLES, fix_caches

_MOST_ROWS = 8
_RETURNED = (SAMPLED_TOKENS_INDICES, HIDDEN_ROWS)  # rows whose logits and states are wanted
_GROWING = ("block_indices", VERIFY_TABLES)  # with the text
# Passes that are compared, behind a text of several blocks: stock attention divides one among threads, and
# adds its parts in another order than one thread does.
_PROVEN_PASSES, _PROVEN_PAST = 3, 100
_RUNS = 4  # the text, and the passes of the model's own graph and of up to two others


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
    """Compiles a graph for a kind of pass, beside the passes, once there were 128 of it (large models: 512).

    Where shapes are known beforehand, the plugin infers none in a pass, and prepares nothing anew where the
    number of rows changes. An operation of ours then costs it 1 us, not 5; attention 1 us, not 17.
    One row of the demo target took 395 us in place of 560, of its draft model 85 in place of 113, of 28
    layers of the 0.6B shape 21.1 ms in place of 24.2.

    These graphs have the weights and the cache of the model's own one. They are used only where their logits
    have its bits, of a draft where their likeliest tokens are its own. With native attention the size of the
    cache is one of the shapes, and graphs are compiled anew where it grows.

    Args:
        model: behind its transforms; it shares its weights with `own`.
        own: the model compiled for any shapes.
        names: inputs of the model beside the caches.
        cache: of the model.
        block_size: tokens of its blocks.
        compilers: of one graph or two; the quicker one stays.
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
    compilers: FixedCompilers
    fills: bool
    drafts: bool = field(default=False, init=False)
    _single: BackgroundCompile[Kind, QuickerGraph] = field(init=False)
    _several: BackgroundCompile[Kind, QuickerGraph] = field(init=False)
    _blocks: int = field(default=0, init=False)
    _next_rows: NextRows | None = None

    def __post_init__(self) -> None:
        self._single, self._several = (
            BackgroundCompile(self.cache, most, self.compilers.patience) for most in self.compilers.most
        )
        self.fills = self.fills and self.compilers.fills

    def find(self, batch: Sequence[Rows], added: int) -> tuple[PassInputs | None, int]:
        """Count a pass; the inputs of the graph for it, `None` where there is none yet, and the added rows.

        The cache has the blocks of the pass.

        Args:
            batch, added: as of `Kind.of`.
        """
        kind, self._next_rows = Kind.of(batch, added), None
        if self._has_grown:
            self._single.renew()
            self._several.renew()
            self._blocks = self.cache.capacity
        if kind is None or (self._native and self._blocks < self._proven_blocks):
            return None, added
        features, blocks = batch[0].features, self._blocks
        graphs = self._single if kind.rows == 1 else self._several
        graph, count = graphs.find(kind, lambda: self._compile(kind, features, blocks)), kind.rows
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
        ready = self._several.ready
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
        self._single.wait()
        self._several.wait()

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
        reading, graphs = PassInputs(self.own.create_infer_request(), self.names), list[PassInputs]()
        cache = KVCache(reading.request, self.cache.specs, SmallPages)
        cache.resize(max(blocks, self._proven_blocks))
        reading.write(self._tables(kind._replace(rows=_PROVEN_PAST), features, 0))
        reading.infer()
        expected = self._logits(reading, cache, kind, features, 1)
        for number, compile in enumerate((self.compilers.fewest, self.compilers.threaded)):
            if compile is None or (number and self.drafts):
                continue
            model = self.model.clone()
            model.reshape(shapes)
            if self._native:
                fix_caches(model, {spec.name: [blocks, *spec.block_shape] for spec in self.cache.specs})
            inputs = PassInputs(compile(model).create_infer_request(), self.names, whole)
            cache.attach(inputs.request)
            if self._same(expected, self._logits(inputs, cache, kind, features, 2 + number)):
                graphs.append(inputs)
        return QuickerGraph(graphs, self.cache.detach) if graphs else None

    def _same(self, expected: NDArray[np.float32], found: NDArray[np.float32]) -> bool:
        if self.drafts:
            return np.array_equal(expected.argmax(-1), found.argmax(-1))
        return np.array_equal(expected.view(np.uint32), found.view(np.uint32))

    def _logits(
        self,
        inputs: PassInputs,
        cache: KVCache,
        kind: Kind,
        features: NDArray[np.float32] | None,
        run: int,
    ) -> NDArray[np.float32]:
        """Logits of a few passes, one behind the other and behind the text that the cache begins with.

        Args:
            run: 1 or more, another for each graph: its blocks hold nothing that others wrote.
        """
        found, size = [], self._run_blocks
        for block in range(size):
            cache.copy(block, run * size + block)
        for number in range(_PROVEN_PASSES):
            inputs.write(self._tables(kind, features, _PROVEN_PAST + number * kind.rows, run))
            inputs.infer()
            found.append(np.array(inputs.request.get_tensor("logits").data, np.float32))
        return np.concatenate(found)

    def _tables(
        self, kind: Kind, features: NDArray[np.float32] | None, past: int, run: int = 0
    ) -> dict[str, NDArray[np.generic]]:
        """Inputs of a pass of this kind over the blocks of a run."""
        tokens = np.arange(past, past + kind.rows, dtype=np.int64)
        begin, end = run * self._run_blocks, (run + 1) * self._run_blocks
        rows = Rows(
            CachedSequence(np.arange(begin, end, dtype=np.int32), past),
            tokens,
            sampled=kind.sampled,
            states=kind.states,
            features=features if features is None else np.resize(features, (kind.rows, *features.shape[1:])),
        )
        return build_tables([rows], self.block_size, self._native, self.names)

    @property
    def _run_blocks(self) -> int:
        """Of the passes of one graph that are compared."""
        return (_PROVEN_PAST + _PROVEN_PASSES * _MOST_ROWS) // self.block_size + 1

    @property
    def _proven_blocks(self) -> int:
        """Of all passes that are compared."""
        return _RUNS * self._run_blocks

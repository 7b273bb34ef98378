"""Several drafting steps of a small model in one graph: the token of each is an input of the next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec.runtime.background_compile import BackgroundCompile
from ovspec.runtime.cache import CachedSequence, KVCache
from ovspec.runtime.clock import microseconds
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.pass_inputs import PassInputs
from ovspec.runtime.tables import FEATURES, Rows, build_tables, slots
from ovspec_ops import BLOCK_SIZE
from ovspec_ops.verify_attention import PAST_LEN, TABLE, TABLE_END, one_chain, tables_length
from ovspec_transforms import (
    BOUNDARY_STATES,
    HIDDEN_ROWS,
    SAMPLED_TOKENS_INDICES,
    SLOT_MAPPING,
    VERIFY_TABLES,
    fix_caches,
    share_threads,
)
from ovspec_transforms.graph import find_parameter, nodes_of_type

#: Rows of the first step. Behind a verification one or two tokens are not in the draft's cache; of one, the
#: token before it is computed again.
FIRST_ROWS = 2
_MOST_STEPS = 8  # the graph grows with them: one of 4 steps of the demo draft compiles in 0.5 s
_MOST_GRAPHS = 2
_NOISE, _SCALE, _TOKENS, _POSITIONS = "noise", "inverse_temperature", "tokens", "position_ids"
# What every step has anew; all else is the first step's, or does not change.
_OF_STEPS = (VERIFY_TABLES, SLOT_MAPPING)


def unrolled(
    model: ov.Model,
    caches: Mapping[str, Sequence[int]],
    steps: int,
    rows: int = FIRST_ROWS,
    ids: NDArray[np.int64] | None = None,
) -> ov.Model:
    """A graph that computes so many steps of a sequence, over one cache.

    A step's token is the argmax of its logits times `inverse_temperature` (f32 `[]`) plus its row of `noise`
    (f32 `[steps, logits of a row]`). The output `tokens` is i64 `[steps]`. The input `position_ids` has the
    positions of all steps, the other inputs of the first step keep their names; those in which a later step i
    differs are called `NAME.i`. Where the model reads features and returns states, the features of a step are
    the states of the one before.

    Args:
        model: paged, with attention and caches of ours and no other inputs than `build_tables` makes for it.
        caches: shapes of its caches by name.
        steps: 1 or more.
        rows: of the first step; the others have one.
        ids: i64 `[logits of a row]`, the token that each is of; `None`: logit i is of token i.
    """
    counts = [rows, *[1] * (steps - 1)]
    whole = _of_rows(model, caches, sum(counts))
    angles = [ops.variadic_split(node, 0, counts) for node in _angles(whole)]
    position = find_parameter(whole, _POSITIONS)
    positions = ops.variadic_split(position, 0, counts)
    scale = ops.parameter([], ov.Type.f32)
    scale.output(0).get_tensor().set_names({_SCALE})
    vocab = whole.output("logits").get_partial_shape()[-1].get_length()
    noise = ops.parameter([steps, vocab], ov.Type.f32)
    noise.output(0).get_tensor().set_names({_NOISE})
    noises = ops.split(noise, 0, steps)
    parameters, first = [scale, noise, position], dict[str, ov.Output]()
    tokens, features = list[ov.Output](), list[ov.Output]()
    for step, count in enumerate(counts):
        part = _of_rows(model, caches, count)
        for node, angle in zip(_angles(part), angles, strict=True):
            node.output(0).replace(angle.output(step))
        found = {port.get_any_name(): port.get_node().input(0).get_source_output() for port in part.outputs}
        same = {
            SAMPLED_TOKENS_INDICES: lambda: ops.constant(np.zeros(1, np.int64)).output(0),
            HIDDEN_ROWS: lambda: ops.constant(np.zeros(1, np.int64)).output(0),
            "input_ids": lambda: tokens[-1],
            FEATURES: lambda: features[-1],
        }
        for parameter in part.get_parameters():
            port = parameter.output(0)
            name = port.get_any_name()
            if name == _POSITIONS:
                port.replace(positions.output(step))
            elif step and name not in _OF_STEPS:
                port.replace(same[name]() if name in same else first[name])
            else:
                first.setdefault(name, port)
                if step:
                    port.get_tensor().set_names({f"{name}.{step}"})
                parameters.append(parameter)
        for output in found.values():
            output.get_tensor().set_names(set())
        if FEATURES in first:
            features.append(ops.unsqueeze(found[BOUNDARY_STATES], np.int64(1)).output(0))
        row = ops.multiply(ops.reshape(found["logits"], np.array([1, vocab]), False), scale)
        drawn = ops.add(row, noises.output(step))
        best = ops.reshape(
            ops.topk(drawn, 1, 1, "max", "value", index_element_type="i64").output(1), np.array([1]), False
        )
        tokens.append((best if ids is None else ops.gather(ids, best, np.int64(0))).output(0))
    joined = ops.concat(tokens, 0).output(0)
    joined.get_tensor().set_names({_TOKENS})
    return ov.Model([ops.result(joined)], parameters, "unrolled")


def _of_rows(model: ov.Model, caches: Mapping[str, Sequence[int]], rows: int) -> ov.Model:
    """A copy for so many rows of one sequence, one of them sampled."""
    part = model.clone()
    names = [port.get_any_name() for port in part.inputs]
    shapes = {name: [rows] for name in ("input_ids", _POSITIONS, SLOT_MAPPING)}
    shapes |= {SAMPLED_TOKENS_INDICES: [1], HIDDEN_ROWS: [1]}
    shapes[VERIFY_TABLES] = [tables_length(1, next(iter(caches.values()))[0])]
    if FEATURES in names:
        shapes[FEATURES] = [rows, 1, part.input(FEATURES).get_partial_shape()[-1].get_length()]
    part.reshape({name: shape for name, shape in shapes.items() if name in names})
    fix_caches(part, caches)
    return part


def _angles(model: ov.Model) -> list[ov.Node]:
    """Sines and cosines of the rows' positions, which steps can share: a tenth of a small model's nodes."""
    return [*nodes_of_type(model, "Cos"), *nodes_of_type(model, "Sin")]


class UnrolledGraph:
    """A compiled graph of several steps, with its inputs.

    Args:
        compiled: of `unrolled`.
        steps: that it computes.
        vocab_size: ids from here on are never drafted.
        rows: of the first step.

    Attributes:
        request: that runs it, and the only one of `requests`.
        noise: f32 `[steps, logits of a row, vocab_size at most]`, what is added to the logits of each step;
            zeros at first.
        is_noisy: whether it is more than zeros.
        steps, rows: as given.
    """

    def __init__(
        self, compiled: ov.CompiledModel, steps: int, vocab_size: int, rows: int = FIRST_ROWS
    ) -> None:
        self.request, self.rows, self.steps = compiled.create_infer_request(), rows, steps
        self.requests = (self.request,)
        noise = np.zeros(list(compiled.input(_NOISE).get_shape()), np.float32)
        noise[:, vocab_size:] = -np.inf
        self.noise, self.is_noisy = noise[:, :vocab_size], False
        self._scale = np.ones((), np.float32)
        self._first, self._sampled = np.zeros(rows, np.int64), np.zeros(1, np.int64)
        # The positions of all rows. `_relative` has them for a text of length 0, by the tokens of the first
        # step, and the tokens before each step; a run adds the length of its text.
        self._positions, behind = np.zeros(rows + steps - 1, np.int64), np.arange(steps - 1)
        self._relative = {}
        for count in range(1, rows + 1):
            places = np.minimum(np.arange(rows) - count, -1)  # none beyond the model's
            self._relative[count] = np.array([-count, *behind], np.int32), np.concatenate([places, behind])
        self._tables = np.zeros((steps, *compiled.input(VERIFY_TABLES).get_shape()), np.int32)
        for step in range(steps):
            self._tables[step, :TABLE] = one_chain(1 if step else rows)
        self._slots, self._later = np.zeros(rows, np.int32), np.zeros(steps - 1, np.int32)
        given: dict[str, NDArray[np.generic]] = {
            _NOISE: noise,
            _SCALE: self._scale,
            "input_ids": self._first,
            _POSITIONS: self._positions,
            SAMPLED_TOKENS_INDICES: self._sampled,
            HIDDEN_ROWS: self._sampled,
            VERIFY_TABLES: self._tables[0],
            SLOT_MAPPING: self._slots,
        }
        for step in range(1, steps):
            given[f"{VERIFY_TABLES}.{step}"] = self._tables[step]
            given[f"{SLOT_MAPPING}.{step}"] = self._later[step - 1 : step]
        names = {port.get_any_name() for port in compiled.inputs}
        self._features = np.zeros(0, np.float32)
        if FEATURES in names:
            self._features = np.zeros(list(compiled.input(FEATURES).get_shape()), np.float32)
            given[FEATURES] = self._features
        self._given = given  # the request has their addresses
        for name, array in given.items():
            if name in names:
                self.request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        self._tokens: NDArray[np.int64] = self.request.get_tensor(_TOKENS).data

    def run(
        self,
        tokens: list[int],
        past: int,
        table: NDArray[np.int32],
        temperature: float = 1.0,
        features: NDArray[np.float32] | None = None,
    ) -> list[int]:
        """The tokens of all steps.

        Args:
            tokens: behind those in the cache, 1 to `rows`. With less, rows come behind them that nobody
                reads, and later steps overwrite their keys and values.
            past: tokens in the cache.
            table: i32 `[blocks]`, blocks that hold the tokens in the cache and all that are written.
            temperature: that logits are divided by.
            features: f32 `[tokens, 1, size]`, where the model reads them.
        """
        count = len(tokens)
        self._first[:count] = tokens
        self._sampled[0] = count - 1
        if features is not None:
            self._features[:count] = features
        self._scale[...] = 1.0 / temperature
        pasts, places = self._relative[count]
        np.add(pasts, past + count, out=self._tables[:, PAST_LEN])
        np.add(places, past + count, out=self._positions)
        self._tables[:, TABLE_END] = len(table)
        self._tables[:, TABLE : TABLE + len(table)] = table
        end = past + max(self.rows, count + self.steps - 1)
        written = slots(table, past, end, BLOCK_SIZE)
        self._slots[:] = written[: self.rows]
        self._later[:] = written[count : count + self.steps - 1]
        self.request.infer(share_outputs=True)
        found: list[int] = self._tokens.tolist()
        return found


@dataclass(slots=True)
class UnrolledSteps:
    """Compiles a graph for a number of drafting steps, beside the passes, once there were 128 such rounds.

    Four steps of the demo draft take 260 us in one graph, and 400 in four passes with what lies between;
    those of its EAGLE-3 head take 180 in one graph. The linear layers have several threads, where the target
    may have them: four drafts and their verification take 0.95 of the time with two.
    A graph is used only where its tokens are those of the passes.

    The graph knows the size of the cache; where that grows, it is compiled anew.

    Args:
        runner: of the draft; where it reads features, it returns states of that size.
        vocab_size: of the target.
        ids: as of `unrolled`, i64 `[logits of a row]`.

    Attributes:
        duration: of the last `run` inside the model, microseconds.
    """

    runner: ModelRunner
    vocab_size: int
    ids: NDArray[np.int64] | None = None
    duration: float = 0.0
    _graphs: BackgroundCompile[str, UnrolledGraph] = field(init=False)
    _blocks: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._graphs = BackgroundCompile(self.runner.cache, _MOST_GRAPHS)

    @classmethod
    def of(
        cls, runner: ModelRunner, vocab_size: int, ids: NDArray[np.int64] | None = None
    ) -> UnrolledSteps | None:
        """Those of a small draft whose rows depend on nothing but their context; `None` for others, and where
        `CacheWrite` does not write the cache."""
        writes = runner.backends.written_type is not None
        return (
            cls(runner, vocab_size, ids) if writes and runner.fixed_graphs and runner.repeats_rows else None
        )

    def find(
        self,
        steps: int,
        rows: int = FIRST_ROWS,
        features: NDArray[np.float32] | None = None,
        most: float = math.inf,
    ) -> UnrolledGraph | None:
        """Count a round of so many steps; a graph for as many or more, `None` where there is none yet.

        Args:
            steps: of the round. Twice as many in one graph take no longer than these one by one.
            rows: of the first step, the same for all rounds of so many steps.
            features: f32 `[1 or more, 1, size]`, some that the model reads, if it reads any.
            most: steps that may be computed.
        """
        if not 1 < steps <= _MOST_STEPS:
            return None
        key, limit, blocks = f"{steps} drafting steps", min(most, 2 * steps), self.runner.cache.capacity
        if blocks != self._blocks:
            self._graphs.renew()
            self._blocks = blocks
        graph = self._graphs.find(key, lambda: self._compile(steps, rows, features, blocks))
        if graph is not None:
            return graph
        longer = (other for other in self._graphs.ready.values() if steps < other.steps <= limit)
        return min(longer, key=lambda other: other.steps, default=None)

    def run(
        self,
        graph: UnrolledGraph,
        sequence: CachedSequence,
        tokens: list[int],
        temperature: float = 1.0,
        features: NDArray[np.float32] | None = None,
    ) -> list[int] | None:
        """Draft behind `tokens`, which follow those in the cache, as `UnrolledGraph.run`.

        Afterwards the cache has these tokens and all drafted ones but the last. `None` where it has to grow,
        for which the graph is not made.
        """
        runner, past = self.runner, sequence.length
        written = past + max(graph.rows, len(tokens) + graph.steps - 1)
        if max(runner.cache.capacity, runner.blocks.required([(sequence, written)])) > self._blocks:
            return None
        for source, target in runner.blocks.reserve(sequence, written):
            runner.cache.copy(source, target)
        table = sequence.table[: -(-written // runner.block_size)]
        started = microseconds()
        drafted = graph.run(tokens, past, table, temperature, features)
        self.duration = microseconds() - started
        sequence.length = past + len(tokens) + graph.steps - 1
        return drafted

    def wait(self) -> None:
        """Wait for the graphs that are being compiled."""
        self._graphs.wait()

    def _compile(
        self, steps: int, rows: int, features: NDArray[np.float32] | None, blocks: int
    ) -> UnrolledGraph | None:
        """The graph of so many steps; `None` where its tokens are not those of passes."""
        fixed, specs = self.runner.fixed_graphs, self.runner.cache.specs
        assert fixed is not None
        caches = {spec.name: [blocks, *spec.block_shape] for spec in specs}
        model = unrolled(fixed.model, caches, steps, rows, self.ids)
        if fixed.compilers.threads > 1:
            share_threads(model, fixed.compilers.threads)
        compiled = fixed.compilers.fewest(model)
        graph, size = UnrolledGraph(compiled, steps, self.vocab_size, rows), self.runner.block_size
        cache = KVCache(graph.request, specs)
        cache.resize(blocks)
        table = np.arange(-(-(rows + steps - 1) // size), dtype=np.int32)
        tokens = list(range(rows))
        given = None if features is None else np.resize(features, (rows, *features.shape[1:]))
        if graph.run(tokens, 0, table, features=given) != self._passes(tokens, given, steps):
            return None
        return UnrolledGraph(compiled, steps, self.vocab_size, rows)

    def _passes(self, tokens: list[int], features: NDArray[np.float32] | None, steps: int) -> list[int]:
        """The most probable tokens, pass by pass, of the model's own graph over another cache."""
        fixed = self.runner.fixed_graphs
        assert fixed is not None
        size, found, states = self.runner.block_size, list[int](), int(features is not None)
        inputs = PassInputs(fixed.own.create_infer_request(), fixed.names)
        cache, sequence = KVCache(inputs.request, self.runner.cache.specs), CachedSequence()
        sequence.table = np.arange(-(-(len(tokens) + steps - 1) // size), dtype=np.int32)
        cache.ensure(len(sequence.table))
        for _ in range(steps):
            rows = Rows(sequence, np.array(tokens, np.int64), states=states, features=features)
            inputs.write(build_tables([rows], size, True, fixed.names))
            inputs.infer()
            sequence.length += len(tokens)
            logits = inputs.request.get_tensor("logits").data.reshape(-1)
            best = int(logits[: self.vocab_size].argmax())
            tokens = [best if self.ids is None else int(self.ids[best])]
            found += tokens
            if states:
                features = np.array(inputs.request.get_tensor(BOUNDARY_STATES).data)[:, np.newaxis]
        return found

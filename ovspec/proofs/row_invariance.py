"""Proof that the logits of a row do not depend on what else is in its pass.

One text is computed in random splits: chunks of rows, draft trees, rollbacks, other sequences in the same
pass. Every split must give the same bits as one row a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ovspec.cache.cache import CachedSequence
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner

_MAX_COMPANIONS = 3
_MAX_TREE_ROWS = 24


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows that came out in other bits.

    Attributes:
        operation: first operation whose output differs, `None` where only logits were compared.
        positions: positions of the text that differ.
        first_pass: what the pass was whose rows hold the first of them, e.g. "tree 7 of 12 beside 2".
        largest: largest difference of a value.
    """

    operation: str | None
    positions: tuple[int, ...]
    first_pass: str
    largest: float

    def __str__(self) -> str:
        what = self.operation or "logits"
        return (
            f"{what}: {len(self.positions)} rows differ, by up to {self.largest:.2g}, first at position "
            f"{self.positions[0]} in pass '{self.first_pass}'"
        )


@dataclass(slots=True)
class Computed:
    """What the rows of a text came to: per output f32 or f16 `[text, ...]`, and the passes they took."""

    outputs: dict[str, NDArray[np.generic]]
    passes: list[str]
    pass_of: NDArray[np.int64]


class RowProof:
    """Computes one text through a runner in many ways and compares bits.

    Args:
        runner: made with `watch=True` where the first operation that differs is to be named.
        text: i64 `[tokens]`, at least two.
    """

    def __init__(self, runner: ModelRunner, text: NDArray[np.int64]) -> None:
        self._runner = runner
        self._text = text
        self._trees = not runner.why_no_trees and runner.attention.backend == "native"
        self._outputs = [*runner.watched, "logits"]
        self.reference = self._compute(lambda left: Step("chunk", 1))

    def difference(self, seed: int, largest_chunk: int = 64) -> Difference | None:
        """Compute the text in the random split `seed`; `None` where every bit agrees."""
        found = self._compute(Random(np.random.default_rng(seed), largest_chunk, self._trees))
        for name in self._outputs:
            expected, got = self.reference.outputs[name], found.outputs[name]
            rows = np.flatnonzero((_bits(expected) != _bits(got)).any(axis=1))
            if rows.size:
                gap = np.abs(expected[rows].astype(np.float64) - got[rows].astype(np.float64))
                return Difference(
                    name if name != "logits" or self._runner.watched else None,
                    tuple(rows.tolist()),
                    found.passes[found.pass_of[rows[0]]],
                    float(np.nanmax(gap)),
                )
        return None

    def _compute(self, split: Callable[[int], Step]) -> Computed:
        runner, text = self._runner, self._text
        sequence, companions = CachedSequence(), [CachedSequence() for _ in range(_MAX_COMPANIONS)]
        computed = Computed({}, [], np.zeros(len(text), np.int64))
        try:
            while sequence.length < len(text):
                past = sequence.length
                step = self._fitting(split(len(text) - past), past)
                rows, kept = step.rows(sequence, text[past:])
                batch = [rows]
                rng = np.random.default_rng(step.seed + 1)
                for companion, count in zip(companions, step.companions, strict=False):
                    if companion.length > 600:
                        runner.release(companion)
                    others = Rows(companion, rng.choice(text, count), sampled=count)
                    batch.insert(int(rng.integers(0, len(batch) + 1)), others)
                result = runner.forward(batch)
                before = next(i for i, other in enumerate(batch) if other is rows)
                first = sum(len(other.tokens) for other in batch[:before])
                taken = first + np.array(kept, np.int64)
                targets = slice(past, past + len(kept))
                computed.pass_of[targets] = len(computed.passes)
                computed.passes.append(str(step))
                for name in self._outputs:
                    values = result.logits if name == "logits" else result.output(name)
                    values = values.reshape(values.shape[0], -1)
                    if name not in computed.outputs:
                        computed.outputs[name] = np.zeros((len(text), values.shape[1]), values.dtype)
                    if values.shape[0] == sum(len(other.tokens) for other in batch):
                        computed.outputs[name][targets] = values[taken]
                step.finish(runner, sequence, past, kept)
        finally:
            for held in (sequence, *companions):
                runner.release(held)
        return computed

    def _fitting(self, step: Step, past: int) -> Step:
        """A step without the drafts that the engine would not ask for: past the limit of a short RoPE."""
        rope = self._runner.long_rope
        room = rope.room(past) if rope and len(self._text) <= rope.limit else None
        return step if room is None else replace(step, wrong=min(step.wrong, room - step.count))


@dataclass(frozen=True, slots=True)
class Step:
    """One pass: `count` right tokens, then as many wrong ones as `wrong` says, beside other sequences.

    Attributes:
        kind: "chunk", "rollback" (wrong tokens behind the right ones are forgotten again) or "tree".
        count: right tokens.
        wrong: tokens beside them.
        companions: rows of each other sequence in the pass.
        seed: of the wrong tokens, of the tree's form and of the companions' tokens.
    """

    kind: str
    count: int
    wrong: int = 0
    companions: tuple[int, ...] = ()
    seed: int = 0

    def __str__(self) -> str:
        beside = f" beside {len(self.companions)}" if self.companions else ""
        return f"{self.kind} {self.count}" + (f" of {self.count + self.wrong}" if self.wrong else "") + beside

    def rows(self, sequence: CachedSequence, text: NDArray[np.int64]) -> tuple[Rows, list[int]]:
        """The rows of the pass, all sampled, and which of them are the text's."""
        rng = np.random.default_rng(self.seed)
        total = self.count + self.wrong
        right = text[: self.count]
        whole = sequence.length + len(text)  # chooses long RoPE; no pass may mix it with the short one
        if self.kind != "tree":
            wrong = rng.choice(text, self.wrong) if self.wrong else text[:0]
            tokens = np.concatenate([right, wrong])
            return Rows(sequence, tokens, sampled=total, text_length=whole), list(range(self.count))
        kept = sorted(rng.choice(total, self.count, replace=False).tolist())
        tokens, parents = rng.choice(text, total), np.zeros(total, np.int32)
        parents[:] = [rng.integers(-1, row) for row in range(total)]
        tokens[kept] = right
        parents[kept] = [-1, *kept[:-1]]
        return Rows(sequence, tokens, sampled=total, parents=parents, text_length=whole), kept

    def finish(self, runner: ModelRunner, sequence: CachedSequence, past: int, kept: Sequence[int]) -> None:
        """Keep the right rows only."""
        if self.kind == "tree":
            runner.compact(sequence, past, kept)
        elif self.wrong:
            sequence.rollback(past + self.count)


class Random:
    """Passes of all kinds, by chance."""

    def __init__(self, rng: np.random.Generator, largest_chunk: int, trees: bool) -> None:
        self._rng, self._largest, self._trees = rng, largest_chunk, trees
        self._behind = False

    def __call__(self, left: int) -> Step:
        """The next pass; `left` tokens of the text are not computed yet."""
        rng = self._rng
        kinds = ["chunk", "rollback", *(["tree"] if self._trees and self._behind else [])]
        kind = str(rng.choice(kinds))
        most = self._largest if kind == "chunk" else min(self._largest, _MAX_TREE_ROWS)
        count = min(left, int(rng.integers(1, int(rng.choice([2, 5, 9, 17, most])) + 1)))
        wrong = int(rng.integers(1, 9)) if kind != "chunk" else 0
        self._behind = True
        most_beside = rng.choice([2, 9, self._largest], int(rng.integers(0, _MAX_COMPANIONS + 1)))
        companions = tuple(int(rng.integers(1, most + 1)) for most in most_beside.tolist())
        return Step(kind, count, wrong, companions, int(rng.integers(1 << 30)))


def _bits(values: NDArray[np.generic]) -> NDArray[np.generic]:
    return values.view({2: np.uint16, 4: np.uint32}[values.dtype.itemsize])

"""The row proof on a model folder, as `ovspec info --self-check --model` runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.passes.watch_rows import is_between
from ovspec.proofs.row_invariance import Difference, RowProof
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import ModelInfo

_TOKENS = 96
_LARGEST_CHUNK = 70  # beyond a group of rows


@dataclass(frozen=True, slots=True)
class RowCheck:
    """What the proof found.

    Attributes:
        splits: random splits that were compared.
        difference: the first difference, `None` where every bit agrees.
        identity_breakers: why none is promised, a sentence each.
    """

    splits: int
    difference: str | None
    identity_breakers: tuple[str, ...]


def check_rows(folder: Path, splits: int, properties: Mapping[str, object] | None = None) -> RowCheck:
    """Compute one text in random splits and with one thread, and compare the bits of its logits.

    Where they differ, the model is compiled once more with the rows between its operations as outputs, to
    name the first operation that differs.

    Raises:
        ValueError: the folder holds no model that can be run.
    """
    text = random_text(ModelInfo.read(folder).vocab_size)
    runner = _runner(folder, properties)
    breakers = runner.identity_breakers
    proof = RowProof(runner, text)
    reference = proof.reference.outputs["logits"]
    for seed in range(splits):
        difference = proof.difference(seed, _LARGEST_CHUNK)
        if difference is not None:
            del proof, runner
            return RowCheck(seed + 1, _named(folder, text, seed, difference, properties), breakers)
    del proof, runner
    one = RowProof(_runner(folder, {**(properties or {}), "INFERENCE_NUM_THREADS": 1}), text)
    rows = np.flatnonzero(
        (reference.view(np.uint32) != one.reference.outputs["logits"].view(np.uint32)).any(1)
    )
    threads = f"{rows.size} rows differ between one thread and several" if rows.size else None
    return RowCheck(splits, threads, breakers)


def verdict_on_rows(found: RowCheck, model: str) -> str:
    """What the proof found, in a line."""
    if found.difference is not None:
        return f"FAILED: rows of {model} depend on their pass"
    splits = f"{found.splits} random split" + "s" * (found.splits > 1)
    return f"rows of {model} have the same bits in {splits}, and with one thread"


def random_text(vocab_size: int, tokens: int = _TOKENS) -> NDArray[np.int64]:
    """Any tokens: i64 `[tokens]`."""
    return np.random.default_rng(0).integers(0, vocab_size, tokens)


def _named(
    folder: Path,
    text: NDArray[np.int64],
    seed: int,
    plain: Difference,
    properties: Mapping[str, object] | None,
) -> str:
    """The difference with the name of the first operation; `plain` where watching makes it go away."""

    def watched(what: bool | str) -> Difference | None:
        return RowProof(_runner(folder, properties, what), text).difference(seed, _LARGEST_CHUNK)

    first = watched(True)
    if first is None or first.operation is None or not is_between(first.operation):
        return str(first or plain)
    return str(watched(first.operation) or first)


def _runner(folder: Path, properties: Mapping[str, object] | None, watch: bool | str = False) -> ModelRunner:
    """The model with the operations that a pipeline takes by default."""
    return ModelRunner(folder, properties=properties, experts=ExpertConfig(optional=True), watch=watch)

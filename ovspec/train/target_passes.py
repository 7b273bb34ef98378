"""What the target's compiled graph says of texts: hidden states of boundaries, and the next token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.cache.cache import CachedSequence
from ovspec.devices.devices import openvino_core
from ovspec.graphs.compile import read_model
from ovspec.operations.backends import Backends
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import ModelInfo
from ovspec_transforms.graph import evaluate
from ovspec_transforms.heads.gather_logits import lm_head
from ovspec_transforms.heads.hidden_states import token_embedding

_PASS_LOGITS = 1 << 25  # f32, 128 MB: those of a pass over the whole vocabulary


@dataclass(frozen=True, slots=True)
class Reading:
    """What the target says of a text.

    Attributes:
        states: of the boundaries, f32 `[tokens, sum of hidden sizes]`.
        logits: f32 `[tokens, draft vocabulary]`, of the token after each.
        best: i64 `[tokens]`, the most probable token of the whole vocabulary.
    """

    states: NDArray[np.float32]
    logits: NDArray[np.float32]
    best: NDArray[np.int64]


class TargetPasses:
    """The target of a folder, which reads texts; `boundaries` are those of `Reading.states`."""

    def __init__(self, folder: Path, boundaries: tuple[int, ...], properties: Mapping[str, object]) -> None:
        backends = Backends.resolve(folder, "CPU", properties, boundaries=boundaries)
        self._runner = ModelRunner(folder, backends=backends)
        self._rows = max(1, _PASS_LOGITS // ModelInfo.read(folder).vocab_size)

    def read(self, texts: Sequence[NDArray[np.int64]], ids: NDArray[np.int64]) -> list[Reading]:
        """Read texts, i64 `[tokens]` each; `ids` are the draft's vocabulary."""
        states, logits, best = (list[list[NDArray[Any]]]([] for _ in texts) for _ in range(3))
        cached = [CachedSequence() for _ in texts]
        for batch in _passes([len(text) for text in texts], self._rows):
            counts = [end - begin for _, begin, end in batch]
            rows = [
                Rows(cached[index], texts[index][begin:end], end - begin, states=end - begin)
                for index, begin, end in batch
            ]
            found = self._runner.forward(rows)
            ends = np.cumsum(counts)[:-1]
            parts = zip(
                np.split(found.states.copy(), ends),
                np.split(found.logits[:, ids], ends),
                np.split(found.logits.argmax(-1), ends),
                strict=True,
            )
            for (index, _, end), (state, logit, token) in zip(batch, parts, strict=True):
                states[index].append(state)
                logits[index].append(logit)
                best[index].append(token)
                if end == len(texts[index]):
                    self._runner.release(cached[index])
        whole = zip(states, logits, best, strict=True)
        return [Reading(*(np.concatenate(part) for part in parts_)) for parts_ in whole]


def _passes(lengths: Sequence[int], most: int) -> Iterator[list[tuple[int, int, int]]]:
    """Pieces of texts, each a text's index, begin and end, in passes of at most so many rows."""
    batch: list[tuple[int, int, int]] = []
    rows = 0
    for index, length in enumerate(lengths):
        for begin in range(0, length, most):
            count = min(most, length - begin)
            if batch and rows + count > most:
                yield batch
                batch, rows = [], 0
            batch.append((index, begin, begin + count))
            rows += count
    yield batch


def target_weights(folder: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A target's embedding and output layer, f32 `[vocabulary, hidden size]` each.

    Raises:
        ValueError: the model has none, or computes them.
    """
    model = read_model(openvino_core(), folder)
    head = lm_head(model.output("logits").get_node())
    if head is None:
        raise ValueError(f"target '{folder}' has no linear layer from its last hidden state to logits")
    table = _value(token_embedding(model).input(0).get_source_output().get_node(), folder)
    weight = _value(head.input(1).get_source_output().get_node(), folder)
    return table, weight if head.get_attributes()["transpose_b"] else weight.T


def _value(node: ov.Node, folder: Path) -> NDArray[np.float32]:
    value = evaluate(node)
    if value is None:
        raise ValueError(
            f"target '{folder}' computes the weight {node.get_friendly_name()}, expected a constant"
        )
    return np.array(value.data, np.float32)


def has_bf16() -> bool:
    """Whether this processor multiplies bf16 in hardware."""
    return "BF16" in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")

"""What every form of correction is made of: its weights, and a step from one place of a block to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_models.heads.checkpoint import CheckpointWeights, HeadCheckpoint
from ovspec_models.heads.settings import HeadSettings
from ovspec_models.synthetic.decoder import embed
from ovspec_models.synthetic.layers import i64

Arrays = dict[str, NDArray[Any]]
#: Weights that what is given to a step is made by: of a place's states, and of the mean of a block's.
GIVEN, GIVEN_MEAN, GIVEN_BIAS = "given.weight", "mean.weight", "given.bias"
#: Further weights for the last number that is given; it becomes a place's confidence.
CONFIDENCE = "confidence.weight"
#: What stands for the token before a place.
BEFORE = "before.weight"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a head.

    Attributes:
        hidden: of its states.
        block: places of its blocks, the one before the draft counted.
        target: tokens of its target.
        drafted: tokens in its own vocabulary.
        candidates: likeliest tokens of a place that a selector chooses from; 0: it has none.
    """

    hidden: int
    block: int
    target: int
    drafted: int
    candidates: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """What a step reads, a row for every path.

    Attributes:
        number: i64 `[paths]`, of the place in the block.
        given: f32 `[paths, given]`, made of the states of the place.
        before: f32 `[paths, size]`, what stands for the token before it.
        state: f32 `[paths, state]`, of the place before; zeros at first.
        logits: f32 `[paths, drafted]`.
    """

    number: ov.Node
    given: ov.Node
    before: ov.Node
    state: ov.Node
    logits: ov.Node


@dataclass(frozen=True, slots=True)
class CorrectionForm:
    """One form of correction.

    Attributes:
        arrays: its weights by the names of the graph.
        state: numbers of a path's state, by these.
        step: corrected logits, and the state behind the place where the form has one.
        settings: of config.json that it is made by.
        leads: where the first place of a block does not draft, the token before it is the text's last (1) or
            the one before that (2).
        whole: whether a place depends on the states of the whole block.
    """

    arrays: Callable[[HeadCheckpoint, Sizes], Arrays]
    state: Callable[[Arrays], int]
    step: Callable[[CheckpointWeights, Arrays, Place, Sizes], tuple[ov.Node, ov.Node | None]]
    settings: HeadSettings
    leads: int = 1
    whole: bool = False


def columns(data: ov.Node, begin: int, end: int) -> ov.Node:
    """Some numbers of every row ``[rows, size]``."""
    return ops.slice(data, i64(begin), i64(end), i64(1), i64(1))


def rows_of(weights: CheckpointWeights, name: str, ids: ov.Node) -> ov.Node:
    """Rows of a matrix, f32 ``[..., size]``, by i64 ``[...]``."""
    return embed(weights.matrix(name), ids)


def f32(value: float) -> ov.Node:
    """A constant of one number."""
    return ops.constant(np.array(value, np.float32))

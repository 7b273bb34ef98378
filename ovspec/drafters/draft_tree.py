"""A draft tree that grows level by level, as EAGLE-2 draws it up (arXiv 2406.16858).

The nodes of a level come from one pass of the draft model. Those of them that are most likely to be accepted
get children, and the likeliest nodes of all levels are proposed. Which nodes a tree has never changes the
output: the target's own tokens are followed through it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ovspec.drafters.drafter import Proposal
from ovspec.drafters.drawing import warn_of_logits
from ovspec.generation.sequence import Sequence
from ovspec.sampling.constraint import GrammarError
from ovspec.sampling.sampling import NotFiniteError, checked_max
from ovspec.sampling.tree_acceptance import ROOT


def depth_of(sequence: Sequence) -> float:
    """Tokens that a draft may have on a path by the settings and by what is left to generate."""
    return min(sequence.settings.tree_depth or math.inf, sequence.remaining - 1)


class DraftTree:
    """Nodes with the probability that decoding comes to them, by the draft model.

    Args:
        sequence: that the tree continues.
        count: nodes that may be proposed.
        depth: levels.

    Attributes:
        frontier: nodes whose logits `grow` needs next; at first the context, `ROOT`.
        parents: of every node, `ROOT` for one that follows the context.
    """

    def __init__(self, sequence: Sequence, count: int, depth: int) -> None:
        self._sequence, self._count, self._depth = sequence, count, depth
        self._width = sequence.settings.branching_factor
        self._tokens: list[int] = []
        self._log_probs: list[float] = []
        self.parents: list[int] = []
        self.frontier = [ROOT]
        self._rows: list[int] = []

    @property
    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Tokens i64 `[rows]` and parents i32 `[rows]` of the next pass; the last rows are the frontier."""
        places = {node: place for place, node in enumerate(self._rows)}
        tokens = [self._tokens[node] for node in self._rows]
        parents = [places.get(self.parents[node], ROOT) for node in self._rows]
        return np.array(tokens, np.int64), np.array(parents, np.int32)

    def grow(self, logits: NDArray[np.float32]) -> bool:
        """Give the nodes of the frontier children; whether some of these are to have children too.

        Args:
            logits: f32 `[frontier, vocab]` of the draft model.
        """
        level = []
        for node, row in zip(self.frontier, logits, strict=True):
            likely = 0.0 if node == ROOT else self._log_probs[node]
            try:
                children = _children(self._sequence, row, self._path(node), self._width)
            except GrammarError:
                continue  # the target's row says so
            except NotFiniteError as error:
                if self._sequence.processor.constraint is None:
                    warn_of_logits(str(error))
                continue
            for token, log_prob in children:
                level.append(len(self._tokens))
                self._tokens.append(token)
                self.parents.append(node)
                self._log_probs.append(likely + log_prob)
        self._depth -= 1
        # Children are no likelier than their parent: where it is not among the best, they are not.
        best = set(self._best())
        level.sort(key=self._log_probs.__getitem__, reverse=True)
        self.frontier = [node for node in level[: self._width] if node in best] if self._depth > 0 else []
        self._rows += self.frontier
        return bool(self.frontier)

    def proposal(self) -> Proposal:
        """The best nodes."""
        best = self._best()
        places = {node: place for place, node in enumerate(best)}
        return Proposal(
            [self._tokens[node] for node in best],
            parents=[places.get(self.parents[node], ROOT) for node in best],
            confidences=[math.exp(self._log_probs[node]) for node in best],
        )

    def _best(self) -> list[int]:
        """The likeliest nodes in their order; a node's parent is at least as likely and comes before it."""
        order = sorted(range(len(self._tokens)), key=self._log_probs.__getitem__, reverse=True)
        return sorted(order[: self._count])

    def _path(self, node: int) -> list[int]:
        """The tokens from the context to a node."""
        path: list[int] = []
        while node != ROOT:
            path.append(self._tokens[node])
            node = self.parents[node]
        return path[::-1]


def _children(
    sequence: Sequence, logits: NDArray[np.float32], path: list[int], width: int
) -> list[tuple[int, float]]:
    """The tokens that are likely to be the target's own after a path, with the logarithms of how likely.

    In sampling the target takes argmin E(x) / p(x) with the position's random numbers E, so tokens are ranked
    by q(x) / E(x). As the temperature goes to 0 that becomes the greedy order.
    """
    sampling, ids = sequence.settings.sampling, None
    scores: NDArray[np.floating]
    if sampling.do_sample:
        q = sequence.processor.distribution(logits, path)
        ids = np.arange(q.probs.size) if q.ids is None else q.ids
        race = sequence.coupling.exponentials(len(sequence.tokens) + len(path), ids)
        with np.errstate(divide="ignore"):
            scores = sampling.temperature * np.log(q.probs / race)
    else:
        scores = sequence.processor.process(logits, path)
        checked_max(logits, scores.max())
    best = np.argpartition(scores, -width)[-width:] if width < len(scores) else np.arange(len(scores))
    best = best[np.argsort(-scores[best], kind="stable")]
    highest = float(scores[best[0]])
    total = math.log(float(np.exp(scores - highest).sum(dtype=np.float64)))
    return [
        (int(place if ids is None else ids[place]), float(scores[place]) - highest - total)
        for place in best
        if scores[place] > -math.inf
    ]

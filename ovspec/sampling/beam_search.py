"""Beam search in groups: which hypotheses go on, which have ended, and when the search is over.

Diverse beam search (Vijayakumar et al., 2016) with the rules of OpenVINO GenAI: the groups choose one after
another, and a token that an earlier group has just chosen costs `diversity_penalty`. One group is plain beam
search. A search does not know where log probabilities come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from openvino_genai import StopCriteria

from ovspec.sampling.sampling import checked_max


@dataclass(frozen=True, slots=True)
class BeamParams:
    """How to search; names, meanings and ranges are those of `openvino_genai.GenerationConfig`.

    Attributes:
        num_beams: hypotheses that go on at a time, of all groups together.
        num_beam_groups: divides `num_beams`.
        diversity_penalty: taken from the log probability of a token for each beam of an earlier group that
            has just chosen it.
        length_penalty: a score is the sum of the log probabilities over the length to the power of this.
        stop_criteria: when a group with as many ended hypotheses as beams is over: EARLY at once, HEURISTIC
            when its best beam is no better at its length, NEVER when it can't become better.
    """

    num_beams: int
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    length_penalty: float = 1.0
    stop_criteria: StopCriteria = StopCriteria.HEURISTIC

    @property
    def group_size(self) -> int:
        """Beams of a group."""
        return self.num_beams // self.num_beam_groups

    def score(self, sum_logprobs: float, length: int) -> float:
        """What hypotheses of different lengths are compared by."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return float(np.float64(sum_logprobs) / np.float64(length) ** self.length_penalty)


@dataclass(frozen=True, slots=True, eq=False)
class Hypothesis:
    """The tokens of `parent` and one more; without a parent, none.

    Attributes:
        sum_logprobs: of its tokens, penalties included.
        length: number of its tokens.
    """

    parent: Hypothesis | None = None
    token: int = -1
    sum_logprobs: float = 0.0
    length: int = 0

    @property
    def path(self) -> list[Hypothesis]:
        """A hypothesis for each of its tokens, which ends with it."""
        path, at = list[Hypothesis](), self
        while at.parent is not None:
            path.append(at)
            at = at.parent
        return path[::-1]


@dataclass(frozen=True, slots=True)
class Ended:
    """A hypothesis that has ended.

    Attributes:
        score: as of `BeamParams.score`.
        stopped: whether its last token ended it; else the limit of tokens did.
    """

    hypothesis: Hypothesis
    score: float
    stopped: bool


@dataclass(frozen=True, slots=True)
class _Group:
    """Beams that go on, the best first, and the best that have ended, the best first."""

    ongoing: tuple[Hypothesis, ...]
    ended: tuple[Ended, ...] = ()


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """The state of a search between two steps.

    Args:
        params: how to search.
        limit: most tokens of an answer, 1 or more.
        num_stop_tokens: tokens that end an answer.
    """

    params: BeamParams
    limit: int
    num_stop_tokens: int
    _groups: tuple[_Group, ...]

    @classmethod
    def start(cls, params: BeamParams, limit: int, num_stop_tokens: int) -> BeamSearch:
        """A search behind a prompt."""
        groups = (_Group((Hypothesis(),)),) * params.num_beam_groups
        return cls(params, limit, num_stop_tokens, groups)

    @property
    def live(self) -> tuple[Hypothesis, ...]:
        """The hypotheses that go on, of all groups; at the beginning they share one. None: it is over."""
        return tuple(dict.fromkeys(beam for group in self._groups for beam in group.ongoing))

    @property
    def ended(self) -> list[Ended]:
        """What has ended, the best first."""
        return sorted((one for group in self._groups for one in group.ended), key=lambda one: -one.score)

    def step(
        self, rows: Mapping[Hypothesis, NDArray[np.float32]], ends: Callable[[Hypothesis, int], bool]
    ) -> BeamSearch:
        """The search after one more token.

        Args:
            rows: log probabilities f32 `[vocab]` of what follows each of `live`; -inf excludes a token.
            ends: whether a token behind a hypothesis ends it.
        """
        groups, chosen = list[_Group](), list[int]()
        for group in self._groups:
            group, children = self._select(group, rows, chosen, ends)
            groups.append(group)
            chosen += [child.token for child in children]
        return replace(self, _groups=tuple(groups))

    def _select(
        self,
        group: _Group,
        rows: Mapping[Hypothesis, NDArray[np.float32]],
        chosen: list[int],
        ends: Callable[[Hypothesis, int], bool],
    ) -> tuple[_Group, list[Hypothesis]]:
        """A group after one more token, and the beams that it chose."""
        size = self.params.group_size
        candidates = sorted(
            (candidate for beam in group.ongoing for candidate in self._candidates(beam, rows[beam], chosen)),
            key=lambda candidate: -candidate.sum_logprobs,
        )
        children = list[Hypothesis]()
        ended = group.ended
        for rank, candidate in enumerate(candidates):
            assert candidate.parent is not None
            if not ends(candidate.parent, candidate.token):
                children.append(candidate)
            elif rank < size:  # what ends outside of the best ones is no answer
                ended = self._with(ended, candidate, stopped=True)
            if len(children) == size:
                break
        if not children or self._is_over(group.ongoing[0], ended):
            return _Group((), ended), children
        if children[0].length == self.limit:
            for child in children:
                ended = self._with(ended, child, stopped=False)
            return _Group((), ended), children
        return _Group(tuple(children), ended), children

    def _candidates(
        self, beam: Hypothesis, row: NDArray[np.float32], chosen: list[int]
    ) -> Iterator[Hypothesis]:
        """The most probable continuations, so many that a beam for each of the group does not end."""
        if chosen and self.params.diversity_penalty:
            row = row.copy()
            np.subtract.at(row, chosen, np.float32(self.params.diversity_penalty))
        size = self.params.group_size
        count = min(size + max(size, self.num_stop_tokens), row.size)
        least = np.partition(row, row.size - count)[row.size - count]
        found = np.flatnonzero((row >= least) & (row > -np.inf))
        for token in found[np.argsort(-row[found], kind="stable")][:count].tolist():
            yield Hypothesis(beam, token, beam.sum_logprobs + float(row[token]), beam.length + 1)

    def _with(self, ended: tuple[Ended, ...], hypothesis: Hypothesis, stopped: bool) -> tuple[Ended, ...]:
        """The best of those that have ended and one more; of equal ones the older are kept."""
        score = self.params.score(hypothesis.sum_logprobs, hypothesis.length)
        more = (*ended, Ended(hypothesis, score, stopped))
        return tuple(sorted(more, key=lambda one: -one.score)[: self.params.group_size])

    def _is_over(self, best: Hypothesis, ended: tuple[Ended, ...]) -> bool:
        """Whether a group ends; as in OpenVINO GenAI, `best` is that of the beams before the step."""
        params = self.params
        if len(ended) < params.group_size:
            return False
        if params.stop_criteria == StopCriteria.EARLY:
            return True
        never = params.stop_criteria == StopCriteria.NEVER and params.length_penalty > 0
        length = self.limit if never else best.length
        return length > 0 and ended[-1].score >= params.score(best.sum_logprobs, length)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log probabilities of a row of logits f32 `[vocab]`.

    Raises:
        NotFiniteError: no token can be chosen by them.
    """
    shifted = logits - checked_max(logits, logits.max())
    shifted -= np.float32(np.log(np.exp(shifted).sum(dtype=np.float64)))
    return shifted

"""Answers to tasks in pairs, dense and of a setting, and figures over them with 95% intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ovspec.eval.divergence import Decision
from ovspec.eval.interval import Interval
from ovspec.eval.suites import Example
from ovspec.eval.task_settings import NamedSetting
from ovspec.generation.metrics import PerfMetrics

ALL_TASKS = "all tasks"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to an example.

    Attributes:
        scores: by the example's metrics.
        seconds: after the first token.
    """

    text: str
    tokens: list[int]
    scores: tuple[float, ...]
    seconds: float
    first_token_s: float
    metrics: PerfMetrics


@dataclass(frozen=True, slots=True)
class Pair:
    """An example, answered densely and by a setting.

    Attributes:
        num_input_tokens: tokens of the prompt.
        decisions: of the setting, at the reference's tokens; without a reference at those of dense's answer.
        of_reference: whether they are those of a reference.
    """

    example: Example
    num_input_tokens: int
    dense: Answer
    tested: Answer
    decisions: list[Decision]
    of_reference: bool

    def as_json(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "place": self.example.place,
            "task": self.example.task,
            "group": self.example.group,
            "num_input_tokens": self.num_input_tokens,
            "answers": self.example.answers,
            **{
                name: {
                    "text": answer.text,
                    "scores": dict(zip(self.example.metrics, answer.scores, strict=True)),
                    "num_generated_tokens": len(answer.tokens),
                    "seconds_after_first_token": answer.seconds,
                    "first_token_s": answer.first_token_s,
                }
                for name, answer in (("dense", self.dense), ("setting", self.tested))
            },
            "same_output": self.dense.tokens == self.tested.tokens,
            "kl": [one.kl for one in self.decisions],
            "top1_agreement": [one.agrees for one in self.decisions],
            "nll_dense": sum(one.dense_surprise for one in self.decisions),
            "nll_setting": sum(one.surprise for one in self.decisions),
            "of_reference": self.of_reference,
        }


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """A setting on the examples of one task; intervals are over the examples.

    Attributes:
        same_outputs: answers that are dense decoding's.
        top1_agreement: share of the tokens of the texts at which both have the same first choice.
        kl: KL(dense || setting) at them, nats.
        nll_dense: -log-probability of a token of the references, dense; `None` without references.
        nll_difference: the setting's less dense's.
        speed: tokens/s after the first token by dense's; `None` where answers have one token.
        first_token: seconds to the first token by dense's.
        acceptance_length, dense_acceptance_length: mean tokens of a pass with a draft; `None` without drafts.
    """

    examples: int
    same_outputs: int
    top1_agreement: Interval
    kl: Interval
    nll_dense: Interval | None
    nll_difference: Interval | None
    speed: Interval | None
    first_token: Interval
    acceptance_length: Interval | None
    dense_acceptance_length: Interval | None
    attention_density: float
    prefill_density: float
    experts_read: float
    ffn_density: float

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> TaskSummary:
        """Of at least one pair."""
        counts = [len(pair.decisions) for pair in pairs]
        referred = [pair for pair in pairs if pair.of_reference]
        read = sum((pair.tested.metrics for pair in pairs), PerfMetrics())
        dense, tested = ([_of_speed(answer) for answer in answers] for answers in _answers(pairs))
        seconds = [[answer.first_token_s for answer in answers] for answers in _answers(pairs)]
        lengths = [_acceptance_length(answers) for answers in _answers(pairs)]
        return cls(
            examples=len(pairs),
            same_outputs=sum(pair.dense.tokens == pair.tested.tokens for pair in pairs),
            top1_agreement=_ratio([_sum(pair, lambda one: one.agrees) for pair in pairs], counts),
            kl=_ratio([_sum(pair, lambda one: one.kl) for pair in pairs], counts),
            nll_dense=_per_token(referred, lambda one: one.dense_surprise),
            nll_difference=_per_token(referred, lambda one: one.surprise - one.dense_surprise),
            speed=_speed_ratio(tested, dense),
            first_token=_ratio(seconds[1], seconds[0]),
            acceptance_length=lengths[1],
            dense_acceptance_length=lengths[0],
            attention_density=read.get_attention_density(),
            prefill_density=read.get_prefill_density(),
            experts_read=read.get_experts_read(),
            ffn_density=read.get_ffn_density(),
        )

    def read(self) -> str:
        """What was read, in a few words."""
        parts = [f"{self.attention_density:.2f}"]
        parts += [f"prompt {self.prefill_density:.2f}"] if self.prefill_density < 1 else []
        parts += [f"experts {self.experts_read:.1f}"] if self.experts_read else []
        parts += [f"ffn {self.ffn_density:.2f}"] if self.ffn_density < 1 else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Score:
    """A metric of a setting on one task, or on a group of it.

    Attributes:
        difference: the setting's less dense's, over the same examples.
    """

    metric: str
    dense: Interval
    tested: Interval
    difference: Interval

    @classmethod
    def of(cls, metric: str, pairs: Sequence[Pair]) -> Score:
        """Of the pairs that have this metric, at least one."""
        dense, tested = ([_score(pair, answer, metric) for pair, answer in found] for found in _both(pairs))
        gained = [ours - theirs for ours, theirs in zip(tested, dense, strict=True)]
        return cls(metric, _mean(dense), _mean(tested), Interval.of_mean(gained))


@dataclass(frozen=True, slots=True)
class Run:
    """All pairs of one setting.

    Attributes:
        verify, prefill: as they were in force, for JSON.
    """

    named: NamedSetting
    verify: str | dict[str, Any]
    prefill: str | dict[str, Any]
    pairs: list[Pair]

    def tasks(self) -> dict[str, list[Pair]]:
        """The pairs of each task, and those of all tasks where there are several."""
        found: dict[str, list[Pair]] = {}
        for pair in self.pairs:
            found.setdefault(pair.example.task, []).append(pair)
        return {**found, ALL_TASKS: self.pairs} if len(found) > 1 else found

    def scores(self, task: str, group: str | None = None) -> list[Score]:
        """Of one task, or of one of its groups."""
        chosen = [
            pair for pair in self.pairs if pair.example.task == task and group in (None, pair.example.group)
        ]
        metrics = dict.fromkeys(metric for pair in chosen for metric in pair.example.metrics)
        return [Score.of(name, [p for p in chosen if name in p.example.metrics]) for name in metrics]

    def groups(self) -> Iterator[tuple[str, str]]:
        """Tasks with each of their groups."""
        yield from dict.fromkeys((p.example.task, p.example.group) for p in self.pairs if p.example.group)


def _answers(pairs: Sequence[Pair]) -> tuple[list[Answer], list[Answer]]:
    return [pair.dense for pair in pairs], [pair.tested for pair in pairs]


def _both(pairs: Sequence[Pair]) -> list[list[tuple[Pair, Answer]]]:
    return [list(zip(pairs, answers, strict=True)) for answers in _answers(pairs)]


def _score(pair: Pair, answer: Answer, metric: str) -> float:
    return answer.scores[pair.example.metrics.index(metric)]


def _mean(scores: Sequence[float]) -> Interval:
    """Of scores that are all 0 or 1 a share: of few that are the same, a bootstrap would find no interval."""
    if set(scores) <= {0.0, 1.0}:
        return Interval.of_share(scores.count(1.0), len(scores))
    return Interval.of_mean(scores)


def _sum(pair: Pair, figure: Callable[[Decision], float]) -> float:
    return float(sum(figure(one) for one in pair.decisions))


def _ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Ratio of two sums over the examples."""
    return Interval.bootstrap(lambda one, other: one.sum(axis=-1) / other.sum(axis=-1), above, below)


def _per_token(pairs: Sequence[Pair], figure: Callable[[Decision], float]) -> Interval | None:
    if not pairs:
        return None
    return _ratio([_sum(pair, figure) for pair in pairs], [len(pair.decisions) for pair in pairs])


def _of_speed(answer: Answer) -> tuple[float, float]:
    """Tokens after the first, and their seconds."""
    return (float(len(answer.tokens) - 1), answer.seconds) if answer.seconds else (0.0, 0.0)


def _speed_ratio(
    tested: Sequence[tuple[float, float]], dense: Sequence[tuple[float, float]]
) -> Interval | None:
    """Tokens/s by those of dense decoding, over the pairs in which both have some."""
    kept = [(*one, *other) for one, other in zip(tested, dense, strict=True) if one[1] and other[1]]
    if not kept:
        return None

    def ratio(tokens: Any, seconds: Any, dense_tokens: Any, dense_seconds: Any) -> Any:
        own = tokens.sum(axis=-1) / seconds.sum(axis=-1)
        return own / (dense_tokens.sum(axis=-1) / dense_seconds.sum(axis=-1))

    return Interval.bootstrap(ratio, *zip(*kept, strict=True))


def _acceptance_length(answers: Sequence[Answer]) -> Interval | None:
    """1 and the accepted tokens of a draft, over the answers that had drafts."""
    raw = [answer.metrics.raw_metrics for answer in answers]
    kept = [(sum(found.accepted_lengths), found.num_drafts) for found in raw if found.num_drafts]
    if not kept:
        return None
    accepted, drafts = zip(*kept, strict=True)
    return Interval.bootstrap(lambda one, other: 1 + one.sum(axis=-1) / other.sum(axis=-1), accepted, drafts)

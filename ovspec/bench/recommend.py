"""Which way to run a model is the fastest on one's own prompts, by what `ovspec bench generate` measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ovspec.bench.generate import AnswerRecord, GenerateBench, GenerateResult
from ovspec.bench.generate_modes import PLAIN, Mode
from ovspec.bench.prompt_file import BenchPrompt
from ovspec.eval.interval import Interval

_ROUNDS = 5
_MODES = (PLAIN, "lookup:4", "lookup:8", "suffix:4", "suffix:8", "auto")
_WITH_A_MODEL = ("assistant:2", "assistant:4", "assistant:8")
# Timings of one mode vary by about this much; a smaller gain does not justify a drafter.
_LEAST_GAIN = 1.05


@dataclass(frozen=True, slots=True)
class Trial:
    """A mode, and what it gained.

    Attributes:
        mode: of `ovspec bench generate`.
        drafter: its name; "none" decodes plainly.
        num_assistant_tokens: of every round; `None`: as the schedule decides.
        ratio: tokens per second by those of plain decoding in the same round: the median of prompts, of
            one prompt that of its rounds, with its 95% interval.
        tokens_per_pass: of the target.
    """

    mode: str
    drafter: str
    num_assistant_tokens: int | None
    tokens_per_s: float
    ratio: Interval
    tokens_per_pass: float

    @property
    def gains(self) -> bool:
        """Whether it is faster than plain decoding, by more than timings vary."""
        return self.ratio.value >= _LEAST_GAIN and self.ratio.low > 1.0

    @property
    def is_noise(self) -> bool:
        """Whether it gains more than it can: a pass takes as long as a plain one at least."""
        return self.ratio.value >= _LEAST_GAIN and self.ratio.value > self.tokens_per_pass


def recommend_bench(
    model: Path,
    draft_model: Path | None,
    prompts: Sequence[BenchPrompt],
    max_new_tokens: int,
    arguments: dict[str, Any],
) -> GenerateBench:
    """Plain decoding and every drafter that needs no further files; all of them are lossless.

    Args:
        arguments: of `LLMPipeline`.
    """
    names = (*_MODES, *(_WITH_A_MODEL if draft_model else ()))
    modes = tuple(Mode.of(name, draft_model, arguments) for name in names)
    return GenerateBench(model, modes, prompts, max_new_tokens, _ROUNDS)


def trials_of(result: GenerateResult) -> list[Trial]:
    """What every mode gained; answers are compared with plain ones to the same prompt in the same round.

    Raises:
        ValueError: every answer has one token, so that there is nothing to compare.
    """
    plain = result.records[PLAIN].answers
    return [_trial(mode, result.records[mode.name].answers, plain) for mode in result.bench.modes]


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The trial that gains most, plain decoding where none gains; `None` where the largest ratio is noise."""
    if max(trials, key=lambda trial: trial.ratio.value).is_noise:
        return None
    gaining = (trial for trial in trials if trial.gains)
    return max(gaining, key=lambda trial: trial.ratio.value, default=trials[0])


def _trial(
    mode: Mode, answers: Sequence[Sequence[AnswerRecord]], plain: Sequence[Sequence[AnswerRecord]]
) -> Trial:
    ours = [answer for rounds in answers for answer in rounds]
    tokens, seconds = sum(len(answer.tokens) - 1 for answer in ours), sum(answer.decode_s for answer in ours)
    passes = sum(answer.passes for answer in ours)
    return Trial(
        mode.name,
        str(mode.arguments["drafter"]),
        mode.config.get("num_assistant_tokens"),
        tokens / seconds if seconds else 0.0,
        _ratio(answers, plain),
        tokens / max(1, passes),
    )


def _ratio(answers: Sequence[Sequence[AnswerRecord]], plain: Sequence[Sequence[AnswerRecord]]) -> Interval:
    by_prompt = []
    for pair in zip(answers, plain, strict=True):
        rounds = zip(*pair, strict=True)
        found = [a.tokens_per_s / b.tokens_per_s for a, b in rounds if a.decode_s and b.decode_s]
        if found:
            by_prompt.append(found)
    if not by_prompt:
        raise ValueError(
            "nothing to compare: every answer to these prompts has one token, which the prompt yields; give "
            "prompts with longer answers"
        )
    figures = by_prompt[0] if len(by_prompt) == 1 else [median(found) for found in by_prompt]
    return Interval.of_median(figures)

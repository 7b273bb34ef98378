"""What drafts gain over plain decoding of a prompt: both take turns, generation by generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ovspec.bench.rounds import Spread, rotated
from ovspec.engine.request import Request
from ovspec.generation.metrics import PerfMetrics
from ovspec.pipeline.draft_model import draft_model
from ovspec.pipeline.pipeline import LLMPipeline
from ovspec.schedule.schedule import ConstantSchedule

Tick = Callable[[str], None]

LENGTHS = (2, 4, 6)
TURNS = 3
# Timings of one setting vary by about this much; a smaller gain does not justify a draft model.
LEAST_GAIN = 1.05
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Run:
    """One generation.

    Attributes:
        tokens_per_s: behind the first token.
        tokens_per_round: likewise, by passes of the target.
        mean_acceptance_length: tokens emitted per draft.
    """

    tokens_per_s: float
    tokens_per_round: float
    mean_acceptance_length: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting: its drafter, draft tokens a round, and the medians of its turns.

    Attributes:
        drafter, num_assistant_tokens: "none" and 0 for plain decoding.
        tokens_per_s, tokens_per_round, mean_acceptance_length: as of `Run`.
        ratio: tokens per second by those of plain decoding in the same turn.
        turns: generations that were timed.
    """

    drafter: str
    num_assistant_tokens: int
    tokens_per_s: float
    tokens_per_round: float
    mean_acceptance_length: float
    ratio: Spread
    turns: int

    @classmethod
    def of(cls, drafter: str, length: int, runs: Sequence[Run], plain: Sequence[Run]) -> Trial:
        """The trial of some runs, and those of plain decoding in the same turns."""
        ratios = [ours.tokens_per_s / theirs.tokens_per_s for ours, theirs in zip(runs, plain, strict=True)]
        return cls(
            drafter,
            length,
            median(run.tokens_per_s for run in runs),
            median(run.tokens_per_round for run in runs),
            median(run.mean_acceptance_length for run in runs),
            Spread.of(ratios),
            len(runs),
        )

    @property
    def gains(self) -> bool:
        """Whether it is faster than plain decoding in every turn, and by more than timings vary."""
        return self.ratio.median >= LEAST_GAIN and self.ratio.min > 1.0

    @property
    def is_noise(self) -> bool:
        """Whether it gains more than it can: a round takes a plain pass at least, whatever it emits."""
        return self.ratio.median >= LEAST_GAIN and self.ratio.median > self.tokens_per_round


@dataclass(frozen=True, slots=True)
class RecommendBench:
    """What to compare.

    Attributes:
        draft: folder of the draft model of the drafter "assistant".
        drafters: by name.
        text: the prompt.
        arguments: of `LLMPipeline`.
    """

    model: Path
    draft: Path | None
    drafters: tuple[str, ...]
    text: str
    max_new_tokens: int
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """How often `run` calls its `tick`, where nothing is measured again."""
        return len(self.drafters) * (1 + (1 + len(LENGTHS)) * (1 + TURNS))

    def run(self, tick: Tick = lambda step: None) -> list[Trial]:
        """Plain decoding, and every drafter with every length."""
        plain, trials = list[Run](), list[Trial]()
        for drafter in self.drafters:
            trials += self._trials(drafter, plain, tick)
        return [Trial.of("none", 0, plain, plain), *trials]

    def _trials(self, drafter: str, plain: list[Run], tick: Tick) -> list[Trial]:
        """Those of a drafter, whose models are gone afterwards; its plain runs go to `plain`."""
        tick(f"{drafter}: loading the model")
        player = self._player(drafter)
        for warm_up in (0, *LENGTHS):
            # Kernels are built and weights are packed on first use.
            tick(f"{drafter}: warming up")
            player.generate(warm_up, _WARM_UP_TOKENS)

        def measure() -> list[Trial]:
            runs = take_turns((0, *LENGTHS), TURNS, self._timed(drafter, player, tick))
            plain.extend(runs[0])
            return [Trial.of(drafter, length, runs[length], runs[0]) for length in LENGTHS]

        return measured(measure)

    def _timed(self, name: str, player: _Player, tick: Tick) -> Callable[[int], Run]:
        def timed(length: int) -> Run:
            tick(f"{name}: {length} draft tokens a round" if length else f"{name}: plain decoding")
            return player.generate(length, self.max_new_tokens)

        return timed

    def _player(self, drafter: str) -> _Player:
        draft = draft_model(self.draft) if drafter == "assistant" and self.draft else None
        pipeline = LLMPipeline(self.model, draft_model=draft, drafter=drafter, **self.arguments)
        settings = pipeline.settings()
        player = _Player(pipeline, pipeline.chat_prompts.encode(self.text, settings.apply_chat_template))
        player.check_room(self.max_new_tokens)
        return player


@dataclass(frozen=True, slots=True)
class _Player:
    """A pipeline that drafts or, with drafts of 0 tokens, decodes plainly; and the prompt as token ids."""

    pipeline: LLMPipeline
    prompt: list[int]

    def check_room(self, max_new_tokens: int) -> None:
        """Refuse a prompt behind which there is no room for the answer that is timed."""
        room = self.pipeline.engine.engine.check(self._request(0, max_new_tokens))
        if room < max_new_tokens:
            raise ValueError(
                f"the prompt has {len(self.prompt)} tokens and leaves positions for {room} more, fewer than "
                f"--max-new-tokens {max_new_tokens}; give a shorter prompt, or ask for fewer"
            )

    def generate(self, length: int, max_new_tokens: int) -> Run:
        """Answer the prompt with so many draft tokens a round."""
        request = self._request(length, max_new_tokens)
        self.pipeline.engine.engine.generate([request])
        raw = request.metrics
        count, rounds = len(raw.m_durations), max(1, len(raw.verify_durations))
        accepted = PerfMetrics(raw_metrics=raw).get_mean_acceptance_length()
        return Run(1e6 * count / sum(raw.m_durations), count / rounds, accepted)

    def _request(self, length: int, max_new_tokens: int) -> Request:
        settings = self.pipeline.settings(do_sample=False, ignore_eos=True, max_new_tokens=max_new_tokens)
        return Request("recommend", self.prompt, settings, schedule=ConstantSchedule(length))


def take_turns(lengths: Sequence[int], turns: int, generate: Callable[[int], Run]) -> dict[int, list[Run]]:
    """The runs of every draft length; a turn has all of them, and begins with another one each time."""
    runs: dict[int, list[Run]] = {length: [] for length in lengths}
    for turn in range(turns):
        for length in rotated(lengths, turn):
            runs[length].append(generate(length))
    return runs


def measured(measure: Callable[[], list[Trial]]) -> list[Trial]:
    """What `measure` finds; where a gain is more than can be, what it finds the second time."""
    trials = measure()
    return measure() if any(trial.is_noise for trial in trials) else trials


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The trial that gains most, plain decoding where none gains; `None` where the largest ratio is noise."""
    if max(trials, key=lambda trial: trial.ratio.median).is_noise:
        return None
    gaining = (trial for trial in trials if trial.gains)
    return max(gaining, key=lambda trial: trial.ratio.median, default=trials[0])

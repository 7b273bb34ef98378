"""Report of `ovspec bench generate`, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
from rich.table import Table

from ovspec.bench.generate import FRESH_TOKENS, GenerateResult, ModeRecord
from ovspec.bench.generate_modes import GENAI_PLAIN, PLAIN
from ovspec.eval.interval import Interval
from ovspec.eval.machine import machine, versions
from ovspec.eval.tables import table_of

_MEAN = "mean"


@dataclass(frozen=True, slots=True)
class GenerateReport:
    """The figures of a run, by mode and category."""

    result: GenerateResult

    @property
    def modes(self) -> list[str]:
        """Names of the modes, in their order."""
        return list(self.result.records)

    @property
    def categories(self) -> list[str]:
        """The categories, in the order of the file."""
        return list(dict.fromkeys(prompt.category for prompt in self.result.bench.prompts))

    def bases(self) -> dict[str, list[str]]:
        """What ratios are to, by its name in tables: the modes of which the fastest in a category counts."""
        genai = [mode for mode in GENAI_PLAIN if mode in self.modes]
        bases = {PLAIN: [PLAIN]} if PLAIN in self.modes else {}
        return {**bases, **({"GenAI's best plain" if len(genai) > 1 else genai[0]: genai} if genai else {})}

    def speed(self, mode: str, category: str) -> float | None:
        """Tokens per second behind the first token, over all answers of a category.

        `None`: every answer has one token.
        """
        tokens, seconds = self._totals(mode, category)
        return float(tokens.sum() / seconds.sum()) if seconds.sum() else None

    def ratio(self, mode: str, base: Sequence[str], category: str) -> Interval | None:
        """Speed by that of the fastest mode of `base`; the interval is of resampled prompts.

        Over the prompts that both answer with more than one token; `None`: there is none.
        """
        other = max(base, key=lambda name: self.speed(name, category) or 0.0)
        figures = np.array([*self._totals(mode, category), *self._totals(other, category)])
        decoded = figures[:, (figures > 0).all(axis=0)]
        if not decoded.size:
            return None

        def by(tokens: Any, seconds: Any, their_tokens: Any, their_seconds: Any) -> Any:
            # In this order a mode by itself is exactly 1, without an interval.
            return (tokens.sum(-1) / seconds.sum(-1)) / (their_tokens.sum(-1) / their_seconds.sum(-1))

        return Interval.bootstrap(by, *decoded)

    def same(self, mode: str) -> tuple[int, int] | None:
        """Answers that are plain decoding's, and all; `None` where nothing decoded plainly."""
        if PLAIN not in self.modes:
            return None
        ours, plain = (self.result.records[name].answers for name in (mode, PLAIN))
        pairs = zip(ours, plain, strict=True)
        equal = [all(a.tokens == theirs[0].tokens for a in found) for found, theirs in pairs]
        return sum(equal), len(equal)

    def as_json(self) -> dict[str, Any]:
        """The JSON object: machine, versions, model, modes with the figures of each category, and answers.

        A figure of tokens behind the first is null where no answer has any.
        """
        bench = self.result.bench
        return {
            "machine": machine(native=True),
            "versions": versions(),
            "model": str(bench.model),
            "max_new_tokens": bench.max_new_tokens,
            "repeat": bench.repeat,
            "interleaved": self.result.interleaved,
            "modes": {mode: self._mode_json(mode) for mode in self.modes},
        }

    def lines(self) -> list[str]:
        """What was measured."""
        bench = self.result.bench
        lines = [
            f"{bench.model.resolve().name}: {len(bench.prompts)} prompts, at most {bench.max_new_tokens} new "
            f"tokens, greedy, {machine(native=False)['processor']}"
        ]
        if not self.result.interleaved:
            lines.append("NOT interleaved: memory holds one process at a time; distrust small ratios")
        return lines

    def tables(self) -> list[Table]:
        """Speeds and ratios by category, and what every mode does over all of them."""
        title = "tokens/s behind the first token"
        rows = []
        for mode in self.modes:
            rows.append([mode, *(_shown(self.speed(mode, name), ".1f") for name in self.categories)])
        return [
            table_of(title, ("mode", *self.categories), rows),
            *(self._ratios(name, base) for name, base in self.bases().items()),
            table_of("all categories", _COLUMNS, [self._row(mode) for mode in self.modes]),
        ]

    def notes(self) -> list[str]:
        """What the columns mean, and which modes are lossy."""
        lossy = [mode.name for mode in self.result.bench.modes if mode.is_lossy]
        return [
            f"fresh: the first {FRESH_TOKENS} tokens of a new process, by the same tokens of a warm one",
            *(f"{name} is LOSSY: it reads a part of the context" for name in lossy),
        ]

    def _totals(self, mode: str, category: str) -> tuple[Any, Any]:
        """Tokens behind the first and their seconds, f64 `[prompts]` each; of rounds the median."""
        bench, answers = self.result.bench, self.result.records[mode].answers
        found = [answers[index] for index, prompt in enumerate(bench.prompts) if prompt.category == category]
        tokens = np.array([len(rounds[0].tokens) - 1 for rounds in found], np.float64)
        # An answer of one token has no decoding.
        times = [median(answer.decode_s for answer in rounds) for rounds in found]
        return tokens, np.where(tokens > 0, times, 0.0)

    def _ratios(self, name: str, base: list[str]) -> Table:
        rows = []
        for mode in self.modes:
            found = [self.ratio(mode, base, category) for category in self.categories]
            known = [ratio.value for ratio in found if ratio is not None]
            cells = ("-" if ratio is None else ratio.shown(".2f") for ratio in found)
            rows.append([mode, *cells, _shown(fmean(known) if known else None, ".2f")])
        title = f"speed by that of {name} (95% intervals over prompts)"
        return table_of(title, ("mode", *self.categories, _MEAN), rows)

    def _row(self, mode: str) -> list[str]:
        record, figures = self.result.records[mode], self._figures(mode)
        same = figures["same_as_plain"]
        accepted = figures["acceptance"]
        return [
            mode,
            f"{1000 * median(record.first_s.values()):.0f}",
            _shown(record.fresh.tokens_per_s or None, ".1f"),
            _shown(record.steady.tokens_per_s or None, ".1f"),
            _shown(figures["fresh"], ".2f"),
            _shown(figures["tokens_per_pass"], ".2f"),
            _shown(accepted, ".2f"),
            "-" if same is None else f"{same[0]} of {same[1]}",
        ]

    def _figures(self, mode: str) -> dict[str, Any]:
        record = self.result.records[mode]
        answers = [answer for rounds in record.answers for answer in rounds]
        proposed, accepted = sum(a.proposed for a in answers), sum(a.accepted for a in answers)
        tokens, passes = sum(len(a.tokens) - 1 for a in answers), sum(a.passes for a in answers)
        return {
            "first_token_ms": 1000 * median(record.first_s.values()),
            "fresh": record.fresh.tokens_per_s / steady if (steady := record.steady.tokens_per_s) else None,
            "tokens_per_pass": tokens / passes if passes else None,
            "acceptance": accepted / proposed if proposed else None,
            "same_as_plain": self.same(mode),
        }

    def _mode_json(self, mode: str) -> dict[str, Any]:
        record: ModeRecord = self.result.records[mode]
        bases = self.bases()
        return {
            **self._figures(mode),
            "categories": {
                category: {
                    "tokens_per_s": self.speed(mode, category),
                    "ratios": {
                        name: ratio and asdict(ratio)
                        for name, base in bases.items()
                        for ratio in [self.ratio(mode, base, category)]
                    },
                }
                for category in self.categories
            },
            "fresh_answer": asdict(record.fresh),
            "steady_answer": asdict(record.steady),
            "answers": [
                {"line": prompt.line, "category": prompt.category, "rounds": [asdict(a) for a in rounds]}
                for prompt, rounds in zip(self.result.bench.prompts, record.answers, strict=True)
            ],
        }


def _shown(figure: float | None, form: str) -> str:
    return "-" if figure is None else format(figure, form)


_COLUMNS = (
    *("mode", "first token\nms", f"fresh {FRESH_TOKENS}\ntokens/s", "steady\ntokens/s", "fresh/\nsteady"),
    *("tokens\na pass", "accepted", "same as\nplain"),
)

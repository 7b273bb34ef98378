"""What `ovspec eval tasks` found: scores, agreement and speed of settings, with 95% intervals over pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from ovspec.eval.interval import Interval
from ovspec.eval.machine import processor, versions
from ovspec.eval.report import finite
from ovspec.eval.tables import COMPACT, table_of
from ovspec.eval.task_results import ALL_TASKS, Run, TaskSummary
from ovspec_models import ModelInfo

# A model whose dense score is below this at the upper end of its interval can't do the task.
_CANNOT = 0.1


@dataclass(frozen=True, slots=True)
class TasksReport:
    """Results of one run of `ovspec eval tasks`; `runs` has one entry per setting."""

    model: ModelInfo
    drafter: str | None
    context: int | None
    runs: Sequence[Run]
    left_out: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """The JSON object, with every answer."""
        found = {
            "versions": versions(),
            "processor": processor(),
            "model": str(self.model.folder),
            "weight_format": self.model.weight_format(),
            "drafter": self.drafter,
            "context": self.context,
            "left_out": list(self.left_out),
            "settings": [
                {
                    "name": run.named.name,
                    "verify": run.verify,
                    "prefill": run.prefill,
                    "tasks": {
                        task: {
                            **asdict(TaskSummary.of(pairs)),
                            "scores": [asdict(score) for score in run.scores(task)],
                        }
                        for task, pairs in run.tasks().items()
                    },
                    "examples": [pair.as_json() for pair in run.pairs],
                }
                for run in self.runs
            ],
        }
        return {name: finite(value) for name, value in found.items()}

    def lines(self) -> list[str]:
        """What was measured and how, one sentence per line."""
        inputs = [pair.num_input_tokens for pair in self.runs[0].pairs]
        cut = f", cut in their middle to {self.context:,}" if self.context else ""
        return [
            f"{self.model.folder} ({self.model.weight_format()}), drafter: {self.drafter or 'none'}",
            f"examples: {len(inputs)}, prompts of {min(inputs):,} to {max(inputs):,} tokens{cut}; greedy",
            *(run.named.described for run in self.runs),
        ]

    def tables(self) -> list[Table]:
        """Scores, agreement with dense decoding, speed, and scores by group where there are some."""
        scores = [self._scores()] if any(pair.example.metrics for pair in self.runs[0].pairs) else []
        tables = [*scores, self._agreement(), self._speed()]
        return [*tables, self._groups()] if any(self.runs[0].groups()) else tables

    def notes(self) -> list[str]:
        """Settings that are left out, examples without a score, and tasks that the model can't do."""
        notes = [*self.left_out, "KL, same first choice and NLL: on the references, read behind the prompts"]
        if any(not pair.of_reference for pair in self.runs[0].pairs):
            notes.append("where an example has no reference: on dense decoding's own answer, and without NLL")
        for task, pairs in self.runs[0].tasks().items():
            unscored = sum(not pair.example.metrics for pair in pairs)
            if unscored and task != ALL_TASKS:
                notes.append(
                    f"{task}: {unscored} of {len(pairs)} examples have no score, as they have no answers or "
                    "reference that a metric compares"
                )
            scores = self.runs[0].scores(task)
            # One example has no interval, and proves nothing.
            if scores and all(score.dense.low < score.dense.high < _CANNOT for score in scores):
                notes.append(
                    f"{task}: dense decoding itself scores less than {_CANNOT:g}; the model can't do this "
                    "task, so its scores can't tell settings apart: see agreement, KL and NLL"
                )
        return notes

    def _scores(self) -> Table:
        rows = []
        for task in self.runs[0].tasks():
            for index, first in enumerate(self.runs[0].scores(task)):
                rows.append((task, first.metric, "dense", first.dense.shown(".3f"), ""))
                for run in self.runs:
                    score = run.scores(task)[index]
                    own, gained = score.tested.shown(".3f"), score.difference.shown("+.3f")
                    rows.append((task, first.metric, run.named.name, own, gained))
        columns = ("task", "metric", "setting", "score", "less dense's")
        return _table("scores, with 95% intervals over the examples", columns, rows, names=3)

    def _agreement(self) -> Table:
        rows = []
        for task, run, found in self._summaries():
            same = f"{found.same_outputs} of {found.examples}"
            kl, agreement = found.kl.shown(".2g"), found.top1_agreement.shown(".3f")
            nll = (_shown(found.nll_dense, ".3f"), _shown(found.nll_difference, "+.3f"))
            rows.append((task, run.named.name, same, agreement, kl, *nll))
        columns = ("task", "setting", "same\noutput", "same first choice", "KL", "NLL, dense", "more NLL")
        return _table("agreement with dense decoding; KL and NLL of a token in nats", columns, rows)

    def _speed(self) -> Table:
        rows = []
        for task, run, found in self._summaries():
            lengths = (found.dense_acceptance_length, found.acceptance_length)
            accepted = (_shown(length, ".2f") for length in lengths)
            ratios = (_shown(found.speed, ".2f"), found.first_token.shown(".2f"))
            rows.append((task, run.named.name, *ratios, *accepted, found.read()))
        columns = ("task", "setting", "tokens/s", "first token", "accepted, dense", "accepted", "share read")
        title = "speed and time to the first token as ratios to dense; acceptance length"
        return _table(title, columns, rows)

    def _groups(self) -> Table:
        rows = []
        for task, group in self.runs[0].groups():
            scores = [run.scores(task, group)[0] for run in self.runs]
            own = (f"{score.tested.value:.2f}" for score in scores)
            rows.append((task, group, f"{scores[0].dense.value:.2f}", *own))
        columns = ("task", "", "dense", *(run.named.name for run in self.runs))
        return _table("scores by part of a task", columns, rows)

    def _summaries(self) -> Iterator[tuple[str, Run, TaskSummary]]:
        for task in self.runs[0].tasks():
            for run in self.runs:
                yield task, run, TaskSummary.of(run.tasks()[task])


def _shown(interval: Interval | None, form: str) -> str:
    return "-" if interval is None else interval.shown(form)


def _table(title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]], names: int = 2) -> Table:
    """A table; what a row has in common with the one before in its first names is left out."""
    same, found, before = names - 1, list[tuple[str, ...]](), ("",) * names
    for row in rows:
        found.append((*("",) * same, *row[same:]) if row[:same] == before[:same] else row)
        before = row
    return table_of(title, columns, found, names=names, **COMPACT)

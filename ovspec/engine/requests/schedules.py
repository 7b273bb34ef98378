"""The schedules of an engine: what they have learned outlives a request."""

from __future__ import annotations

from ovspec.generation.generation_config import GenerationSettings
from ovspec.modes.row_limits import MAX_NUM_ASSISTANT_TOKENS
from ovspec.schedule.controller import AutoSchedule
from ovspec.schedule.schedule import ConstantSchedule, HeuristicSchedule, Schedule


class Schedules:
    """Gives every request the schedule that its settings ask for.

    `auto` keeps what steps cost; `heuristic` goes on with the number that it had come to, as in
    transformers, per number that it started from. Requests with one schedule are planned together.

    Args:
        commits: whether verification commits, so that there is something to choose even without drafts.
    """

    def __init__(self, commits: bool) -> None:
        self._commits = commits
        self._auto = AutoSchedule(MAX_NUM_ASSISTANT_TOKENS)
        self._heuristics: dict[int, HeuristicSchedule] = {}
        self._constants: dict[int, ConstantSchedule] = {}

    def of(self, settings: GenerationSettings) -> Schedule:
        """The schedule of one request."""
        number = settings.num_assistant_tokens
        if settings.num_assistant_tokens_schedule == "auto" and (number > 0 or self._commits):
            return self._auto
        if settings.num_assistant_tokens_schedule == "heuristic":
            return self._heuristics.setdefault(number, HeuristicSchedule(number, MAX_NUM_ASSISTANT_TOKENS))
        return self._constants.setdefault(number, ConstantSchedule(number))

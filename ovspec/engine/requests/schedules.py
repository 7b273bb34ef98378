"""The schedules of an engine: what they have learned outlives a request."""

from __future__ import annotations

from ovspec.generation.generation_config import GenerationSettings
from ovspec.modes.row_limits import MAX_NUM_ASSISTANT_TOKENS
from ovspec.schedule.controller import AutoSchedule
from ovspec.schedule.schedule import ConstantSchedule, Schedule


class Schedules:
    """Gives every request the schedule that its settings ask for.

    `auto` keeps what steps cost. With commits, a constant number leaves the interval open, unless it is
    given; it is chosen as by `auto`. Requests with one schedule are planned together.

    Args:
        commits: whether verification commits, so that there is something to choose even without drafts.
        open_interval: whether there are several commit intervals to choose from.
    """

    def __init__(self, commits: bool, open_interval: bool = False) -> None:
        self._commits, self._open_interval = commits, open_interval
        self._auto = AutoSchedule(MAX_NUM_ASSISTANT_TOKENS)
        self._constants: dict[int, ConstantSchedule] = {}
        self._fixed: dict[int, AutoSchedule] = {}

    def of(self, settings: GenerationSettings) -> Schedule:
        """The schedule of one request."""
        number = settings.num_assistant_tokens
        if settings.num_assistant_tokens_schedule == "auto" and (number > 0 or self._commits):
            return self._auto
        if self._open_interval and settings.beams is None:
            return self._fixed.setdefault(number, AutoSchedule(number, fixed=True))
        return self._constants.setdefault(number, ConstantSchedule(number))

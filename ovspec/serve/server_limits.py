"""Limits of the server, and who is let in."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ovspec.serve.requests.api_error import ApiError


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What one client may take from the others.

    Attributes:
        max_body_bytes: of a request.
        max_num_seqs: answers that are made at the same time.
        max_queued: answers that wait beside them.
        request_timeout: seconds from a request's arrival to the end of its answer.
        client_timeout: seconds in which a client must send its body, and read what is sent to it.
    """

    max_body_bytes: int = 8 * 2**20
    max_num_seqs: int = 16
    max_queued: int = 64
    request_timeout: float = 600.0
    client_timeout: float = 30.0


class Slot:
    """One answer in work, until it is freed; only the first time counts."""

    def __init__(self, admission: Admission) -> None:
        self._admission: Admission | None = admission
        admission.in_work += 1

    def free(self) -> None:
        """Let another answer in."""
        if self._admission is not None:
            self._admission.in_work -= 1
            self._admission = None


class Admission:
    """Counts the answers in work, and refuses those that would wait behind too many."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._mean_seconds = 1.0
        self.in_work = 0

    def admit(self, answers: int, field: str = "n") -> list[Slot]:
        """Slots for this many answers.

        Args:
            field: of the request, that says how many.

        Raises:
            ApiError: 429 with the seconds to wait, or 400 for a request that is never let in.
        """
        most = self._limits.max_num_seqs + self._limits.max_queued
        if answers > most:
            message = f"{field}: {answers} answers in one request; this server takes at most {most}"
            raise ApiError(400, message, field)
        if self.in_work + answers > most:
            message = f"{self.in_work} answers are in work or wait, at most {most} may; try again later"
            seconds = self._seconds_until_room(self.in_work + answers - most)
            raise ApiError(429, message, code="rate_limit_exceeded", retry_after=seconds)
        return [Slot(self) for _ in range(answers)]

    def observe(self, seconds: float) -> None:
        """Learn how long an answer took."""
        self._mean_seconds += 0.1 * (seconds - self._mean_seconds)

    def _seconds_until_room(self, surplus: int) -> int:
        rounds = math.ceil(surplus / self._limits.max_num_seqs)
        return min(60, max(1, math.ceil(rounds * self._mean_seconds)))

"""How a request's drafts are verified, with what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ovspec.engine.requests.schedules import Schedules
from ovspec.modes.commit_verify import CommitVerify
from ovspec.modes.verify_mode import VerifyMode, calibrated_mode, sparse_part
from ovspec_models import OvspecConfig
from ovspec_models.folder.sparse_verify import SparseVerify

# Numbers of provisional tokens that a schedule chooses from, where the user gives none.
_COMMIT_INTERVALS = (4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class RequestMode:
    """A mode of verification.

    Attributes:
        verify: the mode, calibrated values filled in.
        sparse: its sparse verification; `None`: dense.
        commit_intervals: numbers of provisional tokens after which a commit may come; () without commits.
        schedules: what they have learned holds for one mode.
        only_attention: whether reading all of the context makes the mode dense.
    """

    verify: VerifyMode
    sparse: SparseVerify | None
    commit_intervals: tuple[int, ...]
    schedules: Schedules = field(compare=False)
    only_attention: bool

    @classmethod
    def of(cls, given: VerifyMode, config: OvspecConfig | None) -> RequestMode:
        """The mode that a user gave, completed by the model's calibration."""
        verify = calibrated_mode(given, config)
        intervals: tuple[int, ...] = ()
        if isinstance(verify, CommitVerify):
            intervals = (verify.interval,) if verify.interval else _COMMIT_INTERVALS
        schedules = Schedules(bool(intervals), len(intervals) > 1)
        sparse = sparse_part(verify)
        only_attention = sparse is None or sparse.parts == ("attention",)
        return cls(verify, sparse, intervals, schedules, only_attention)

    @property
    def commits(self) -> bool:
        """Whether tokens are provisional until a dense pass has confirmed them."""
        return bool(self.commit_intervals)

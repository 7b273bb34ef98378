"""The settings that an evaluation compares with dense decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ovspec.modes.commit_verify import CommitVerify
from ovspec.modes.sparse_prefill import SparsePrefill
from ovspec.modes.verify_mode import VerifyMode, sparse_part
from ovspec_models.folder.sparse_verify import SparseVerify, numbers_of


@dataclass(frozen=True, slots=True)
class Setting:
    """A mode of verification and of reading prompts, and its name in tables and plots."""

    verify: VerifyMode
    prefill: SparsePrefill | None = None

    @property
    def sparse(self) -> SparseVerify | None:
        """What the sparse passes may read; `None` where all passes are dense."""
        return sparse_part(self.verify)

    @property
    def commits(self) -> bool:
        """Whether dense passes confirm what the sparse ones accept."""
        return isinstance(self.verify, CommitVerify)

    @property
    def commits_channels(self) -> bool:
        """Whether these passes have `GatedMLP`, because the sparse ones limit channels."""
        return self.commits and self.sparse is not None and self.sparse.limits_channels

    @property
    def name(self) -> str:
        """The name: its budget in a few words."""
        sparse = self.sparse
        name = "dense" if sparse is None else f"{'commit, ' if self.commits else ''}{_budget(sparse)}"
        return name if self.prefill is None else f"{name}; prefill {_attention(self.prefill.amount)}"


def sweep(
    verify: VerifyMode, field: str, values: Sequence[Any], prefill: SparsePrefill | None = None
) -> list[Setting]:
    """One setting per value of a field of `SparseVerify`, all else as in `verify`."""
    option = sweep_option(field)
    sparse = sparse_part(verify)
    if sparse is None:
        raise ValueError(f"{option} sweeps sparse verification: it contradicts --verify {verify}")
    if (given := getattr(sparse, field)) is not None:
        raise ValueError(f"{option} contradicts --{field.replace('_', '-')} {given}: give one of them")
    if len(set(values)) < len(values):
        raise ValueError(f"{option} {','.join(map(str, values))}: name each value once")
    swept = [replace(sparse, **{field: value}) for value in values]
    if isinstance(verify, CommitVerify):
        return [Setting(replace(verify, sparse=one), prefill) for one in swept]
    return [Setting(one, prefill) for one in swept]


def sweep_option(field: str) -> str:
    """The option that sweeps a field."""
    name = field.replace("_", "-")
    return f"--{name[:-1]}ies" if name.endswith("y") and name != "coverage" else f"--{name}s"


def _budget(sparse: SparseVerify) -> str:
    parts = [_attention(sparse)] if sparse.limits_attention else []
    if sparse.limits_experts:
        parts.append(f"{_numbers(sparse.expert_budget)} experts")
    if sparse.limits_channels:
        parts.append(f"ffn {_numbers(sparse.ffn_density)}")
    return ", ".join(parts)


def _numbers(value: float | tuple[float, ...] | None) -> str:
    """One number, or the mean over the layers."""
    numbers = numbers_of(value)
    mean = sum(numbers) / len(numbers)
    return f"{mean:g}" if len(set(numbers)) == 1 else f"{mean:.2f}"


def _attention(sparse: SparseVerify) -> str:
    if sparse.budget is not None:
        return f"budget {sparse.budget}"
    if sparse.coverage is not None:
        return f"coverage {sparse.coverage:g}"
    L0, rho = sparse.length_rule
    whole = "" if sparse.given(("L0", "rho")) else ", at most half"
    return f"L0 {L0}, rho {rho:g}{whole}"

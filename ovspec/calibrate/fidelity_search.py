"""Search for settings of all parts of sparse verification within one target KL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ovspec.calibrate.channel_statistics import ChannelStatistics
from ovspec.calibrate.expert_statistics import ExpertStatistics
from ovspec.calibrate.fidelity_meter import Fidelity
from ovspec_models.folder.sparse_verify import SparseVerify

COVERAGES = (0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.35)
# Shares of the routing weight, and of the channels' squared scores, that the layers keep.
MASSES = (0.99, 0.97, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6)
ENERGIES = (0.9999, 0.9997, 0.999, 0.997, 0.995, 0.99, 0.98, 0.95, 0.9, 0.8)
# A part that a pass reads nearly all of is left whole: the loss would buy no time.
LEAST_SAVED = 0.05
_READ = {"attention": "attention_density", "experts": "experts_read", "channels": "ffn_density"}


@dataclass(frozen=True, slots=True)
class Part:
    """Candidate settings of one part.

    Attributes:
        name: "attention", "experts" or "channels".
        dense: fields of `SparseVerify` that leave the part dense.
        candidates: fields that limit it, in order of increasing loss of fidelity.
    """

    name: str
    dense: dict[str, Any]
    candidates: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The setting chosen for a part.

    Attributes:
        fields: of `SparseVerify`.
        alone: their fidelity without the other parts; `None` if the part stays dense.
        saved: the largest share of a dense pass's reading that a candidate saves within the part's share of
            the target.
    """

    name: str
    fields: dict[str, Any]
    alone: Fidelity | None
    saved: float


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a search: the parts, and the fidelity of all together."""

    parts: tuple[Chosen, ...]
    sparse: SparseVerify
    joint: Fidelity

    def check_worth(self, target: float) -> None:
        """Raise an error if every part stays dense.

        Raises:
            ValueError: it says how little could have been left out.
        """
        if any(part.alone for part in self.parts):
            return
        saved = ", ".join(f"{part.name} {part.saved:.0%}" for part in self.parts)
        raise ValueError(
            f"--target-kl {target:g}: nothing worth leaving out: at this cost a pass saves {saved} of what "
            f"it reads, {LEAST_SAVED:.0%} of a part is the least that is written; allow more, or give longer "
            "texts"
        )


def attention_part() -> Part:
    """Coverages as candidates: unlike a budget, a coverage fits any length of context."""
    return Part("attention", {"coverage": 1.0}, tuple({"coverage": share} for share in COVERAGES))


def expert_part(statistics: ExpertStatistics) -> Part:
    """Budgets, layer by layer."""
    whole = tuple(layer.experts for layer in statistics.layers)
    budgets = (statistics.budgets(mass) for mass in MASSES)
    limited = ({"expert_budget": layers} for layers in budgets if layers != whole)
    return Part("experts", {"expert_budget": -1}, tuple(_distinct(limited)))


def channel_part(statistics: ChannelStatistics) -> Part:
    """Densities, layer by layer."""
    densities = (statistics.densities(energy) for energy in ENERGIES)
    limited = ({"ffn_density": layers} for layers in densities if min(layers) < 1.0)
    return Part("channels", {"ffn_density": 1.0}, tuple(_distinct(limited)))


def _distinct(candidates: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for candidate in candidates:
        if not found or candidate != found[-1]:
            found.append(candidate)
    return found


def search(
    measure: Callable[[SparseVerify], Fidelity], given: SparseVerify, parts: Sequence[Part], target: float
) -> Found:
    """Find the settings that read least with a KL of all parts together of at most the target.

    Each part first takes the last candidate within its share of the target, and stays dense if none saves
    `LEAST_SAVED`. Then the part with the largest KL steps back until all parts together meet the target.

    `given` are settings that are not searched for, `target` is the mean KL per position in nats.
    """
    dense = {name: value for part in parts for name, value in part.dense.items()}
    whole = measure(replace(given, **dense))
    costs: list[list[tuple[dict[str, Any], Fidelity]]] = []
    saved = [0.0] * len(parts)
    for number, part in enumerate(parts):
        costs.append([])
        for candidate in part.candidates:
            cost = measure(replace(given, **{**dense, **candidate}))
            if cost.kl > target / len(parts):
                break
            saved[number] = max(saved[number], _saved(part, cost, whole))
            if _saved(part, cost, whole) >= LEAST_SAVED:
                costs[-1].append((candidate, cost))
    while True:
        chosen = tuple(
            Chosen(part.name, *known[-1], share) if known else Chosen(part.name, part.dense, None, share)
            for part, known, share in zip(parts, costs, saved, strict=True)
        )
        sparse = replace(given, **{name: value for one in chosen for name, value in one.fields.items()})
        joint = measure(sparse)
        if joint.kl <= target or not any(costs):
            return Found(chosen, sparse, joint)
        max(costs, key=lambda known: known[-1][1].kl if known else -1.0).pop()


def _saved(part: Part, cost: Fidelity, whole: Fidelity) -> float:
    """Share of what a dense pass reads of a part that a setting does not."""
    read = _READ[part.name]
    return 1.0 - float(getattr(cost, read)) / (float(getattr(whole, read)) or 1.0)

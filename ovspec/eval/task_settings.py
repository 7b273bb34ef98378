"""The lossy settings of `ovspec eval tasks`, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ovspec.eval.setting import Setting
from ovspec.modes.sparse_prefill import SparsePrefill
from ovspec.modes.verify_mode import calibrated
from ovspec_models import OvspecConfig
from ovspec_models.folder.sparse_verify import ATTENTION_FIELDS, SparseVerify

NAMES = ("attention", "experts", "channels", "all", "prompts")
_NO_EXPERTS, _ALL_CHANNELS = -1, 1.0


@dataclass(frozen=True, slots=True)
class NamedSetting:
    """A setting and its name in tables."""

    name: str
    setting: Setting

    @property
    def described(self) -> str:
        """The name with the amounts."""
        return f"{self.name}: {self.setting.name}"


@dataclass(frozen=True, slots=True)
class Parts:
    """What of a model can be sparse, and how much of it is to be read.

    Attributes:
        given: the amounts of verification that the user gave.
        prefill: those of prompts.
        config: of the model's folder, with calibrated amounts, if there are any.
        experts: whether the model has layers with experts.
        channels: whether it has gated MLPs.
        native: whether attention is ovspec's operation.
    """

    given: SparseVerify
    prefill: SparsePrefill
    config: OvspecConfig | None
    experts: bool
    channels: bool
    native: bool = True

    def settings(self, names: Sequence[str] | None) -> tuple[list[NamedSetting], list[str]]:
        """The settings of these names, or all that can be had; and why the others are left out.

        Raises:
            ValueError: a setting that is asked for can't be had, or an amount belongs to none of them.
        """
        found, left_out = list[NamedSetting](), list[str]()
        for name in NAMES if names is None else names:
            why = self._missing(name)
            if why and names is not None:
                raise ValueError(f"--setting {name}: {why}")
            if why:
                left_out.append(f"{name} is left out: {why}")
            else:
                found.append(NamedSetting(name, self._setting(name)))
        self._check_given({entry.name for entry in found})
        return found, left_out

    @property
    def _whole(self) -> SparseVerify:
        return calibrated(self.given, self.config)

    def _setting(self, name: str) -> Setting:
        whole = self._whole
        experts = whole.expert_budget if self.experts and whole.limits_experts else _NO_EXPERTS
        channels = whole.ffn_density if self.channels and whole.limits_channels else _ALL_CHANNELS
        if name == "prompts":
            return Setting("dense", self.prefill)
        if name == "all":
            return Setting(replace(self._attention, expert_budget=experts, ffn_density=channels))
        if name == "attention":
            return Setting(replace(self._attention, expert_budget=_NO_EXPERTS, ffn_density=_ALL_CHANNELS))
        # A calibrated amount of attention would be filled in.
        of_config = self.config.verify if self.config else None
        dense = (
            SparseVerify(coverage=1.0) if of_config and of_config.given(ATTENTION_FIELDS) else SparseVerify()
        )
        if name == "experts":
            return Setting(replace(dense, expert_budget=experts, ffn_density=_ALL_CHANNELS))
        return Setting(replace(dense, expert_budget=_NO_EXPERTS, ffn_density=channels))

    @property
    def _attention(self) -> SparseVerify:
        """The given amount of attention, or the calibrated or default one."""
        alone = replace(self.given, expert_budget=None, ffn_density=None)
        found = calibrated(alone, self.config)
        if found.given(ATTENTION_FIELDS):
            return found
        # Something of it must be given, or attention would be dense beside limits of experts or channels.
        return replace(found, sink_blocks=found.selection.sink_blocks)

    def _missing(self, name: str) -> str:
        """Why there is no such setting for this model; empty if there is one."""
        whole = self._whole
        experts = "" if self.experts else "the model has no layers with experts of a known form"
        channels = "" if self.channels else "the model has no feed-forward channels of a known form"
        if not experts and not whole.limits_experts:
            experts = "no --expert-budget is given, and none is calibrated"
        if not channels and not whole.limits_channels:
            channels = "no --ffn-density is given, and none is calibrated"
        if name == "experts":
            return experts
        if name == "channels":
            return channels
        if name == "all" and experts and channels:
            return f"it would be attention alone, because {experts}; {channels}"
        if name == "prompts" and not self.native:
            return "sparse prompts need --attention native, on a CPU"
        return ""

    def _check_given(self, chosen: set[str]) -> None:
        """Refuse amounts that no setting uses."""
        given = self.given
        checks = (
            (given.given(ATTENTION_FIELDS), "attention", {"attention", "all"}, True),
            (given.limits_experts, "experts", {"experts", "all"}, self.experts),
            (given.limits_channels, "channels", {"channels", "all"}, self.channels),
            (self.prefill != SparsePrefill(), "prompts", {"prompts"}, True),
        )
        for is_given, part, users, has in checks:
            if is_given and not has:
                raise ValueError(f"an amount of {part} is given, and the model has none; leave it out")
            if is_given and not chosen & users:
                raise ValueError(
                    f"an amount of {part} is given, and --setting {','.join(sorted(chosen))} has no use for "
                    f"it; add {part}, or leave it out"
                )

"""A head, compiled as its target is; and the choice between heads and draft models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ovspec.devices.devices import is_cpu, resolve_device
from ovspec.drafters.dflash import load_dflash
from ovspec.drafters.drafter import Drafter
from ovspec.drafters.eagle3 import eagle3_boundaries, load_eagle3
from ovspec.drafters.hydra import load_hydra
from ovspec.drafters.medusa import load_medusa
from ovspec.drafters.mtp import load_mtp
from ovspec.errors import raised_by_us
from ovspec.modes.verify_mode import VerifyMode
from ovspec.operations.attention_config import Attention, AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.operations.draft_settings import draft_properties
from ovspec.operations.linear_backend import LinearBackend
from ovspec.operations.native_attention import attention_on
from ovspec.pipeline.models.assistant_model import AssistantChoices
from ovspec.pipeline.models.draft_model import DraftModel
from ovspec_models import ModelInfo, check_same_token_ids
from ovspec_models.folder.head_info import HeadInfo, head_kind, why_unknown
from ovspec_transforms import last_line


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one kind of head drafts.

    Attributes:
        load: its drafter, from its folder, for a target, with the operations and the rows of a prompt's pass.
        boundaries: those that it reads, by what it is and the target's number of layers; `None`: config.json
            names them.
        own: boundaries whose states it returns, by what it is and its own number of layers.
    """

    load: Callable[[HeadInfo, ModelInfo, Backends, int], Drafter]
    boundaries: Callable[[HeadInfo, int], tuple[int, ...]] | None = None
    own: Callable[[HeadInfo, int], tuple[int, ...]] = lambda head, layers: ()


def _last_boundary(head: HeadInfo, layers: int) -> tuple[int, ...]:
    """What the output layer reads."""
    return (layers + 1,)


def _mtp_boundary(head: HeadInfo, layers: int) -> tuple[int, ...]:
    """The same; speculators trains modules on what the target's last norm reads."""
    return (layers + (not head.of_speculators),)


_KINDS = {
    # What its output layer reads too, if it goes on from that.
    "eagle3": _Kind(
        load_eagle3,
        lambda head, layers: eagle3_boundaries(layers),
        lambda head, layers: () if head.block else (layers + ("norm_output" in head.norms),),
    ),
    "dflash": _Kind(
        load_dflash,
        own=lambda head, layers: _last_boundary(head, layers) if head.correction else (),
    ),
    "mtp": _Kind(load_mtp, _mtp_boundary, _last_boundary),
    "medusa": _Kind(load_medusa, _last_boundary),
    "hydra": _Kind(load_hydra, _last_boundary),
}


@dataclass(frozen=True, slots=True)
class HeadChoices:
    """How a head is computed.

    Attributes:
        head: what the folder says of the target.
        boundaries: of the target, whose states it reads.
    """

    info: ModelInfo
    head: HeadInfo
    target: ModelInfo
    backends: Backends
    boundaries: tuple[int, ...]

    @classmethod
    def of(
        cls,
        draft: DraftModel,
        target: ModelInfo,
        device: str,
        attention: Attention | None,
        properties: Mapping[str, object],
        linear: LinearBackend | None,
    ) -> HeadChoices:
        """Resolve what the user says of the head, and else what holds for the target.

        Raises:
            ValueError: a kind of head that is not known, a head for another target, or as `Backends.resolve`.
        """
        head = HeadInfo.read(draft.models_path)
        if head.kind not in _KINDS:
            raise ValueError(f"'{draft.models_path}' {why_unknown(head.kind, _KINDS)}")
        if not (draft.models_path / "openvino_model.xml").is_file():
            raise ValueError(
                f"'{draft.models_path}' is the checkpoint of a head; export it with its target: "
                f"`ovspec export -m ... OUT --{head.kind} {draft.models_path}`"
            )
        kind = _KINDS[head.kind]
        boundaries = head.boundaries or (kind.boundaries and kind.boundaries(head, target.num_hidden_layers))
        if not boundaries:
            raise ValueError(
                f"'{draft.models_path}': config.json does not say which layers of the target the head reads; "
                "get the head again"
            )
        info = ModelInfo.read(draft.models_path)
        if not head.own_output:
            info = replace(info, shared_bytes=target.output_bytes())
        head.check_target(
            target.hidden_size, target.num_hidden_layers, target.vocab_size, target.architectures
        )
        device = resolve_device(draft.device or device)
        if "CACHE_DIR" in (draft.properties or {}):
            raise ValueError(
                "CACHE_DIR: a head is compiled in a moment and never kept; leave it out of draft_model()"
            )
        backend = attention_on(device, attention if is_cpu(device) else None, info.folder)
        # An entry would depend on two folders.
        given = dict(draft.properties or properties)
        given.pop("CACHE_DIR", None)
        backends = Backends.resolve(
            info.folder,
            device,
            draft_properties(given, backend, info.weight_bytes),
            AttentionConfig(backend),
            linear=linear if is_cpu(device) else None,
            boundaries=kind.own(head, info.num_hidden_layers),
        )
        # Layers that our operation does not take stay as they are: nobody asked for it.
        return cls(info, head, target, replace(backends, linear_required=False), boundaries)

    def load(self, vocab_size: int, prefill_chunk: int) -> Drafter:
        """Compile the head.

        Raises:
            ValueError: the head does not fit the target, or a setting that can't be served.
        """
        try:
            return _KINDS[self.head.kind].load(self.head, self.target, self.backends, prefill_chunk)
        except RuntimeError as error:
            if raised_by_us(error):
                raise
            raise ValueError(
                f"'{self.head.folder}': the head can't be loaded ({last_line(error)}); export it again"
            ) from error


def draft_choices(
    draft: DraftModel | None,
    target: ModelInfo,
    verify: VerifyMode,
    device: str,
    attention: Attention | None,
    properties: Mapping[str, object],
    linear: LinearBackend | None,
) -> AssistantChoices | HeadChoices | None:
    """How whatever a draft folder holds is computed.

    Raises:
        ValueError: as `AssistantChoices.of` and `HeadChoices.of`, or a draft model with other token ids.
    """
    if draft is None:
        return None
    if head_kind(draft.models_path) is not None:
        return HeadChoices.of(draft, target, device, attention, properties, linear)
    choices = AssistantChoices.of(draft, verify, device, attention, properties, linear)
    check_same_token_ids(target.folder, draft.models_path)
    return choices

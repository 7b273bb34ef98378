"""A head's checkpoint -> a folder that `ovspec.draft_model` takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openvino as ov

from ovspec_models.export.export import DRAFT_FOLDER
from ovspec_models.folder.config import OvspecConfig
from ovspec_models.folder.head_info import (
    BOUNDARIES,
    MTP_IR,
    TARGET_LAYERS,
    TARGET_SIZE,
    HeadInfo,
    boundaries_of,
    checkpoint_kind,
    why_unknown,
)
from ovspec_models.folder.model_info import ModelInfo, read_shape
from ovspec_models.heads.checkpoint import HeadCheckpoint, is_buffer, read_config
from ovspec_models.heads.dflash import (
    dflash_arrays,
    dflash_facts,
    dflash_ignores,
    dflash_model,
    dflash_settings,
)
from ovspec_models.heads.eagle3 import (
    eagle3_arrays,
    eagle3_facts,
    eagle3_ignores,
    eagle3_model,
    eagle3_settings,
)
from ovspec_models.heads.hydra import (
    HYDRA_SETTINGS,
    HYDRA_TAKES,
    hydra_arrays,
    hydra_facts,
    hydra_model,
    hydra_reads,
)
from ovspec_models.heads.medusa import MEDUSA_SETTINGS, medusa_arrays, medusa_facts, medusa_model
from ovspec_models.heads.mtp import MTP_SETTINGS, mtp_arrays, mtp_facts, mtp_ignores, mtp_model, mtp_reads
from ovspec_models.heads.mtp_ir import read_mtp_ir
from ovspec_models.heads.settings import HeadSettings


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one kind of head is read and written.

    Attributes:
        arrays: its weights by name; it refuses a checkpoint that is not whole.
        facts: what config.json of the exported folder says beside the published one.
        model: its graph, in a weight format.
        settings: by config.json, what of it is followed.
        ignores: whether a weight that it does not hold changes nothing.
        reads: by config.json, which weights of the checkpoint are read.
        takes: what of the target's config.json it is made by, where its own does not say it.
        trained: whether `ovspec train-head` trains it.
    """

    arrays: Callable[[HeadCheckpoint], dict[str, Any]]
    facts: Callable[[HeadCheckpoint], dict[str, Any]]
    model: Callable[[HeadCheckpoint, str | None], ov.Model]
    settings: Callable[[dict[str, Any]], HeadSettings]
    ignores: Callable[[str], bool] = is_buffer
    reads: Callable[[dict[str, Any]], Callable[[str], bool]] = lambda config: lambda name: True
    takes: tuple[str, ...] = ()
    trained: bool = False


_KINDS = {
    "eagle3": _Kind(
        eagle3_arrays,
        eagle3_facts,
        eagle3_model,
        eagle3_settings,
        eagle3_ignores,
        trained=True,
    ),
    "dflash": _Kind(dflash_arrays, dflash_facts, dflash_model, dflash_settings, dflash_ignores),
    "mtp": _Kind(mtp_arrays, mtp_facts, mtp_model, lambda config: MTP_SETTINGS, mtp_ignores, mtp_reads),
    "medusa": _Kind(medusa_arrays, medusa_facts, medusa_model, lambda config: MEDUSA_SETTINGS),
    "hydra": _Kind(
        hydra_arrays,
        hydra_facts,
        hydra_model,
        lambda config: HYDRA_SETTINGS,
        reads=hydra_reads,
        takes=HYDRA_TAKES,
    ),
}
_OF_TARGET = ("hidden_size", "num_hidden_layers", "vocab_size", "architectures")
#: The kinds of heads that can be exported.
HEAD_KINDS = tuple(_KINDS)
#: Those that `ovspec train-head` trains.
TRAINED_KINDS = tuple(name for name, kind in _KINDS.items() if kind.trained)


def open_head(path: str | Path, kind: str) -> HeadCheckpoint:
    """Read the checkpoint of a head.

    Raises:
        ValueError: the folder holds none of this kind.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(f"--{kind} '{folder}' is no folder; give the folder of the head's checkpoint")
    if not (folder / "config.json").is_file():
        raise ValueError(f"--{kind} '{folder}' holds no head: it has no config.json; give a head's folder")
    read_config(folder)
    found = checkpoint_kind(folder)
    if found and found not in _KINDS:
        raise ValueError(f"--{kind} '{folder}' {why_unknown(found, _KINDS)}")
    if found != kind:
        raise ValueError(
            f"--{kind} '{folder}' holds a head of the kind {found!r}: use --{found}"
            if found
            else f"--{kind} '{folder}' holds no head: its config.json names none; give the folder of the "
            "head's checkpoint"
        )
    if (folder / MTP_IR).is_file():
        checkpoint = read_mtp_ir(folder)
    else:
        checkpoint = HeadCheckpoint.read(folder, _KINDS[kind].reads)
    check_settings(folder, kind)
    _KINDS[kind].arrays(checkpoint)
    checkpoint.check_all_read(_KINDS[kind].ignores)
    return checkpoint


def check_settings(folder: Path, kind: str) -> None:
    """Refuse a head whose config.json asks for something that this kind of head does not compute.

    Raises:
        ValueError: it names the setting.
    """
    config = read_config(folder)
    _KINDS[kind].settings(config).check(folder, config)


def check_target(checkpoint: HeadCheckpoint, target: str | Path) -> None:
    """Refuse a head for another target before the long work, where the target is a folder.

    Raises:
        ValueError: it names what differs.
    """
    if (Path(target) / "config.json").is_file():
        shape = read_shape(Path(target))
        _check(checkpoint, *(shape[name] for name in _OF_TARGET))


def _check(
    checkpoint: HeadCheckpoint, hidden_size: int, layers: int, vocab_size: int, architectures: Sequence[str]
) -> None:
    """Compare a checkpoint with its target; sizes that config.json does not say are in the weights."""
    info = HeadInfo.read(checkpoint.folder)
    facts = _KINDS[info.kind].facts(checkpoint)
    replace(
        info,
        target_hidden_size=facts.get(TARGET_SIZE, info.target_hidden_size),
        target_layers=facts.get(TARGET_LAYERS, info.target_layers),
        vocab_size=facts.get("vocab_size", info.vocab_size),
    ).check_target(hidden_size, layers, vocab_size, architectures)


def add_head(checkpoint: HeadCheckpoint, folder: Path, weight_format: str | None = None) -> None:
    """Export a head beside its target, as the draft that the target's folder names.

    Raises:
        ValueError: as `export_head`.
    """
    export_head(checkpoint, ModelInfo.read(folder), folder / DRAFT_FOLDER, weight_format)
    config = OvspecConfig.load(folder)
    if config is not None:
        replace(config, draft_model=DRAFT_FOLDER).save(folder)


def export_head(
    checkpoint: HeadCheckpoint, target: ModelInfo, out: Path, weight_format: str | None = None
) -> None:
    """Write the head's IR and config.json to the folder `out`.

    Args:
        checkpoint: of the head.
        target: the exported model that it drafts for.
        out: a folder, made if it is missing.
        weight_format: fp32, fp16, int8 or int4 (int8 here, heads are small); `None`: fp16.

    Raises:
        ValueError: the checkpoint is not whole, or for another target.
    """
    _check(checkpoint, *(getattr(target, name) for name in _OF_TARGET))
    kind = _KINDS[checkpoint_kind(checkpoint.folder) or ""]
    taken = {key: value for key, value in read_config(target.folder).items() if key in kind.takes}
    checkpoint = replace(checkpoint, config={**taken, **checkpoint.config})
    model = kind.model(checkpoint, weight_format)
    if weight_format in ("int8", "int4"):
        import nncf

        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    out.mkdir(parents=True, exist_ok=True)
    ov.save_model(model, out / "openvino_model.xml", compress_to_fp16=False)
    config = {**checkpoint.config, **kind.facts(checkpoint)}
    config.setdefault(TARGET_SIZE, target.hidden_size)
    config[TARGET_LAYERS] = target.num_hidden_layers
    if boundaries := boundaries_of(checkpoint.folder, config):
        config[BOUNDARIES] = list(boundaries)
    config = {name: value for name, value in config.items() if value is not None}  # of no meaning, as none
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

"""Train a head for a target on texts, into a folder; a run that was ended goes on where it was."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from ovspec.train.eagle3_training import Eagle3Training, TrainSettings
from ovspec.train.footprint import memory_needed
from ovspec.train.head_folder import HeadSizes, head_config, write_head
from ovspec.train.held_out import HeldOut
from ovspec.train.target_passes import TargetPasses, target_weights
from ovspec.train.target_states import read_states, states_bytes
from ovspec.train.texts import Text, TrainingTexts
from ovspec_models import ModelInfo
from ovspec_models.export.new_folder import check_new_folder, new_folder
from ovspec_models.folder.files import replace_file
from ovspec_models.folder.graph_files import graph_of, weights_of
from ovspec_models.folder.json_file import read_json

_SAVE_SECONDS = 60.0
_REPORTS = 20  # of held-out agreement, beside the last


@dataclass(frozen=True, slots=True)
class Needs:
    """What a training needs: bytes of memory at its highest, and of the disk in `folder`."""

    memory: int
    disk: int
    folder: Path


@dataclass(frozen=True, slots=True)
class TokensRead:
    """Tokens whose states the target has computed so far, and all."""

    so_far: int
    all: int


@dataclass(frozen=True, slots=True)
class Report:
    """Where a training stands.

    Attributes:
        step, steps: those that are done, and those of all epochs.
        loss: mean since the last report, nats per token; `None` before the first step.
        tokens_per_second: that were learnt from since the last report.
    """

    step: int
    steps: int
    loss: float | None
    held_out: HeldOut
    tokens_per_second: float


def training_folder(out: Path) -> Path:
    """Where a training that goes to `out` keeps the target's states and its own, until it is done."""
    return out.absolute().with_name(f"{out.name}.training")


def train_head(
    target: ModelInfo,
    texts: TrainingTexts,
    sizes: HeadSizes,
    settings: TrainSettings,
    out: Path,
    properties: Mapping[str, object],
    weight_format: str | None,
    report: Callable[[Report | Needs | TokensRead], None],
) -> HeldOut:
    """Train and write the head's folder; returns its agreement on the held-out texts.

    The target reads the texts once, into `training_folder(out)`. Every minute the state of the training goes
    there too, and the same call goes on from it; the folder is deleted when the head is written.

    Raises:
        ValueError: a folder that is filled, texts in tokens of another model, a target that a head can't be
            trained for, a disk without room, or the state of another training.
    """
    check_new_folder(out)
    texts.check_tokens(target.vocab_size)
    work = training_folder(out)
    ids = texts.draft_vocabulary(sizes.draft_vocab_size, target.vocab_size)
    config = head_config(target, replace(sizes, draft_vocab_size=len(ids)))
    about = {
        **{name: value for name, value in config.items() if isinstance(value, (int, float))},
        **asdict(settings),
        "boundaries": list(sizes.boundaries),
        "target": _digest_of(weights_of(graph_of(target.folder))),
        "texts": _digest([*texts.train, *texts.held_out]),
    }
    _claim(work, about)
    every = [*texts.train, *texts.held_out]
    tokens, widths = sum(map(len, every)), [target.hidden_size] * len(sizes.boundaries)
    memory = memory_needed(target, config, settings, max(map(len, every)))
    report(Needs(memory, states_bytes(every, len(ids), sum(widths)), work))
    states = read_states(
        work / "states",
        every,
        lambda: TargetPasses(target.folder, sizes.boundaries, properties),
        ids,
        widths,
        lambda read: report(TokensRead(read, tokens)),
    )
    weights = target_weights(target.folder)
    training = Eagle3Training(config, len(sizes.boundaries), ids, weights, texts, states, settings)
    state = work / "head.pt"
    if state.is_file():
        training.resume(state)
    found = _run(training, state, report)
    with new_folder(out) as folder:
        write_head(training.net, config, ids, target, folder, weight_format)
    shutil.rmtree(work)
    return found


def _run(training: Eagle3Training, state: Path, report: Callable[[Report], None]) -> HeldOut:
    """Train to the end; the agreement there."""
    every = max(1, training.steps // _REPORTS)
    found = training.held_out()
    report(Report(training.step, training.steps, None, found, 0.0))
    saved = since = time.monotonic()
    losses, tokens = list[float](), 0
    for loss, learnt in training.run():
        losses.append(loss)
        tokens += learnt
        ended = training.step == training.steps
        if training.step % every == 0 or ended:
            speed = tokens / (time.monotonic() - since)
            mean = sum(losses) / len(losses)
            found = training.held_out()
            report(Report(training.step, training.steps, mean, found, speed))
            losses, tokens, since = [], 0, time.monotonic()
        # At the end too: what writes the head may still fail.
        if time.monotonic() - saved > _SAVE_SECONDS or ended:
            training.save(state)
            saved = time.monotonic()
    return found


def _claim(work: Path, about: dict[str, Any]) -> None:
    """Make the folder of a training, or check that it is that of this one."""
    told = work / "training.json"
    if not told.is_file():
        work.mkdir(parents=True, exist_ok=True)
        replace_file(told, json.dumps(about, indent=2).encode())
        return
    found = read_json(told, f"delete {work} to begin anew")
    for name, value in about.items():
        if found.get(name) != value:
            raise ValueError(
                f"{work} is that of another training: its {name} is {found.get(name)!r}, this one's "
                f"{value!r}; give the same options and texts to go on, or delete the folder to begin anew"
            )


def _digest(texts: Sequence[Text]) -> str:
    digest = sha256()
    for text in texts:
        sizes = (len(text), text.prompt)
        digest.update(b"".join(size.to_bytes(8, "little") for size in sizes) + text.tokens.tobytes())
    return digest.hexdigest()[:16]


def _digest_of(weights: Path) -> str:
    with weights.open("rb") as file:
        digest = sha256()
        while part := file.read(1 << 24):
            digest.update(part)
    return digest.hexdigest()[:16]

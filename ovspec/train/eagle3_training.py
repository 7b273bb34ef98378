"""Training of an EAGLE-3 head for a target's compiled graph, a step at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import log_softmax, softmax
from torch.nn.utils.rnn import pad_sequence

from ovspec.train.eagle3_net import Eagle3Net
from ovspec.train.held_out import HeldOut
from ovspec.train.target_passes import Reading, TargetPasses, has_bf16, target_weights
from ovspec.train.texts import Text, TrainingTexts, packed

_STEP_DECAY = 0.8  # weight of a step's loss against that of the step before it, as in EAGLE-3's code
_CLIP, _WEIGHT_DECAY, _WARM_UP = 0.5, 0.0, 0.02
_BETAS = (0.9, 0.95)
_CHECKED_DRAFT = 4


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How a head is trained.

    Attributes:
        batch_tokens: tokens of a step, padding counted.
        learning_rate: the highest; it rises over the first steps and falls to zero on a cosine.
        ttt_length: steps of the training-time test: tokens of a draft that the head learns to write.
        seed: of the first weights, and of the order of the texts.
    """

    epochs: int
    batch_tokens: int
    learning_rate: float
    ttt_length: int
    seed: int


class Eagle3Training:
    """A head while it is trained.

    Args:
        target: its folder; `properties` are OpenVINO's for it.
        config: as config.json of a published head.
        boundaries: of the target, whose states it reads.
        ids: i64, the target's id of each of the head's tokens.
    """

    def __init__(
        self,
        target: Path,
        config: dict[str, Any],
        boundaries: tuple[int, ...],
        ids: NDArray[np.int64],
        texts: TrainingTexts,
        settings: TrainSettings,
        properties: Mapping[str, object],
    ) -> None:
        torch.manual_seed(settings.seed)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._mixed = self._device == "cuda" or has_bf16()
        self.ids, self._texts, self._settings = ids, texts, settings
        self._target = TargetPasses(target, boundaries, properties)
        embedding, output = target_weights(target)
        self.net = Eagle3Net(config, len(boundaries), torch.from_numpy(embedding))
        with torch.no_grad():  # the target's own rows are closer to what is needed than random ones
            self.net.lm_head.weight.copy_(torch.from_numpy(output[ids]))
            # Boundaries differ in size by orders of magnitude; features begin with all of them, of size 1.
            self.net.fc.weight.div_(torch.from_numpy(self._state_sizes(texts.train[0], len(boundaries))))
        self.net.to(self._device)
        self._known = torch.zeros(len(embedding), dtype=torch.bool)
        self._known[torch.from_numpy(ids)] = True
        self._optimizer = torch.optim.AdamW(
            self.net.parameters(), settings.learning_rate, betas=_BETAS, weight_decay=_WEIGHT_DECAY
        )
        self.step = 0
        per_epoch = [
            len(texts.batches(settings.batch_tokens, settings.seed, e)) for e in range(settings.epochs)
        ]
        self._ends = np.cumsum(per_epoch).tolist()

    def _state_sizes(self, text: Text, boundaries: int) -> NDArray[np.float32]:
        """Root mean square of every boundary's states in a text, once for each of its numbers."""
        (reading,) = self._target.read([text], self.ids)
        parts = np.split(reading.states, boundaries, 1)
        return np.concatenate(
            [np.full(part.shape[1], np.sqrt((part**2).mean()), np.float32) for part in parts]
        )

    @property
    def steps(self) -> int:
        """Of all epochs."""
        return int(self._ends[-1])

    def run(self) -> Iterator[tuple[float, int]]:
        """Train from where it stands to the end; each step's loss, and tokens that it learnt from.

        The loss is in nats per token, mean over the steps of the training-time test.
        """
        begin = 0
        for epoch, end in enumerate(self._ends):
            if self.step < end:
                batches = self._texts.batches(self._settings.batch_tokens, self._settings.seed, epoch)
                for batch in batches[self.step - begin :]:
                    yield self._advance(batch)
            begin = end

    def held_out(self) -> HeldOut:
        """Agreement with the target on the held-out texts, of drafts of four tokens."""
        found = HeldOut.of(_CHECKED_DRAFT)
        self.net.eval()
        with torch.no_grad():
            for batch in packed(self._texts.held_out, self._settings.batch_tokens):
                readings = self._target.read(batch, self.ids)
                states, tokens = self._inputs(batch, readings)
                drafted = [
                    logits.argmax(-1).cpu().numpy()
                    for logits in self.net.unrolled(states, tokens, _CHECKED_DRAFT)
                ]
                for row, reading in enumerate(readings):
                    found.add(_hits([self.ids[step[row]] for step in drafted], reading.best))
        self.net.train()
        return found

    def _advance(self, batch: list[Text]) -> tuple[float, int]:
        progress = self.step / self.steps
        warm_up = min(1.0, (self.step + 1) / max(1.0, _WARM_UP * self.steps))
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.learning_rate * warm_up * 0.5 * (1 + math.cos(math.pi * progress))
        readings = self._target.read(batch, self.ids)
        states, tokens = self._inputs(batch, readings)
        wanted = _padded([reading.logits[1:] for reading in readings], self._device)
        # Where the best token is none of the head's, there is nothing to draft, and nothing to learn.
        counts = _padded([self._known[reading.best[1:]].numpy() for reading in readings], self._device)
        losses = []
        with torch.autocast(self._device, torch.bfloat16, enabled=self._mixed):
            drafted = list(self.net.unrolled(states, tokens, self._settings.ttt_length))
        for step, logits in enumerate(drafted):
            rows = logits.shape[1] - step
            if rows < 1:
                break
            p = softmax(wanted[:, step:], -1)
            each = -(p * log_softmax(logits[:, :rows], -1)).sum(-1)
            mask = counts[:, step:].float()
            losses.append((each * mask).sum() / mask.sum().clamp(min=1))
        weighted = sum(loss * _STEP_DECAY**step for step, loss in enumerate(losses))
        self._optimizer.zero_grad(set_to_none=True)
        weighted.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), _CLIP)
        self._optimizer.step()
        self.step += 1
        return sum(loss.item() for loss in losses) / len(losses), sum(map(len, batch))

    def _inputs(self, batch: list[Text], readings: list[Reading]) -> tuple[Tensor, Tensor]:
        states = _padded([reading.states for reading in readings], self._device)
        return states, _padded(batch, self._device)

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Write where it stands, and what it is a training of; the file is whole or unchanged."""
        state = {
            "about": about,
            "step": self.step,
            "net": self.net.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        temporary = path.with_name(f"{path.name}.new")
        torch.save(state, temporary)
        temporary.replace(path)

    @staticmethod
    def about(path: Path) -> dict[str, Any]:
        """What a file of `save` is of.

        Raises:
            ValueError: it can't be read.
        """
        about: dict[str, Any] = _load(path, "cpu")["about"]
        return about

    def resume(self, path: Path) -> None:
        """Go on where a file of `save` says.

        Raises:
            ValueError: it can't be read.
        """
        state = _load(path, self._device)
        self.net.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]


def _load(path: Path, device: str) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # the errors of damaged files have no class in common
        raise ValueError(f"{path} is no state of a training; delete it to begin anew") from error
    return state


def _hits(drafted: list[NDArray[np.int64]], best: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether token k of the draft after entry j is the target's choice after position j + 1 + k."""
    places = len(best) - 1
    hits = np.zeros((places, len(drafted)), np.bool_)
    for step, tokens in enumerate(drafted):
        count = max(0, places - step)
        hits[:count, step] = tokens[:count] == best[1 + step : 1 + step + count]
    return hits


def _padded(arrays: list[NDArray[Any]], device: str) -> Tensor:
    """`[arrays, longest, ...]`, zeros behind the ends."""
    return pad_sequence([torch.from_numpy(array) for array in arrays], batch_first=True).to(device)

"""Training of an EAGLE-3 head on what its target says of texts, a step at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ovspec.train.eagle3_net import Eagle3Net
from ovspec.train.held_out import HeldOut
from ovspec.train.target_passes import has_bf16
from ovspec.train.target_states import Known, TargetStates
from ovspec.train.texts import Text, TrainingTexts, packed
from ovspec_models.folder.files import replace_file

_STEP_DECAY = 0.8  # weight of a step's loss against that of the step before it, as in EAGLE-3's code
_CLIP, _WARM_UP = 0.5, 0.02
_BETAS = (0.9, 0.95)
_CHECKED_DRAFT = 4
_FITTED_TOKENS = 4096  # from whose states the norms begin


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
        config: as config.json of a published head.
        boundaries: of the target, how many states it reads.
        ids: i64, the target's id of each of the head's tokens.
        weights: the target's embedding and output layer, f32 `[vocabulary, hidden size]` each.
        texts: the training texts, and those held out.
        states: what the target says of `texts.train`, then of `texts.held_out`.
    """

    def __init__(
        self,
        config: dict[str, Any],
        boundaries: int,
        ids: NDArray[np.int64],
        weights: tuple[NDArray[np.float32], NDArray[np.float32]],
        texts: TrainingTexts,
        states: TargetStates,
        settings: TrainSettings,
    ) -> None:
        torch.manual_seed(settings.seed)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._mixed = self._device == "cuda" or has_bf16()
        self.ids, self._texts, self._settings, self._states = ids, texts, settings, states
        embedding, output = weights
        self.net = Eagle3Net(config, boundaries, torch.from_numpy(embedding))
        with torch.no_grad():  # the target's own rows are closer to what is needed than random ones
            self.net.lm_head.weight.copy_(torch.from_numpy(output[ids]))
        first = int(np.searchsorted(np.cumsum([len(text) for text in texts.train]), _FITTED_TOKENS))
        known = [states[number].states for number in range(min(first + 1, len(texts.train)))]
        self.net.fit_norms(torch.from_numpy(np.concatenate(known)[:_FITTED_TOKENS]))
        self.net.to(self._device)
        self._known = np.zeros(len(embedding), np.bool_)
        self._known[ids] = True
        self._optimizers = _optimizers(self.net, settings.learning_rate)
        self.step = 0
        per_epoch = [
            len(texts.batches(settings.batch_tokens, settings.seed, e)) for e in range(settings.epochs)
        ]
        self._ends = np.cumsum(per_epoch).tolist()

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
        texts, first = self._texts.held_out, len(self._texts.train)
        self.net.eval()
        with torch.no_grad():
            for batch in packed(range(len(texts)), [*map(len, texts)], self._settings.batch_tokens):
                told = [self._states[first + number] for number in batch]
                states, tokens, entries = self._inputs([texts[number] for number in batch], told)
                drafted = [
                    self.net.lm_head(state).argmax(-1).cpu().numpy()
                    for state in self.net.unrolled(states, tokens, entries, _CHECKED_DRAFT)
                ]
                for row, (number, known) in enumerate(zip(batch, told, strict=True)):
                    begin, drafts = texts[number].entries[0], [self.ids[step[row]] for step in drafted]
                    found.add(_hits(drafts, known.best[begin:]))
        self.net.train()
        return found

    def _advance(self, batch: list[int]) -> tuple[float, int]:
        progress = self.step / self.steps
        warm_up = min(1.0, (self.step + 1) / max(1.0, _WARM_UP * self.steps))
        rate = self._settings.learning_rate * warm_up * 0.5 * (1 + math.cos(math.pi * progress))
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        texts, told = [self._texts.train[n] for n in batch], [self._states[n] for n in batch]
        states, tokens, entries = self._inputs(texts, told)
        # What is said behind the first entry's token, and behind later ones.
        begins = [text.entries[0] + 1 for text in texts]
        parts = list(zip(told, begins, strict=True))
        likely = _padded([known.likely[begin:].astype(np.int64) for known, begin in parts], self._device)
        shares = _padded([known.shares[begin:] for known, begin in parts], self._device)
        # Where the best token is none of the head's, there is nothing to draft, and nothing to learn.
        learnt = _padded([self._known[known.best[begin:]] for known, begin in parts], self._device)
        self.net.zero_grad(set_to_none=True)
        losses, made, gradients = [], list[Tensor](), list[Tensor]()
        with torch.autocast(self._device, torch.bfloat16, enabled=self._mixed):
            unrolled = self.net.unrolled(states, tokens, entries, self._settings.ttt_length)
            for step, state in enumerate(unrolled):
                rows = learnt[:, step:].nonzero(as_tuple=True)
                if not len(rows[0]):
                    break
                state = state[rows]
                # Through the output layer at once: only one step's logits are held at a time.
                cut = state.detach().requires_grad_()
                loss = _cross_entropy(self.net.lm_head(cut), likely[:, step:][rows], shares[:, step:][rows])
                (loss * _STEP_DECAY**step).backward()
                losses.append(loss.item())
                made.append(state)
                gradients.append(cut.grad)
        torch.autograd.backward(made, gradients)
        norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), _CLIP)
        if not torch.isfinite(norm):
            raise ValueError(
                f"learning_rate={self._settings.learning_rate}: the loss is no finite number at step "
                f"{self.step + 1} of {self.steps}; give a lower one"
            )
        for optimizer in self._optimizers:
            optimizer.step()
        self.step += 1
        return sum(losses) / max(1, len(losses)), sum(len(text.entries) for text in texts)

    def _inputs(self, texts: list[Text], told: list[Known]) -> tuple[Tensor, Tensor, Tensor]:
        """States, tokens and entries, padded."""
        states = _padded([known.states for known in told], self._device).float()
        tokens = _padded([text.tokens for text in texts], self._device)
        return states, tokens, _padded([text.entries for text in texts], self._device)

    def save(self, path: Path) -> None:
        """Write where it stands; the file is whole or unchanged."""
        state = {
            "step": self.step,
            "net": self.net.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }
        content = BytesIO()
        torch.save(state, content)
        replace_file(path, content.getvalue())

    def resume(self, path: Path) -> None:
        """Go on where a file of `save` says.

        Raises:
            ValueError: it can't be read.
        """
        try:
            state = torch.load(path, map_location=self._device, weights_only=True)
            self.net.load_state_dict(state["net"])
            for optimizer, known in zip(self._optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(known)
            self.step = int(state["step"])
        except Exception as error:  # the errors of damaged files have no class in common
            raise ValueError(f"{path} is no state of this training; delete it to begin anew") from error


def _optimizers(net: Eagle3Net, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the layer's matrices, which learns in fewer steps than AdamW; AdamW for the rest.

    Muon's steps are scaled to AdamW's size, so that both have one learning rate.
    """
    matrices, others = list[Tensor](), list[Tensor]()
    for weight in net.parameters():
        (matrices if weight.ndim == 2 and weight is not net.lm_head.weight else others).append(weight)
    return [
        torch.optim.Muon(matrices, rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, rate, betas=_BETAS, weight_decay=0.0),
    ]


def _cross_entropy(logits: Tensor, likely: Tensor, shares: Tensor) -> Tensor:
    """Mean of `[rows, draft vocabulary]` logits against the target's likeliest tokens."""
    logits = logits.float()
    each: Tensor = logits.logsumexp(-1) - (shares.float() * logits.gather(-1, likely)).sum(-1)
    return each.mean()


def _hits(drafted: list[NDArray[np.int64]], best: NDArray[np.int32]) -> NDArray[np.bool_]:
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

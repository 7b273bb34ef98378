"""Logits of an exported head are its reference's; without a norm, or with another boundary, they are not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from drafters import dflash_models, test_dflash, test_medusa, test_mtp, test_peagle
from drafters.eagle3_models import BOUNDARIES, LAYERS, pair
from drafters.eagle31_models import VARIANTS, Reference31
from drafters.test_eagle3 import answer, settings_of, target
from numpy.typing import NDArray
from settings import F32
from tiers import by_tier

import ovspec
from ovspec.drafters.drafter import Drafter
from ovspec.engine.llm_engine import LLMEngine
from ovspec.pipeline.models.head_model import draft_choices
from ovspec_models.heads import export_head, open_head
from ovspec_models.synthetic.layers import rms_norm

# f32 sums of up to 192 products, in other orders; what is left out must change more by far.
TOLERANCE, WRONG = 1e-4, 3e-3
Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Form:
    """A form of head.

    Attributes:
        kind: of head.
        reference: its weights, random ones, and what it computes.
        boundaries: that it reads.
        logits: of the reference, behind a text with the target's states and the first tokens of a draft.
    """

    kind: str
    reference: Callable[[], Any]
    boundaries: tuple[int, ...]
    logits: Callable[[Any, list[int], torch.Tensor, list[int]], torch.Tensor]


def recurrent(made: Any, tokens: list[int], states: torch.Tensor, drafted: list[int]) -> torch.Tensor:
    """Each entry of a draft stands behind the head's own state of the entry before."""
    is_eagle3 = isinstance(made, Reference31)
    features, following, found = made.features(states) if is_eagle3 else states, list(tokens[1:]), []
    for token in drafted:
        own, logits = (made.forward if is_eagle3 else made)(features, torch.tensor(following))
        found.append(logits[-1])
        features = torch.cat([features, own[-1:]])
        following.append(token)
    return torch.stack(found)


def block(made: Any, tokens: list[int], states: torch.Tensor, drafted: list[int]) -> torch.Tensor:
    logits: torch.Tensor = made.logits(tokens, states, len(drafted), drafted)
    return logits


def masks(made: Any, tokens: list[int], states: torch.Tensor, drafted: list[int]) -> torch.Tensor:
    logits: torch.Tensor = made.logits(tokens, states, len(drafted))
    return logits


def dflash(name: str) -> Form:
    return Form("dflash", lambda: test_dflash.reference(name), dflash_models.BOUNDARIES, block)


def eagle3(name: str) -> Form:
    def made() -> Reference31:
        return Reference31(pair().reference.embedding, **VARIANTS[name])

    return Form("eagle3", made, BOUNDARIES, recurrent)


FORMS: dict[str, Form] = {
    **{f"eagle3, {name}": eagle3(name) for name in VARIANTS},
    "peagle": Form("eagle3", lambda: test_peagle.reference("three layers"), BOUNDARIES, masks),
    "dflash": dflash(""),
    **{f"dflash, {name}": dflash(name) for name in test_dflash.VARIANTS},
    **{
        f"mtp, {kind}": Form("mtp", lambda kind=kind: test_mtp.reference(kind), (LAYERS + 1,), recurrent)
        for kind in test_mtp.KINDS
    },
}
FIRST = ("eagle3, norm_output",)


@contextmanager
def without(norm: str, seen: set[str]) -> Iterator[None]:
    """Graphs are made without this norm; the names of all norms go to `seen`."""

    def patched(data: ov.Node, weights: Any, name: str, eps: float) -> ov.Node:
        seen.add(name)
        return data if name == norm else rms_norm(data, weights, name, eps)

    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("ovspec_models.") and getattr(module, "rms_norm", None) is rms_norm:
                patch.setattr(module, "rms_norm", patched)
        yield


def exported(checkpoint: Path, kind: str, folder: Path) -> Drafter:
    export_head(open_head(checkpoint, kind), pair().info, folder, "fp32")
    choices = draft_choices(ovspec.draft_model(folder), pair().info, "dense", "CPU", "native", F32, None)
    assert choices is not None
    return choices.load(pair().info.vocab_size, 32)


def drafted_logits(drafter: Any, boundaries: tuple[int, ...]) -> tuple[list[int], list[int], Logits]:
    """A text, the draft behind it, and the logits that the draft was taken from."""
    found: list[tuple[list[int], list[int], Logits]] = []
    passes: list[Logits] = []

    class Watching(type(drafter)):  # type: ignore[misc]
        def propose(self, sequences: Any, *asked: Any) -> Any:
            passes.clear()
            proposals = super().propose(sequences, *asked)
            if proposals[0].tokens:
                logits = np.concatenate(passes)[-len(proposals[0].tokens) :]
                found.append((list(sequences[0].tokens), proposals[0].tokens, logits))
            return proposals

    forward, corrected = drafter.runner.forward, getattr(drafter, "_corrected", None)

    def watched(batch: Any) -> Any:
        result = forward(batch)
        passes.append(np.array(result.logits)[: 0 if corrected else None])
        return result

    if corrected:
        step = corrected._pass

        def watched_step(drafts: Any) -> Any:
            logits, said = step(drafts)
            passes.append(np.array(logits))
            return logits, said

        corrected._pass = watched_step
    kind, drafter.__class__, drafter.runner.forward = type(drafter), Watching, watched
    try:
        answer(
            LLMEngine(target("llama", boundaries), drafter, "dense", 32), [pair().prompts[0]], settings_of()
        )
    finally:
        drafter.__class__, drafter.runner.forward = kind, forward
    return found[2]  # behind a draft that was judged


def difference(form: Form, made: Any, drafter: Drafter, boundaries: tuple[int, ...]) -> float:
    """The largest one between the logits and the reference's."""
    text, drafted, got = drafted_logits(drafter, boundaries)
    with torch.no_grad():
        of_last = form.boundaries == (LAYERS + 1,)
        states = test_medusa.states(pair(), text) if of_last else pair().states(text, form.boundaries)
        wanted = form.logits(made, text, states[:-1], drafted).numpy()
        # What no draft can have is infinitely unlikely in both.
        return float(np.where(wanted == got, 0.0, np.abs(wanted - got)).max())


@pytest.mark.parametrize("name", by_tier(FORMS, FIRST))
def test_logits_are_the_references_with_all_norms_and_the_right_boundaries(name: str, tmp_path: Path) -> None:
    form, norms = FORMS[name], set[str]()
    drafter: Drafter | None
    made = form.reference()
    checkpoint = made.save(tmp_path / "checkpoint")
    with without("", norms):
        drafter = exported(checkpoint, form.kind, tmp_path / "whole")
    assert len(norms) >= 4
    assert difference(form, made, drafter, form.boundaries) < TOLERANCE
    for place, boundary in enumerate(form.boundaries):
        shifted = (*form.boundaries[:place], boundary - 1, *form.boundaries[place + 1 :])
        drafter = exported(checkpoint, form.kind, tmp_path / f"shifted {place}")
        assert difference(form, made, drafter, shifted) > WRONG, f"boundary {boundary} shifted"
    for number, norm in enumerate(sorted(norms)):
        refusal, drafter = "", None
        with without(norm, set()):
            try:
                drafter = exported(checkpoint, form.kind, tmp_path / str(number))
            except ValueError as error:  # a norm of the target's states, which the graph of them shows
                refusal = str(error)
        if drafter is None:
            assert "has no norm where config.json says" in refusal
        else:
            assert difference(form, made, drafter, form.boundaries) > WRONG, f"{norm} left out"

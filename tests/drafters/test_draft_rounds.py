"""Drafts of a draft model are what it draws for the text as it stands, whatever was drafted before."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino_genai import GenerationConfig
from settings import F32

from ovspec.cache.cache import CachedSequence
from ovspec.drafters import AssistantDrafter
from ovspec.generation.generation_config import GenerationSettings, resolve, updated
from ovspec.generation.sequence import Sequence
from ovspec.operations.backends import Backends
from ovspec.passes.pass_result import PassResult
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner

VOCAB = 4096
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "rng_seed": 5}


def settings_of(**options: Any) -> GenerationSettings:
    given = {"max_new_tokens": 90, "ignore_eos": True, "num_assistant_tokens": 4, **options}
    return resolve(updated(GenerationConfig(), given), (), has_draft=True)


def drafts(drafter: AssistantDrafter, length: int, anew: bool, **options: Any) -> list[list[int]]:
    """For a text that goes on with some of each draft: none, one or all of it.

    Args:
        length: of the text before them.
        anew: whether the draft model reads the whole text for each of them.
    """
    settings = settings_of(**options)
    text, found = np.random.default_rng(0).integers(2, VOCAB, length).tolist(), []
    sequence = Sequence.start(text, 4000, settings, 0)
    for number in range(12):
        tokens = drafter.propose([sequence], [(4, 2, 4)[number % 3]])[0].tokens
        found.append(tokens)
        sequence.append([*tokens[: (0, 4, 1, 3)[number % 4]], 7 + number])
        if anew:
            drafter.release(sequence)
    drafter.release(sequence)
    return found


def drafter_of(
    demo_ir: Path, vocab_size: int = VOCAB, at_once: bool = True, **properties: str
) -> AssistantDrafter:
    """The draft model, whose passes draft several tokens or one."""
    folder = demo_ir / "draft"
    backends = replace(Backends.resolve(folder, properties={**F32, **properties}), drafts=at_once)
    drafter = AssistantDrafter(ModelRunner(folder, backends=backends), vocab_size, 512)
    assert drafter.runner.drafts == at_once
    drafter.limit_cache(0)  # nothing of one round is found in the next
    return drafter


@pytest.mark.parametrize(
    ("vocab_size", "length", "options", "properties"),
    [
        (VOCAB, 45, {}, {}),
        (VOCAB, 45, SAMPLED, {"KV_CACHE_PRECISION": "u8"}),
        (900, 45, {}, {"KV_CACHE_PRECISION": "u8"}),  # ids that only the draft model has are not drafted
        (900, 45, SAMPLED, {}),
        (VOCAB, 45, {**SAMPLED, "top_k": 20, "top_p": 0.8}, {}),
        (900, 45, {**SAMPLED, "temperature": 1.3, "top_p": 0.9, "min_p": 0.02}, {}),
        (VOCAB, 45, {**SAMPLED, "acceptance_threshold": 0.5}, {}),
        (VOCAB, 45, {**SAMPLED, "presence_penalty": 1.0}, {}),
        (VOCAB + 64, 45, {}, {}),
        (VOCAB + 64, 45, {**SAMPLED, "temperature": 1.7}, {}),
        (VOCAB, 45, {"assistant_confidence_threshold": 0.2, "num_assistant_tokens": None}, {}),
        (VOCAB, 45, {"repetition_penalty": 1.3}, {}),
        (VOCAB, 2030, {}, {}),  # the cache grows
    ],
)
def test_they_are_those_of_the_text(
    demo_ir: Path, vocab_size: int, length: int, options: dict[str, Any], properties: dict[str, str]
) -> None:
    drafter = drafter_of(demo_ir, vocab_size, **properties)
    found = drafts(drafter, length, anew=False, **options)
    assert found == drafts(drafter, length, anew=True, **options)
    assert all(found) and max(map(max, found)) < vocab_size
    step_by_step = drafter_of(demo_ir, vocab_size, at_once=False, **properties)
    assert found == drafts(step_by_step, length, anew=False, **options)


def test_several_texts_draft_in_one_pass(demo_ir: Path) -> None:
    """Each as many tokens as it is asked for; one that penalises takes a pass for each of its tokens."""
    drafter, rng = drafter_of(demo_ir), np.random.default_rng(1)
    texts = [rng.integers(2, VOCAB, length).tolist() for length in (20, 64, 33, 41, 30)]
    wanted, passes = (2, 5, 1, 3, 4), list[tuple[int, ...]]()
    options = ({}, {}, {}, {**SAMPLED, "repetition_penalty": 1.3}, SAMPLED)
    settings = [settings_of(**given) for given in options]

    def sequences() -> list[Sequence]:
        return [Sequence.start(text, 4000, of, 0) for text, of in zip(texts, settings, strict=True)]

    alone = [drafter.propose([one], [count])[0] for one, count in zip(sequences(), wanted, strict=True)]
    together = sequences()
    for sequence in together:
        drafter.propose([sequence], [1])  # has read its text
        sequence.trim_caches()
    forward = drafter.runner.forward

    def counted(batch: SequenceOf[Rows]) -> PassResult:
        passes.append(tuple(rows.drafts for rows in batch))
        return forward(batch)

    drafter.runner.forward = counted  # type: ignore[method-assign]
    assert [found.tokens for found in drafter.propose(together, wanted)] == [one.tokens for one in alone]
    assert passes == [(5, 4, 2, 1), (0,), (0,), (0,)]
    assert [len(found.tokens) for found in alone] == list(wanted)


@pytest.mark.parametrize("drafts", [(1, 2), (2, 0)])
def test_texts_in_another_order_are_refused(demo_ir: Path, drafts: tuple[int, int]) -> None:
    runner, tokens = drafter_of(demo_ir).runner, np.arange(3)
    with pytest.raises(ValueError, match=r"expected 1 or more each, the most first"):
        runner.forward([Rows(CachedSequence(), tokens, drafts=n, vocab_size=VOCAB) for n in drafts])

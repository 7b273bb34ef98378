"""Drafts of a draft model are what it draws for the text as it stands, whatever was drafted before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino_genai import GenerationConfig
from settings import F32

from ovspec.drafters import AssistantDrafter
from ovspec.generation.generation_config import resolve, updated
from ovspec.generation.sequence import Sequence
from ovspec.runner.model_runner import ModelRunner

VOCAB = 4096
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "rng_seed": 5}


def drafts(drafter: AssistantDrafter, length: int, anew: bool, **options: Any) -> list[list[int]]:
    """For a text that goes on with some of each draft: none, one or all of it.

    Args:
        length: of the text before them.
        anew: whether the draft model reads the whole text for each of them.
    """
    given = {"max_new_tokens": 90, "ignore_eos": True, "num_assistant_tokens": 4, **options}
    settings = resolve(updated(GenerationConfig(), given), (), has_draft=True)
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


@pytest.mark.parametrize(
    ("vocab_size", "length", "options", "properties"),
    [
        (VOCAB, 45, {}, {}),
        (VOCAB, 45, SAMPLED, {"KV_CACHE_PRECISION": "u8"}),
        (900, 45, SAMPLED, {}),  # ids that only the draft model has are not drafted
        (VOCAB + 64, 45, {**SAMPLED, "temperature": 1.7}, {}),
        (VOCAB, 2030, {}, {}),  # the cache grows
    ],
)
def test_they_are_those_of_the_text(
    demo_ir: Path, vocab_size: int, length: int, options: dict[str, Any], properties: dict[str, str]
) -> None:
    drafter = AssistantDrafter(
        ModelRunner(demo_ir / "draft", properties={**F32, **properties}), vocab_size, 512
    )
    drafter.limit_cache(0)  # nothing of one round is found in the next
    found = drafts(drafter, length, anew=False, **options)
    assert found == drafts(drafter, length, anew=True, **options)
    assert all(found) and max(map(max, found)) < vocab_size

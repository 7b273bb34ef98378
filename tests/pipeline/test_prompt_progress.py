"""`prompt_progress`: how much of the prompts has been read, pass by pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from settings import F32

import ovspec

DOG, CAT = "Once upon a time there was a dog. " * 30, "The cat " * 70


@pytest.fixture(scope="module")
def pipeline(demo_ir: Path) -> ovspec.LLMPipeline:
    draft = ovspec.draft_model(demo_ir / "draft")
    return ovspec.LLMPipeline(demo_ir, "CPU", draft_model=draft, max_num_batched_tokens=64, **F32)


def test_every_pass_that_reads_is_reported(pipeline: ovspec.LLMPipeline) -> None:
    plain = pipeline.generate(CAT, max_new_tokens=4)
    seen: list[tuple[int, int]] = []
    text = pipeline.generate(DOG, max_new_tokens=4, prompt_progress=lambda *numbers: seen.append(numbers))
    total = seen[0][1]
    assert seen == [(min(read, total), total) for read in range(0, total + 64, 64)] and len(seen) > 4
    assert text == pipeline.generate(DOG, max_new_tokens=4)
    seen.clear()
    both = pipeline.generate([DOG, CAT], max_new_tokens=4, prompt_progress=lambda *pair: seen.append(pair))
    assert both.texts == [text, plain]
    assert seen[0][0] == 0 and seen[-1][0] == seen[-1][1] > total
    assert seen == sorted(seen)


def test_what_it_raises_ends_the_call_alone(pipeline: ovspec.LLMPipeline) -> None:
    def refuse(read: int, total: int) -> None:
        if read:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        pipeline.generate("The bird " * 90, max_new_tokens=4, prompt_progress=refuse)
    assert pipeline.engine.is_idle and pipeline.generate("The bird", max_new_tokens=4)

"""Answers that end early: cancelled by their reader, or where prompt and answer fill the cache."""

from __future__ import annotations

from pathlib import Path

import openvino_genai
import pytest
from settings import F32

import ovspec
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.generation.generation_config import resolve, updated

PROMPT = "Once upon a time there was a little girl named Lily. She"


def pipeline(folder: Path, draft: str | None) -> ovspec.LLMPipeline:
    model = ovspec.draft_model(folder / draft) if draft else None
    drafter = "assistant" if draft else "none"
    return ovspec.LLMPipeline(folder, "CPU", draft_model=model, drafter=drafter, **F32)


@pytest.mark.parametrize("draft", [None, "draft"])
def test_a_cancelled_text_ends_with_its_step(demo_ir: Path, draft: str | None) -> None:
    made, pieces = pipeline(demo_ir, draft), list[str]()

    def streamer(piece: str) -> openvino_genai.StreamingStatus:
        pieces.append(piece)
        full = len(pieces) == 9
        return openvino_genai.StreamingStatus.CANCEL if full else openvino_genai.StreamingStatus.RUNNING

    options = {"max_new_tokens": 60, "ignore_eos": True}
    whole = made.generate(PROMPT, **options)
    cancelled = made.generate([PROMPT], streamer=streamer, **options)
    assert len(pieces) == 9 and whole.startswith("".join(pieces))
    assert cancelled.perf_metrics.get_num_generated_tokens() < 30
    assert made.generate(PROMPT, **options) == whole  # also from the blocks that it left in the prefix cache


def test_tokens_of_a_full_cache_are_handed_out(demo_ir: Path) -> None:
    """An answer ends where prompt and answer fill it."""
    engine: LLMEngine = pipeline(demo_ir, "draft").engine.engine
    engine.target.limit_cache(4 * engine.target.cache.block_bytes, 0)
    given = {"max_new_tokens": 500, "ignore_eos": True, "num_assistant_tokens": 4}
    settings = resolve(updated(openvino_genai.GenerationConfig(), given), (), has_draft=True)
    engine.add_request(Request("long", [5, 6, 7, 8], settings, "dense"))
    found, errors = 0, []
    while engine.has_unfinished_requests:
        for output in engine.step():
            assert not (output.token_ids and output.error)
            found += len(output.token_ids)
            errors += [output.error] if output.error else []
    assert found == 4 * engine.target.block_size - 4 and not errors

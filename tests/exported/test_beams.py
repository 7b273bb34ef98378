"""Beams of models whose caches hold more than keys and values fork like others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from openvino_genai import GenerationConfig
from settings import F32
from tiers import by_tier
from tiny_checkpoints import LONG_FROM, TINY, WINDOW, random_model

from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.generation.generation_config import resolve, updated
from ovspec.operations.attention_config import AttentionConfig
from ovspec.runner.model_runner import ModelRunner
from ovspec.sampling.beam_search import BeamSearch, log_softmax

pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

NEW_TOKENS = 14
# States of linear attention; a text that crosses the limit of long RoPE; windows.
FAMILIES = {"Qwen3.5": 70, "Granite 4 hybrid": 33, "Phi-3": LONG_FROM - 6, "Mistral": WINDOW - 2}


@pytest.mark.parametrize(
    ("name", "attention"),
    by_tier(
        [(name, kind) for name in FAMILIES for kind in ("native", "stock")],
        [("Qwen3.5", "native"), ("Phi-3", "native")],
    ),
)
def test_beams_are_those_of_passes_over_whole_texts(
    exported_family: Callable[[str], Path], prompt: NDArray[np.int64], name: str, attention: str
) -> None:
    runner = ModelRunner(exported_family(name), attention=AttentionConfig(attention), properties=F32)
    tokens, model = prompt[: FAMILIES[name]].tolist(), random_model(TINY[name])
    given = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    settings = resolve(updated(GenerationConfig(), given), (), has_draft=False)
    assert settings.beams is not None
    search = BeamSearch.start(settings.beams, NEW_TOKENS, 0)
    while search.live:
        rows = {}
        for beam in search.live:
            text = [*tokens, *(step.token for step in beam.path)]
            with torch.no_grad():
                rows[beam] = log_softmax(model(torch.tensor([text])).logits[0, -1].numpy())
        search = search.step(rows, lambda parent, token: False)
    engine = LLMEngine(runner, None)
    for request in (Request("beams", tokens, settings), Request("beside", tokens, settings)):
        engine.add_request(request)
    found = {}
    while engine.has_unfinished_requests:
        found |= {output.request_id: output for output in engine.step()}
    for output in found.values():
        assert output.error is None
        assert [beam.token_ids for beam in output.beams] == [
            [step.token for step in one.hypothesis.path] for one in search.ended
        ]
        assert [beam.score for beam in output.beams] == pytest.approx(
            [one.score for one in search.ended], abs=1e-3
        )
    assert not engine.kv_cache_usage
    assert runner.recurrent is None or runner.recurrent.held == 0

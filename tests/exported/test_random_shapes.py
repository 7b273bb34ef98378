"""Random small architectures, exported by ovspec, give the tokens of transformers: none is refused."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from settings import F32
from tiny_checkpoints import TINY, random_model, save_checkpoint

import ovspec
from ovspec_models import export_model

torch = pytest.importorskip("torch", reason="needs ovspec[export]")
pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

NEW_TOKENS = 16


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes of a decoder; rotation pairs the values of a head, so that their number is even."""
    kv_heads = draw(st.integers(1, 3))
    return {
        "head_dim": 2 * draw(st.integers(4, 68)),
        "hidden_size": draw(st.integers(16, 140)),
        "intermediate_size": draw(st.integers(3, 200)),
        "num_key_value_heads": kv_heads,
        "num_attention_heads": kv_heads * draw(st.integers(1, 5)),
    }


@pytest.mark.slow
@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(family=st.sampled_from(["Qwen3", "Gemma", "Mixtral"]), changes=sizes())
def test_greedy_tokens(family: str, changes: dict[str, Any], prompt: NDArray[np.int64]) -> None:
    tiny = replace(TINY[family], sizes={**TINY[family].sizes, **changes})
    model = random_model(tiny)
    # torch's grouped product of experts refuses rows that are no multiple of 16 bytes.
    model.set_experts_implementation("eager")
    with tempfile.TemporaryDirectory() as made:
        checkpoint = save_checkpoint(model, Path(made) / "checkpoint")
        folder = export_model(checkpoint, Path(made) / "ir", weight_format="fp32")
        pipe = ovspec.LLMPipeline(folder, "CPU", drafter="prompt_lookup", **F32)
        result = pipe.generate(
            ov.Tensor(prompt[None, :60]), max_new_tokens=NEW_TOKENS, ignore_eos=True, num_assistant_tokens=4
        )
    tokens = list(result.tokens[0])
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt[:60].tolist(), *tokens[:-1]]])).logits[0, 59:]
    # Where two tokens are as probable but for the order of sums, either is right.
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert bool((logits.max(1).values - chosen < 1e-4 * logits.std()).all())
    assert len(tokens) == NEW_TOKENS

"""Texts beyond the positions that a model was trained with, as YaRN and linear scaling are documented."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from settings import F32
from tiny_checkpoints import TINY, Tiny, random_model, save_checkpoint

import ovspec
from ovspec_models import ModelInfo, export_model

torch = pytest.importorskip("torch", reason="needs ovspec[export]")
pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

TRAINED, FACTOR, NEW_TOKENS = 64, 4.0, 24
YARN = {"rope_type": "yarn", "factor": FACTOR, "original_max_position_embeddings": TRAINED}


def scaled(family: str, rope: dict[str, Any]) -> Tiny:
    """A tiny model of few positions, whose config.json scales them."""
    kept = {name: value for name, value in TINY[family].sizes.items() if name != "rope_parameters"}
    return replace(TINY[family], sizes={**kept, "max_position_embeddings": TRAINED, "rope_parameters": rope})


def exported(tiny: Tiny, folder: Path) -> Path:
    checkpoint = save_checkpoint(random_model(tiny), folder / "checkpoint")
    return export_model(checkpoint, folder / "ir", weight_format="fp32")


def check_greedy(tiny: Tiny, folder: Path, prompt: NDArray[np.int64]) -> None:
    """Every greedy choice of the pipeline is that of transformers, which computes all of them in one pass."""
    pipe = ovspec.LLMPipeline(folder, "CPU", drafter="prompt_lookup", **F32)
    result = pipe.generate(
        ov.Tensor(prompt[None]), max_new_tokens=NEW_TOKENS, ignore_eos=True, num_assistant_tokens=4
    )
    tokens = list(result.tokens[0])
    assert len(tokens) == NEW_TOKENS
    with torch.no_grad():
        text = torch.tensor([[*prompt.tolist(), *tokens[:-1]]])
        logits = random_model(tiny)(text).logits[0, len(prompt) - 1 :]
    assert logits.argmax(-1).tolist() == tokens


@pytest.mark.parametrize(
    ("family", "rope"),
    [
        pytest.param("Qwen3", {"rope_theta": 1e4, **YARN}, id="yarn"),
        pytest.param(
            "Qwen2",
            {"rope_theta": 1e4, "type": "linear", "factor": FACTOR},
            id="linear",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_texts_go_on_behind_the_trained_positions(
    family: str, rope: dict[str, Any], prompt: NDArray[np.int64], tmp_path: Path
) -> None:
    tiny = scaled(family, rope)
    folder = exported(tiny, tmp_path)
    assert ModelInfo.read(folder).max_position_embeddings == TRAINED * FACTOR
    assert len(prompt) > 2 * TRAINED
    check_greedy(tiny, folder, prompt)


@pytest.mark.slow
def test_dynamic_scaling_ends_at_the_trained_positions(prompt: NDArray[np.int64], tmp_path: Path) -> None:
    tiny = scaled("Llama", {"rope_theta": 1e4, "rope_type": "dynamic", "factor": FACTOR})
    folder = exported(tiny, tmp_path)
    check_greedy(tiny, folder, prompt[: TRAINED - NEW_TOKENS])
    pipe = ovspec.LLMPipeline(folder, "CPU", **F32)
    with pytest.raises(ValueError, match=r"has 64 tokens, the model 64 positions .*type dynamic"):
        pipe.generate(ov.Tensor(prompt[None, :TRAINED]), max_new_tokens=1)
    with pytest.raises(ValueError, match=r"max_context=65: the model has 64 positions; .*type dynamic"):
        ovspec.LLMPipeline(folder, "CPU", max_context=65)

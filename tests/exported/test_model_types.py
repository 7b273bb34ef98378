"""No type of model that can be exported is silently wrong: it gives transformers' tokens, or is refused.

The types are those of the installed optimum-intel, so that a newer one is tried with what it brings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from settings import F32
from tiny_checkpoints import save_checkpoint, with_noise
from tiny_types import tiny_config

import ovspec
from ovspec_models import export_model
from ovspec_models.families import family_of
from ovspec_models.folder.model_types import LIKE

torch = pytest.importorskip("torch", reason="needs ovspec[export]")
transformers = pytest.importorskip("transformers", reason="needs ovspec[export]")
pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

NEW_TOKENS = 24
# How much smaller than the largest logit that of a chosen token may be, of the logits' spread.
TOLERANCE = 2e-4
# What is refused in these versions, and the words that say why. Others must be right.
REFUSED = {
    "dbrx": "transformers<=4.57.6",
    "bitnet": "transformers<=4.57.6",
    "exaone4": "transformers<=4.57.6",
    "deepseek_v2": "keeps latents in place of keys and values",
    "deepseek_v3": "keeps latents in place of keys and values",
    "falcon_mamba": "no attention",
    "mamba": "no attention",
    "zamba2": "transformers<=4.57.6",
    "qwen3_5_moe_text": "transformers<=5.2",
    "gpt_neox_japanese": "writes their attention out",
    "xglm": "writes their attention out",
}
# Text models of others, and encoders with decoders: no causal language model of their own.
_OTHERS = ("qwen3_vl_text", "llama4")


def model_types() -> list[str]:
    """Types that optimum-intel or ovspec exports, without those that `test_families.py` tries."""
    from optimum.exporters.tasks import TasksManager
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    task = "text-generation-with-past"
    supported = TasksManager._SUPPORTED_MODEL_TYPE.items()
    known = {kind for kind, tasks in supported if task in tasks.get("openvino", {})} | {*LIKE}
    seq2seq = transformers.models.auto.modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    return sorted(kind for kind in known & {*CAUSAL} - {*seq2seq, *_OTHERS} if family_of(kind) is None)


@pytest.fixture
def text() -> NDArray[np.int64]:
    """100 tokens i64 that come again and again, longer than any window, so that lookups find drafts."""
    return np.tile(np.random.default_rng(0).integers(2, 4096, 40), 3)[:100]


def is_best(model: Any, text: NDArray[np.int64], tokens: list[int]) -> bool:
    """Whether each of the tokens has the largest logit behind `text`, in one pass of transformers."""
    with torch.no_grad():
        logits = model(torch.tensor([[*text.tolist(), *tokens[:-1]]])).logits[0, len(text) - 1 :]
    behind = logits.max(1).values - logits[range(len(tokens)), tokens]
    return bool(behind.max() <= TOLERANCE * logits.std())


def served(checkpoint: Path, out: Path, text: NDArray[np.int64]) -> list[list[int]] | str:
    """The tokens behind `text`, plain and with drafts, or why the model is refused."""
    tokens = list[list[int]]()
    try:
        folder = export_model(checkpoint, out, weight_format="fp32")
        for drafter in ("none", "prompt_lookup"):
            pipe = ovspec.LLMPipeline(folder, "CPU", drafter=drafter, **F32)
            options = {"num_assistant_tokens": 4} if drafter != "none" else {}
            result = pipe.generate(
                ov.Tensor(text[None]), max_new_tokens=NEW_TOKENS, ignore_eos=True, **options
            )
            tokens.append(list(result.tokens[0]))
    except (ValueError, RuntimeError) as error:
        return str(error)
    return tokens


@pytest.mark.sweep
@pytest.mark.parametrize("kind", model_types())
def test_tokens_or_a_refusal(kind: str, tmp_path: Path, text: NDArray[np.int64]) -> None:
    torch.manual_seed(3)
    try:
        model = with_noise(transformers.AutoModelForCausalLM.from_config(tiny_config(kind)).float().eval())
    except Exception as error:
        if kind not in REFUSED:
            raise
        pytest.skip(f"transformers makes no tiny one: {error}")
    checkpoint = save_checkpoint(model, tmp_path / "checkpoint")
    found = served(checkpoint, tmp_path / "ir", text)
    if isinstance(found, str):
        assert "\n" not in found
        assert REFUSED.get(kind, "nothing: it must be served") in found
        return
    assert all(is_best(model, text, tokens) for tokens in found), "wrong without a word"
    assert kind not in REFUSED, "it is served: take it out of REFUSED"

"""No type of model that can be exported is silently wrong: it gives transformers' tokens, or is refused.

The types are those of the installed optimum-intel, so that a newer one is tried with what it brings. What
came of each stands in the second table of docs/families.md; `OVSPEC_WRITE_DOCS=1`, in one process, writes it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai
import pytest
from numpy.typing import NDArray
from settings import F32
from tiny_checkpoints import save_checkpoint, with_noise
from tiny_types import tiny_config

import ovspec
from ovspec_models import ModelInfo, export_model
from ovspec_models.families import FAMILIES, family_of
from ovspec_models.folder.model_types import LIKE

torch = pytest.importorskip("torch", reason="needs ovspec[export]")
transformers = pytest.importorskip("transformers", reason="needs ovspec[export]")
pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

NEW_TOKENS = 24
SPARSE = ovspec.CommitVerify(ovspec.SparseVerify(L0=16, rho=0.1), interval=5)
# How a model is run, and how many texts at once. Chunks of 40 tokens end amid a text, and amid a window.
WAYS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({"drafter": "none"}, 1),
    "drafted": ({"drafter": "prompt_lookup", "max_num_batched_tokens": 40}, 2),
    "sparse": ({"drafter": "prompt_lookup", "max_num_batched_tokens": 40, "verify": SPARSE}, 2),
}
# How much smaller than the largest logit that of a chosen token may be, of the logits' spread.
TOLERANCE = 2e-4
# What is refused in these versions, and the words that say why. Others must be right.
_FOR_4_57, _FOR_5_2 = "transformers<=4.57.6", "transformers<=5.2"
_LATENTS = "transformers' own keeps latents in place of keys and values"
_NO_ATTENTION = "they have no attention, and so no keys and values to page"
_WRITTEN_OUT = "transformers writes their attention out"
REFUSED = {
    **dict.fromkeys(("dbrx", "bitnet", "exaone4", "zamba2"), _FOR_4_57),
    "qwen3_5_moe_text": _FOR_5_2,
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), _LATENTS),
    **dict.fromkeys(("falcon_mamba", "mamba"), _NO_ATTENTION),
    **dict.fromkeys(("gpt_neox_japanese", "xglm"), _WRITTEN_OUT),
}
DOCS = Path(__file__).parents[2] / "docs" / "families.md"
BEGIN, END = "<!-- table: written by tests/exported/test_model_types.py -->\n", "<!-- end of the types -->\n"
HEAD = "| what came of it | `model_type` |\n|---|---|\n"
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
def texts() -> list[NDArray[np.int64]]:
    """Two, of 100 and 61 tokens i64 that come again, longer than any window, so that lookups find drafts."""
    draw = [np.random.default_rng(seed).integers(2, 4096, 40) for seed in range(2)]
    return [np.tile(phrase, 3)[:length] for phrase, length in zip(draw, (100, 61), strict=True)]


def is_best(model: Any, text: NDArray[np.int64], tokens: list[int]) -> bool:
    """Whether each of the tokens has the largest logit behind `text`, in one pass of transformers."""
    with torch.no_grad():
        logits = model(torch.tensor([[*text.tolist(), *tokens[:-1]]])).logits[0, len(text) - 1 :]
    behind = logits.max(1).values - logits[range(len(tokens)), tokens]
    return bool(behind.max() <= TOLERANCE * logits.std())


def padded(texts: list[NDArray[np.int64]]) -> openvino_genai.TokenizedInputs:
    """The texts as one batch."""
    ids = np.zeros((len(texts), max(map(len, texts))), np.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    mask = np.arange(ids.shape[1]) < np.array([[len(text)] for text in texts])
    return openvino_genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(mask.astype(np.int64)))


def served(
    checkpoint: Path, out: Path, texts: list[NDArray[np.int64]]
) -> tuple[str, list[tuple[int, list[int]]]]:
    """What becomes of a model, in the table's words, and answers with the number of their text.

    None where it is refused: then the words are those of the refusal.
    """
    found = list[tuple[int, list[int]]]()
    try:
        folder = export_model(checkpoint, out, weight_format="fp32")
        for arguments, together in WAYS.values():
            pipe = ovspec.LLMPipeline(folder, "CPU", **arguments, **F32)
            drafts = {} if arguments["drafter"] == "none" else {"num_assistant_tokens": 4}
            for begin in range(0, len(texts), together):
                some = padded(texts[begin : begin + together])
                result = pipe.generate(some, max_new_tokens=NEW_TOKENS, ignore_eos=True, **drafts)
                found += [(begin + i, list(tokens)) for i, tokens in enumerate(result.tokens)]
    except (ValueError, RuntimeError) as error:
        return str(error), []
    select = sum(report.count for report in pipe.runner.reports if report.name == "SelectBlocks")
    if not select:
        return "exact; dense", found
    assert result.perf_metrics.get_attention_density() < 1, "no pass was sparse"
    whole = select == ModelInfo.read(folder).num_kv_layers
    return f"exact; sparse{'' if whole else ' in layers without a window'}", found


def in_docs() -> dict[str, str]:
    """What the table says of every type."""
    table = DOCS.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].removeprefix(HEAD)
    rows = (row.strip("| ").split(" | ") for row in table.splitlines())
    return {name.strip("` "): result for result, names in rows for name in names.split(",")}


def write_docs(results: dict[str, str]) -> None:
    """Write the table anew, a row for each result."""
    before, _, rest = DOCS.read_text(encoding="utf-8").partition(BEGIN)
    table = HEAD
    for result in sorted({*results.values()}):
        names = sorted(kind for kind, found in results.items() if found == result)
        table += f"| {result} | {', '.join(f'`{name}`' for name in names)} |\n"
    DOCS.write_text(f"{before}{BEGIN}{table}{END}{rest.partition(END)[2]}", encoding="utf-8")


def test_docs_hold_every_type() -> None:
    listed = in_docs()
    assert sorted(listed) == model_types()
    assert len(listed) + sum(len(family.model_types) for family in FAMILIES) >= 70
    refused = {kind: result for kind, result in listed.items() if result.startswith("refused")}
    assert refused == {kind: f'refused: "{words}"' for kind, words in REFUSED.items()}


@pytest.mark.sweep
@pytest.mark.parametrize("kind", model_types())
def test_tokens_or_a_refusal(kind: str, tmp_path: Path, texts: list[NDArray[np.int64]]) -> None:
    torch.manual_seed(3)
    model = with_noise(transformers.AutoModelForCausalLM.from_config(tiny_config(kind)).float().eval())
    checkpoint = save_checkpoint(model, tmp_path / "checkpoint")
    result, answers = served(checkpoint, tmp_path / "ir", texts)
    if not answers:
        assert "\n" not in result
        assert REFUSED.get(kind, "nothing: it must be served") in result
        result = f'refused: "{REFUSED[kind]}"'
    else:
        assert all(is_best(model, texts[number], tokens) for number, tokens in answers), (
            "wrong without a word"
        )
        assert kind not in REFUSED, "it is served: take it out of REFUSED"
    if os.environ.get("OVSPEC_WRITE_DOCS"):
        write_docs({**in_docs(), kind: result})
    assert in_docs().get(kind) == result, "write it anew with OVSPEC_WRITE_DOCS=1"

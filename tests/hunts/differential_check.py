"""Runs a random model by ovspec and by transformers, and says where they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import openvino as ov
import openvino_genai
from huggingface_hub.errors import StrictDataclassError
from hunts.differential_cases import Case, Setting
from numpy.typing import NDArray
from tiny_checkpoints import VOCAB, random_model, save_checkpoint

import ovspec
from ovspec.drafters import Auto, LayerSkip, SparseSelf
from ovspec.errors import raised_by_us
from ovspec.proofs.reference_check import EXACT
from ovspec_models import export_model

TOKENS = 24
_LENGTHS = (7, 45, 130)
_SPARSE = ovspec.SparseVerify(L0=32, rho=0.1)
_COMMIT = ovspec.CommitVerify(_SPARSE)
#: Of the logits' spread: what a token's logit may lie below the largest of the reference. f32 products that
#: are added in another order differ by some 1e-5.
SLACK = 2e-3
DRAFTERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "prompt_lookup": lambda draft: {"drafter": "prompt_lookup"},
    "suffix": lambda draft: {"drafter": "suffix"},
    "sparse_self": lambda draft: {"drafter": SparseSelf(_SPARSE)},
    "layer_skip": lambda draft: {"drafter": LayerSkip(share=0.4)},
    "assistant": lambda draft: {"draft_model": draft, "drafter": "assistant"},
    "trees": lambda draft: {"draft_model": draft, "drafter": "assistant"},
    "auto": lambda draft: {"draft_model": draft, "drafter": Auto()},
}


#: Logits f64 `[tokens, vocab]` of a text.
Logits: TypeAlias = Callable[[list[int]], NDArray[np.float64]]
#: The same from a row on.
LogitsFromRow: TypeAlias = Callable[[list[int], int], NDArray[np.float64]]


class RefusedError(Exception):
    """The model or the setting is refused, with a reason of one line."""


@dataclass(frozen=True)
class Difference:
    """What differs: its kind, which stays the same while a case is made smaller, and a description."""

    kind: str
    text: str


def prompts(vocab: int) -> list[NDArray[np.int64]]:
    """Prompts of several lengths, with phrases that come again."""
    rng = np.random.default_rng(5)
    phrases = rng.integers(2, min(vocab, VOCAB), (5, 10))
    return [phrases[rng.integers(0, 5, 15)].reshape(-1)[:length] for length in _LENGTHS]


def export(case: Case, folder: Path) -> Path:
    """Export a case below a new folder.

    Raises:
        RefusedError: the sizes do not go together in transformers, or the exporter refuses the model.
    """
    try:
        model = random_model(case.tiny)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise RefusedError(f"transformers: {_line(error)}") from error
    group = {"group_size": 16 if case.family != "Cohere" else -1} if case.weights == "int4" else {}
    try:
        checkpoint = save_checkpoint(model, folder / "checkpoint")
        return export_model(checkpoint, folder / "ir", weight_format=case.weights, **group)
    except (RuntimeError, ValueError) as error:
        raise _refusal(error) from error


def differences(case: Case, ir: Path, draft: Path, counts: Counter[str]) -> list[Difference]:
    """What differs from transformers, and with drafts from plain decoding."""
    asked = prompts(case.tiny.sizes["vocab_size"])
    found = []
    plain = _generated(_pipeline(case, ir, drafter="none", **EXACT), asked, 1)
    # What rounding changes is the exporter's: OpenVINO runs the same rounded weights.
    name = "transformers" if case.weights == "fp32" else "OpenVINO"
    reference = _of_transformers(case) if case.weights == "fp32" else _of_openvino(ir)
    found += _against(_from_row(case, reference), name, asked, plain, counts)
    default = _pipeline(case, ir, drafter="none")
    promised = default.runner.identity_breakers == ()
    plain = _generated(default, asked, 1)
    del default
    for setting in case.settings:
        try:
            drafting = _drafting(case, ir, draft, setting)
            got = _generated(drafting, asked, setting.together, **setting.options)
        except RefusedError as error:
            counts[f"refused: {str(error)[:60]}"] += 1
            continue
        if not promised or drafting.runner.identity_breakers:
            counts["not promised"] += 1
            continue
        counts["drafted texts"] += len(got)
        for number, (one, other) in enumerate(zip(got, plain, strict=True)):
            if one != other:
                found.append(Difference("drafted", f"{setting}, prompt {number}: {one} instead of {other}"))
                break
    return found


def _of_transformers(case: Case) -> Logits:
    import torch

    model = random_model(case.tiny)

    def logits(text: list[int]) -> NDArray[np.float64]:
        with torch.no_grad():
            found: NDArray[np.float64] = model(torch.tensor([text])).logits[0].numpy().astype(np.float64)
        return found

    return logits


def _of_openvino(ir: Path) -> Logits:
    """Of the graph as it was exported, in one pass over a text."""
    core = ov.Core()
    model = core.read_model(ir / "openvino_model.xml")
    request = core.compile_model(model, "CPU", dict(EXACT)).create_infer_request()
    names = {name for port in request.model_inputs for name in port.get_names()}

    def logits(text: list[int]) -> NDArray[np.float64]:
        inputs = {
            "input_ids": np.array([text], np.int64),
            "attention_mask": np.ones((1, len(text)), np.int64),
            "position_ids": np.arange(len(text))[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        request.reset_state()
        request.infer({name: value for name, value in inputs.items() if name in names})
        return np.array(request.get_tensor("logits").data[0], np.float64)

    return logits


def _from_row(case: Case, reference: Logits) -> LogitsFromRow:
    """Rows of a text; long RoPE rotates all of a text that is longer than its limit in another way."""
    rope = case.tiny.sizes.get("rope_parameters") or {}
    limit = rope["original_max_position_embeddings"] if rope.get("rope_type") == "longrope" else 0

    def rows(text: list[int], first: int) -> NDArray[np.float64]:
        if first < limit < len(text):
            return np.stack([reference(text[: row + 1])[row] for row in range(first, len(text))])
        return reference(text)[first:]

    return rows


def _against(
    reference: LogitsFromRow,
    name: str,
    asked: list[NDArray[np.int64]],
    got: list[list[int]],
    counts: Counter[str],
) -> list[Difference]:
    for number, (prompt, tokens) in enumerate(zip(asked, got, strict=True)):
        logits = reference([*prompt.tolist(), *tokens[:-1]], len(prompt) - 1)
        below = logits.max(-1) - logits[np.arange(len(tokens)), tokens]
        counts["tokens"] += len(tokens)
        counts["ties"] += int(np.count_nonzero(below))
        slack = SLACK * logits.std()
        if not np.all(below <= slack):
            at = int(np.argmax(~(below <= slack)))
            share = float(below[at] / logits.std())
            text = f"prompt {number}, token {at}: {tokens[at]} is {share:.3g} of the spread below the largest"
            return [Difference(name, text)]
    return []


def _drafting(case: Case, ir: Path, draft: Path, setting: Setting) -> ovspec.LLMPipeline:
    made = DRAFTERS[setting.drafter](ovspec.draft_model(draft))
    if setting.verify == "commit":
        made["verify"] = _COMMIT
    return _pipeline(case, ir, max_num_batched_tokens=setting.rows, **made)


def _pipeline(case: Case, ir: Path, **arguments: Any) -> ovspec.LLMPipeline:
    if case.family == "Bloom":  # ALiBi
        arguments["attention"] = "stock"
    try:
        return ovspec.LLMPipeline(ir, "CPU", **{"INFERENCE_NUM_THREADS": 1, **arguments})
    except ValueError as error:
        raise _refusal(error) from error


def _generated(
    made: ovspec.LLMPipeline, asked: list[NDArray[np.int64]], together: int, **options: Any
) -> list[list[int]]:
    """The greedy tokens of every prompt."""
    found: list[list[int]] = []
    for begin in range(0, len(asked), together):
        inputs = _padded(asked[begin : begin + together])
        try:
            answer = made.generate(inputs, max_new_tokens=TOKENS, ignore_eos=True, **options)
        except ValueError as error:
            raise _refusal(error) from error
        found += [list(tokens) for tokens in answer.tokens]
    return found


def _padded(some: list[NDArray[np.int64]]) -> openvino_genai.TokenizedInputs:
    ids = np.zeros((len(some), max(map(len, some))), np.int64)
    mask = np.zeros_like(ids)
    for row, prompt in enumerate(some):
        ids[row, : len(prompt)], mask[row, : len(prompt)] = prompt, 1
    return openvino_genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(mask))


def _refusal(error: Exception) -> Exception:
    """A refusal of ours says in one line what to do; anything else is a fault."""
    told = str(error)
    ours = raised_by_us(error) and "\n" not in told and "fault of ovspec" not in told
    return RefusedError(told) if ours else error


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

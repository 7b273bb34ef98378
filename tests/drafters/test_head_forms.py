"""Whatever form a published head has, texts are plain decoding's and samples follow the target's exact law.

Coupled draws give the same text whoever drafts, so the law is tried where the head's own probabilities are
read: in block verification.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from drafters import mtp_models, test_dflash, test_eagle31, test_mtp, test_peagle
from drafters.dflash_models import BOUNDARIES as DFLASH_BOUNDARIES
from drafters.eagle3_models import BOUNDARIES, LAYERS, VOCAB, pair
from drafters.eagle31_models import VARIANTS, Reference31
from drafters.test_eagle3 import MODES, SAMPLING, TREE, answer, plain, settings_of, target
from drafters.test_head_sampling import accept_everything, p_value_of
from settings import F32

import ovspec
from ovspec.drafters.drafter import Drafter
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.verify import speculation
from ovspec.pipeline.models.head_model import draft_choices
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.folder.head_info import FORMAT
from ovspec_models.heads import export_head, open_head


@functools.cache
def speculators_eagle3() -> Drafter:
    """What the package speculators says in config.json, beside weights that are its own ones' by name."""
    made: Reference31 = test_eagle31.reference("two layers")
    said = {FORMAT: "eagle3", "architectures": ["Eagle3Speculator"], "norm_before_residual": False}
    return test_eagle31.load(test_eagle31.exported(made, pair().folder / "eagle3 of speculators", **said))


@functools.cache
def speculators_dflash() -> Drafter:
    place = pair().folder / "dflash of speculators"
    block = {"mask_token_id": VOCAB - 1, "aux_hidden_state_layer_ids": list(DFLASH_BOUNDARIES)}
    said = {FORMAT: "dflash", "architectures": ["DFlashSpeculator"], "dflash_config": None, **block}
    checkpoint = test_dflash.reference().save(place / "checkpoint", **said)
    export_head(open_head(checkpoint, "dflash"), pair().info, place / "draft", "fp32")
    return test_dflash.load(place / "draft")


@functools.cache
def speculators_mtp() -> Drafter:
    """Trained on what the target's last norm reads, as the package does it."""
    models, place = pair(), pair().folder / "mtp of speculators"
    shared = models.model.get_input_embeddings().weight, models.model.get_output_embeddings().weight
    made = mtp_models.Reference("deepseek", *(weight.detach() for weight in shared))
    texts = [models.greedy(prompt, 40) for prompt in models.prompts]
    made.train_on([(text, models.states(text, (LAYERS,))) for text in texts], 40)
    mtp_models.save_as_speculators(made, place / "checkpoint")
    export_head(open_head(place / "checkpoint", "mtp"), models.info, place / "draft", "fp32")
    choices = draft_choices(
        ovspec.draft_model(place / "draft"), models.info, "dense", "CPU", "native", F32, None
    )
    assert choices is not None and choices.boundaries == (LAYERS,)
    return choices.load(VOCAB, 32)


#: The boundaries that each form reads, and its head.
FORMS: dict[str, tuple[tuple[int, ...], Callable[[], Drafter]]] = {
    **{f"eagle3, {name}": (BOUNDARIES, functools.partial(test_eagle31.head, name)) for name in VARIANTS},
    "eagle3 of speculators": (BOUNDARIES, speculators_eagle3),
    "dflash of speculators": (DFLASH_BOUNDARIES, speculators_dflash),
    **{
        f"dflash, {name}": (DFLASH_BOUNDARIES, functools.partial(test_dflash.head, name))
        for name in test_dflash.VARIANTS
    },
    **{
        f"peagle, {name}": (BOUNDARIES, functools.partial(test_peagle.head, name))
        for name in test_peagle.VARIANTS
    },
    "mtp of speculators": ((LAYERS,), speculators_mtp),
    "mtp, names of Qwen": ((LAYERS + 1,), functools.partial(test_mtp.head, "qwen")),
}
BLOCKS = {"acceptance_rule": "block"}


def models_of(form: str) -> tuple[ModelRunner, Drafter]:
    boundaries, load = FORMS[form]
    return target("llama", boundaries), load()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "shape"), [("dense", {}), ("commit", TREE)], ids=["dense chain", "committed tree"]
)
@pytest.mark.parametrize("form", FORMS)
def test_greedy_text_is_that_of_plain_decoding(form: str, mode: str, shape: dict[str, Any]) -> None:
    engine = LLMEngine(*models_of(form), MODES[mode], 32)
    got, metrics = answer(engine, pair().prompts, settings_of(**shape))
    assert got == plain("llama")
    assert all(sum(raw.accepted_lengths) > 0 for raw in metrics)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_sampled_text_is_that_of_plain_decoding(form: str) -> None:
    engine = LLMEngine(*models_of(form), MODES["commit"], 32)
    got, _ = answer(engine, pair().prompts, settings_of(**SAMPLING, **TREE))
    assert got == plain("llama", True)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_first_tokens_follow_the_exact_law(form: str) -> None:
    found, metrics = p_value_of(LLMEngine(*models_of(form), "dense", 64, max_num_seqs=100), **BLOCKS)
    assert found > 1e-3
    assert {0, 1} <= set(metrics.accepted_lengths)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dflash, dspark, rnn"])
def test_a_wrong_rule_fails_the_same_test(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "accept", accept_everything)
    assert p_value_of(LLMEngine(*models_of(form), "dense", 64, max_num_seqs=100), **BLOCKS)[0] < 1e-6

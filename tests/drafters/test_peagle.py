"""A P-EAGLE head drafts what its reference drafts, all tokens in one pass."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters.eagle3_models import BOUNDARIES, VOCAB, pair
from drafters.eagle31_models import ParallelReference
from drafters.test_eagle3 import expected_outcomes, outcomes
from drafters.test_eagle31 import exported
from safetensors.torch import load_file, save_file
from settings import F32
from tiers import by_tier

import ovspec
from ovspec.cli.info import head_facts
from ovspec.drafters.eagle3 import PEagleHead
from ovspec.pipeline.models.head_model import draft_choices
from ovspec_models import ModelInfo
from ovspec_models.heads import open_head

#: What a head has beside masks.
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "three layers": {"num_hidden_layers": 3, "fc_norm": True, "norm_output": True},
    "as vLLM names it": ParallelReference.of_vllm,
}


@functools.cache
def reference(name: str = "") -> ParallelReference:
    models = pair()
    made = ParallelReference(models.reference.embedding, **VARIANTS[name])
    texts = [models.greedy(prompt, 40) for prompt in models.prompts]
    made.train([(text, models.states(text)) for text in texts], 150)
    return made


@functools.cache
def head(name: str = "") -> PEagleHead:
    return load(exported(reference(name), pair().folder / f"peagle {name}"))


def load(folder: Path) -> PEagleHead:
    choices = draft_choices(ovspec.draft_model(folder), pair().info, "dense", "CPU", "native", F32, None)
    assert choices is not None and choices.boundaries == BOUNDARIES
    drafter = choices.load(VOCAB, 32)
    assert isinstance(drafter, PEagleHead)
    return drafter


@pytest.mark.parametrize("name", by_tier(VARIANTS, ("three layers",)))
def test_acceptance_is_the_references(name: str) -> None:
    """The same number of accepted tokens in every pass, and not with a boundary shifted by one."""
    made, models = reference(name), pair()
    expected = expected_outcomes(made.draft, models.states, made.depth + 3, at_least=0.2)
    assert outcomes(head(name), BOUNDARIES, made.depth + 3) == expected
    shifted = (BOUNDARIES[0] - 1, *BOUNDARIES[1:])
    fresh = load(exported(made, models.folder / f"peagle shifted {name}"))
    assert outcomes(fresh, shifted, made.depth + 3) != expected


@pytest.mark.parametrize(
    ("name", "tokens"), [("", ParallelReference.depth + 1), ("as vLLM names it", "as many as are asked for")]
)
def test_info_says_how_many_tokens_it_drafts(name: str, tokens: object, tmp_path: Path) -> None:
    folder = exported(ParallelReference(pair().reference.embedding, **VARIANTS[name]), tmp_path / "head")
    facts = head_facts(ModelInfo.read(folder))
    assert (facts["block_tokens"], facts["mask_token"]) == (tokens, ParallelReference.mask)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"mask_token_id": None}, "no mask_token_id, expected one token"),
        ({"mask_token_id": [3]}, r"mask_token_id is [3], expected one token"),
        ({"pard_token": 7}, f"mask_token_id is {VOCAB - 1} and pard_token is 7, expected one token"),
        ({**ParallelReference.of_vllm, "ptd_token_id": "7"}, "ptd_token_id is '7', expected one token"),
        ({"speculators_config": {"algorithm": "peagle"}}, "speculative_tokens is None, expected at least 1"),
        ({"speculators_model_type": "eagle3"}, "mask_token_id of config.json is"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    folder = ParallelReference(pair().reference.embedding).save(tmp_path, **config)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        open_head(folder, "eagle3")
    assert said in str(caught.value)


def test_a_head_without_what_stands_for_unknown_states(tmp_path: Path) -> None:
    folder = ParallelReference(pair().reference.embedding).save(tmp_path)
    arrays = {name: array.clone() for name, array in load_file(folder / "model.safetensors").items()}
    for changed, said in (
        ({name: array for name, array in arrays.items() if name != "mask_hidden"}, "no weight mask_hidden"),
        ({**arrays, "mask_hidden": torch.zeros(1, 1, 7)}, "mask_hidden has the shape"),
    ):
        save_file(changed, folder / "model.safetensors")
        with pytest.raises(ValueError, match=said):
            open_head(folder, "eagle3")

"""Heads with further norms, layers and biases draft what their reference drafts."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters.eagle3_models import BOUNDARIES, DRAFTED, VOCAB, pair
from drafters.eagle31_models import VARIANTS, Reference31
from drafters.test_eagle3 import expected_outcomes, outcomes
from safetensors.torch import load_file, save_file
from settings import F32
from tiers import by_tier

import ovspec
from ovspec.drafters.recurrent_head import RecurrentHead
from ovspec.pipeline.models.head_model import draft_choices
from ovspec_models.heads import export_head, open_head


@functools.cache
def reference(name: str) -> Reference31:
    models = pair()
    made = Reference31(models.reference.embedding, **VARIANTS[name])
    texts = [models.greedy(prompt, 40) for prompt in models.prompts]
    made.train([(text, models.states(text)) for text in texts], 100)
    return made


def exported(made: Reference31, folder: Path, **config: Any) -> Path:
    checkpoint = open_head(made.save(folder / "checkpoint", **config), "eagle3")
    export_head(checkpoint, pair().info, folder / "draft", "fp32")
    return folder / "draft"


@functools.cache
def head(name: str) -> RecurrentHead:
    return load(exported(reference(name), pair().folder / f"eagle31 {name}"))


def load(folder: Path) -> RecurrentHead:
    choices = draft_choices(ovspec.draft_model(folder), pair().info, "dense", "CPU", "native", F32, None)
    assert choices is not None
    drafter = choices.load(VOCAB, 32)
    assert isinstance(drafter, RecurrentHead)
    return drafter


@pytest.mark.parametrize("name", by_tier(VARIANTS, ("norm_before_fc",)))
def test_acceptance_is_the_references(name: str, tmp_path: Path) -> None:
    """Every pass accepts as many tokens; the paper's head, and without one of the settings, others."""
    models, made = pair(), reference(name)
    expected = expected_outcomes(made.draft, models.states)
    assert outcomes(load(exported(made, tmp_path)), BOUNDARIES) == expected
    for setting, value in VARIANTS[name].items():
        if value is True and setting.startswith(("norm", "fc")):
            other = Reference31(made.embedding, **{**VARIANTS[name], setting: False})
            other.weights = made.weights
            assert expected_outcomes(other.draft, models.states, at_least=0.0) != expected, (
                f"{setting} changes nothing"
            )


def changed(folder: Path, without: str, **config: Any) -> Path:
    """The checkpoint without the weights of this pattern, or with other settings."""
    arrays = {name: array.clone() for name, array in load_file(folder / "model.safetensors").items()}
    save_file({k: v for k, v in arrays.items() if not re.fullmatch(without, k)}, folder / "model.safetensors")
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, **config}))
    return folder


@pytest.mark.parametrize(
    ("without", "config", "said"),
    [
        ("fc_norm.1.weight", {}, "has no weight fc_norm.1.weight"),
        ("layers.2.self_attn.k_norm.weight", {}, "has no weight layers.2.self_attn.k_norm.weight"),
        # Norms of some layers only.
        (r"layers.0.self_attn.(q|k)_norm.weight", {}, "has no weight midlayer.self_attn.q_norm.weight"),
        (r"layers.1.self_attn.(q|k)_norm.weight", {}, "has no weight layers.1.self_attn.q_norm.weight"),
        ("layers.0.self_attn.q_proj.bias", {}, "has no weight midlayer.self_attn.q_proj.bias"),
        ("", {"attention_bias": False}, "has the weight layers.0.self_attn.k_proj.bias"),
        ("", {"fc_norm": False}, "has the weight fc_norm.0.weight"),
        ("", {"norm_before_fc": True}, "asks for norm_before_fc and fc_norm"),
        ("", {"num_hidden_layers": 2}, "has the weight layers.2."),
        ("", {"num_hidden_layers": 4}, "has no weight layers.3."),
    ],
)
def test_a_checkpoint_that_does_not_fit_its_settings(
    tmp_path: Path, without: str, config: dict[str, Any], said: str
) -> None:
    made = Reference31(pair().reference.embedding, **VARIANTS["all"])
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        open_head(changed(made.save(tmp_path), without, **config), "eagle3")
    assert said in str(caught.value)


@pytest.mark.parametrize("setting", ["norm_before_residual", "norm_before_fc", "fc_norm"])
@pytest.mark.parametrize(("held", "found"), [(False, "has no norm"), (True, "has a norm")])
def test_ir_with_other_norms_than_its_settings(tmp_path: Path, setting: str, held: bool, found: str) -> None:
    """As optimum-intel 2.2 writes it, whose class knows none of them; or after a change of config.json."""
    folder = exported(Reference31(pair().reference.embedding, **{setting: held}), tmp_path)
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, setting: not held}))
    with pytest.raises(ValueError, match=rf"^[^\n]*{found} where config.json says [^\n]*{setting}[^\n]*$"):
        load(folder)


def test_tokens_that_both_tables_name_otherwise(tmp_path: Path) -> None:
    folder = Reference31(pair().reference.embedding).save(tmp_path)
    arrays = {name: array.clone() for name, array in load_file(folder / "model.safetensors").items()}
    arrays["d2t"] = arrays["d2t"] + torch.arange(DRAFTED)  # ids in place of distances
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(ValueError, match="d2t and t2d name other tokens"):
        open_head(folder, "eagle3")

"""An MTP module drafts what its reference drafts, from the checkpoints of both kinds."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ovspec as command
from drafters.eagle3_models import HIDDEN, LAYERS, VOCAB, pair
from drafters.mtp_models import BOUNDARY, CONFIGS, Reference
from drafters.test_eagle3 import expected_outcomes, outcomes
from drafters.test_medusa import states
from settings import F32

import ovspec
from ovspec.drafters.recurrent_head import RecurrentHead
from ovspec.pipeline.head_model import draft_choices
from ovspec_models.head_info import head_kind
from ovspec_models.heads import export_head, open_head

KINDS = tuple(CONFIGS)


@functools.cache
def reference(kind: str) -> Reference:
    models = pair()
    weights = models.model.get_input_embeddings().weight, models.model.get_output_embeddings().weight
    made = Reference(kind, *(weight.detach() for weight in weights))
    texts = [models.greedy(prompt, 40) for prompt in models.prompts]
    made.train_on([(text, states(models, text)) for text in texts], 40)
    checkpoint = open_head(made.save(models.folder / f"mtp_{kind}"), "mtp")
    export_head(checkpoint, models.info, folder(kind), "fp32")
    return made


def folder(kind: str) -> Path:
    return pair().folder / f"mtp_{kind}_draft"


@functools.cache
def head(kind: str = "deepseek") -> RecurrentHead:
    reference(kind)
    choices = draft_choices(
        ovspec.draft_model(folder(kind)), pair().info, "dense", "CPU", "native", F32, None
    )
    assert choices is not None and choices.boundaries == (BOUNDARY,)
    drafter = choices.load(VOCAB, 32)
    assert isinstance(drafter, RecurrentHead)
    return drafter


@pytest.mark.parametrize("kind", KINDS)
def test_acceptance_is_the_references(kind: str) -> None:
    """The same number of accepted tokens in every pass, and not with the boundary before the right one."""
    expected = expected_outcomes(reference(kind).draft, lambda text: states(pair(), text))
    assert outcomes(head(kind), (BOUNDARY,)) == expected
    for boundary in (BOUNDARY - 1, BOUNDARY - 2):
        assert outcomes(head(kind), (boundary,)) != expected, f"boundary {boundary} goes unnoticed"


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_folder_says(kind: str) -> None:
    reference(kind)
    assert head_kind(pair().folder / f"mtp_{kind}") is None  # a target's checkpoint
    assert head_kind(folder(kind)) == "mtp"
    told = json.loads(command("info", str(folder(kind)), "--json").stdout)["head"]
    assert (told["kind"], told["target_layers"]) == ("mtp", LAYERS)


@pytest.mark.parametrize(
    ("config", "more", "said"),
    [
        ({"num_nextn_predict_layers": 0}, {}, "holds no head"),
        ({"hidden_size": 32, "head_dim": 16}, {}, "enorm.weight has the shape"),
        ({"vocab_size": 99}, {}, f"its vocabulary is 99, this target's {VOCAB}"),
        ({}, {"self_attn.kv_a_proj_with_mqa.weight": (4, 4)}, "multi-head latent attention"),
        ({}, {"mlp.experts.0.up_proj.weight": (4, 4)}, "experts"),
        ({}, {"self_attn.q_proj.bias": (4,)}, "biases"),
    ],
)
def test_modules_that_do_not_fit(
    tmp_path: Path, config: dict[str, Any], more: dict[str, tuple[int, ...]], said: str
) -> None:
    added = {f"model.layers.{LAYERS}.{name}": torch.zeros(shape) for name, shape in more.items()}
    checkpoint = reference("deepseek").save(tmp_path / "mtp", added, **config)
    with pytest.raises(ValueError, match=said):
        export_head(open_head(checkpoint, "mtp"), pair().info, tmp_path / "out")
    assert not (tmp_path / "out").exists() and HIDDEN != 32


def test_a_checkpoint_without_its_module(tmp_path: Path) -> None:
    checkpoint = reference("deepseek").save(tmp_path / "mtp", num_hidden_layers=LAYERS + 1)
    with pytest.raises(ValueError, match="has no weights of its kind"):
        open_head(checkpoint, "mtp")

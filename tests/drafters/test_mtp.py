"""An MTP module drafts what its reference drafts, from the checkpoints of both kinds."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import nncf
import numpy as np
import openvino as ov
import pytest
import torch
from commands import ovspec as command
from drafters.eagle3_models import HIDDEN, HYBRID, LAYERS, VOCAB, pair
from drafters.mtp_models import BOUNDARY, CONFIGS, Reference
from drafters.test_eagle3 import (
    MODES,
    SAMPLING,
    answer,
    expected_outcomes,
    outcomes,
    plain,
    settings_of,
    target,
)
from drafters.test_medusa import states
from settings import F32
from tiers import by_tier

import ovspec
from ovspec.drafters.recurrent_head import RecurrentHead
from ovspec.engine.llm_engine import LLMEngine
from ovspec.pipeline.models.head_model import draft_choices
from ovspec_models.folder.head_info import head_kind
from ovspec_models.heads import export_head, open_head

KINDS = tuple(CONFIGS)


class Exported(torch.nn.Module):
    """A module of Qwen3.5's kind with the names and the form that optimum-intel 2.2 gives it."""

    def __init__(self, made: Reference) -> None:
        super().__init__()
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.fc = made.enorm, made.hnorm, made.eh_proj
        self.layers, self.norm = torch.nn.ModuleList([made.layer]), made.norm
        self.rotary_emb = made._rotary

    def forward(
        self, hidden_states: torch.Tensor, inputs_embeds: torch.Tensor, position_ids: torch.Tensor
    ) -> torch.Tensor:
        both = [self.pre_fc_norm_embedding(inputs_embeds), self.pre_fc_norm_hidden(hidden_states)]
        x = self.fc(torch.cat(both, dim=-1))
        positions = position_ids[None].expand(3, position_ids.shape[0], -1)
        rows = torch.arange(x.shape[1])
        mask = (rows[None] > rows[:, None])[None, None].to(x.dtype) * torch.finfo(x.dtype).min
        rotated = self.rotary_emb(x, positions)
        x = self.layers[0](x, position_embeddings=rotated, attention_mask=mask, position_ids=positions)
        hidden: torch.Tensor = self.norm(x)
        return hidden


@functools.cache
def reference(kind: str, name: str = "llama") -> Reference:
    models = pair(name)
    weights = models.model.get_input_embeddings().weight, models.model.get_output_embeddings().weight
    made = Reference(kind, *(weight.detach() for weight in weights))
    texts = [models.greedy(prompt, 40) for prompt in models.prompts]
    made.train_on([(text, states(models, text)) for text in texts], 40)
    checkpoint = open_head(made.save(models.folder / f"mtp_{kind}"), "mtp")
    export_head(checkpoint, models.info, folder(kind, name), "fp32")
    return made


def folder(kind: str, name: str = "llama") -> Path:
    return pair(name).folder / f"mtp_{kind}_draft"


@functools.cache
def head(kind: str = "deepseek", name: str = "llama") -> RecurrentHead:
    reference(kind, name)
    return load(folder(kind, name), name)


def load(folder: Path, name: str = "llama") -> RecurrentHead:
    choices = draft_choices(ovspec.draft_model(folder), pair(name).info, "dense", "CPU", "native", F32, None)
    assert choices is not None and choices.boundaries == (BOUNDARY,)
    drafter = choices.load(VOCAB, 32)
    assert isinstance(drafter, RecurrentHead)
    return drafter


@pytest.mark.parametrize(
    ("kind", "name"),
    by_tier(
        [("deepseek", "llama"), ("qwen", "llama"), ("qwen", HYBRID)],
        [("qwen", "llama")],
    ),
)
def test_acceptance_is_the_references(kind: str, name: str) -> None:
    """The same number of accepted tokens in every pass, and not with the boundary before the right one."""
    made = reference(kind, name)
    expected = expected_outcomes(made.draft, lambda text: states(pair(name), text), name=name)
    assert outcomes(head(kind, name), (BOUNDARY,), name=name) == expected
    for boundary in (BOUNDARY - 1, BOUNDARY - 2):
        assert outcomes(head(kind, name), (boundary,), name=name) != expected, (
            f"boundary {boundary} goes unnoticed"
        )


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


@pytest.mark.parametrize("compressed", [False, True])
def test_the_file_of_optimum_intel(tmp_path: Path, compressed: bool) -> None:
    """Its IR has the weights that the checkpoint has, in a graph that takes embeddings."""
    made = reference("qwen")
    names = ("hidden_states", "inputs_embeds", "position_ids")
    example = (torch.randn(1, 3, HIDDEN), torch.randn(1, 3, HIDDEN), torch.arange(3)[None])
    model = ov.convert_model(Exported(made), example_input=dict(zip(names, example, strict=True)))
    model.output(0).set_names({"last_hidden_state"})
    if compressed:
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    ov.save_model(model, tmp_path / "openvino_mtp_model.xml", compress_to_fp16=False)
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["qwen"]))
    assert head_kind(tmp_path) == "mtp"
    with pytest.raises(ValueError, match=r"export it with its target: `ovspec export -m \.\.\. OUT --mtp"):
        load(tmp_path)
    checkpoint = open_head(tmp_path, "mtp")
    expected = open_head(pair().folder / "mtp_qwen", "mtp")
    assert set(checkpoint.arrays) == set(expected.arrays)
    for name, array in expected.arrays.items():
        rounded = np.ptp(array) / 255 if compressed and array.ndim == 2 else 1e-6
        np.testing.assert_allclose(checkpoint.arrays[name], array, rtol=0, atol=rounded)
    export_head(checkpoint, pair().info, tmp_path / "out", "fp32")
    if not compressed:
        assert outcomes(load(tmp_path / "out"), (BOUNDARY,)) == outcomes(head("qwen"), (BOUNDARY,))


def test_a_checkpoint_without_its_module(tmp_path: Path) -> None:
    checkpoint = reference("deepseek").save(tmp_path / "mtp", num_hidden_layers=LAYERS + 1)
    with pytest.raises(ValueError, match="has no weights of its kind"):
        open_head(checkpoint, "mtp")


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_text_of_a_target_with_linear_attention(mode: str, together: int, sampled: bool) -> None:
    """Plain decoding gives the same text, and no state is held when all have ended."""
    runner, drafter = target(HYBRID, (BOUNDARY,)), head("qwen", HYBRID)
    engine = LLMEngine(runner, drafter, MODES[mode], 32)
    settings = settings_of(**SAMPLING if sampled else {})
    got, metrics = answer(engine, pair(HYBRID).prompts[:together], settings)
    assert got == plain(HYBRID, sampled)[:together]
    assert sum(sum(raw.accepted_lengths) for raw in metrics) > 0
    assert runner.recurrent is not None and runner.recurrent.held == 0

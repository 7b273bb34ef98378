"""Medusa heads draft what their reference drafts, and the text is that of plain decoding."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ovspec as command
from drafters.eagle3_models import HIDDEN, LAYERS, VOCAB, Pair, pair
from drafters.test_eagle3 import expected_outcomes, outcomes
from safetensors.torch import save_file
from settings import F32
from torch.nn.functional import cross_entropy, silu

import ovspec
from ovspec.drafters.medusa import MedusaDrafter
from ovspec.pipeline.models.head_model import draft_choices
from ovspec_models.folder.head_info import head_kind
from ovspec_models.heads import export_head, open_head

HEADS, RES_LAYERS = 4, 2
BOUNDARY = LAYERS + 1


class Reference:
    """Heads by the paper's definition: residual blocks, then an output layer each."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.weights = {
            name: (torch.randn(shape) / HIDDEN**0.5 / 4).requires_grad_()
            for head in range(HEADS)
            for name, shape in [
                *((f"{head}.{layer}.linear.weight", (HIDDEN, HIDDEN)) for layer in range(RES_LAYERS)),
                *((f"{head}.{layer}.linear.bias", (HIDDEN,)) for layer in range(RES_LAYERS)),
                (f"{head}.{RES_LAYERS}.weight", (VOCAB, HIDDEN)),
            ]
        }

    def logits(self, states: torch.Tensor, head: int) -> torch.Tensor:
        w = self.weights
        for layer in range(RES_LAYERS):
            name = f"{head}.{layer}.linear"
            states = states + silu(states @ w[f"{name}.weight"].T + w[f"{name}.bias"])
        return states @ w[f"{head}.{RES_LAYERS}.weight"].T

    def train(self, texts: list[tuple[list[int], torch.Tensor]], steps: int) -> None:
        """Head i learns the token i + 2 places after each state's own."""
        optimizer = torch.optim.Adam(self.weights.values(), 3e-3)
        for step in range(steps):
            tokens, states = texts[step % len(texts)]
            ids, loss = torch.tensor(tokens), torch.zeros(())
            for head in range(HEADS):
                loss = loss + cross_entropy(self.logits(states[: -2 - head], head), ids[2 + head :])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def save(self, folder: Path, prefix: str = "", as_pt: bool = False, **config: Any) -> Path:
        """Write a checkpoint as it is published."""
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {f"{prefix}{name}": weight.detach().clone() for name, weight in self.weights.items()}
        if as_pt:
            torch.save(arrays, folder / "medusa_lm_head.pt")
        else:
            save_file(arrays, folder / "medusa_lm_head.safetensors")
        said = {"medusa_num_heads": HEADS, "medusa_num_layers": RES_LAYERS, "base_model_name_or_path": "x"}
        (folder / "config.json").write_text(json.dumps({**said, **config}))
        return folder


def states(models: Pair, tokens: list[int]) -> torch.Tensor:
    """What the target's output layer reads, `[tokens, hidden]`."""
    with torch.no_grad():
        return models.model.model(torch.tensor([tokens])).last_hidden_state[0]


@functools.cache
def reference() -> Reference:
    models, made = pair(), Reference()
    texts = [models.greedy(prompt, 40) for prompt in models.prompts]
    made.train(
        [(text, states(models, text)) for text in texts], 40
    )  # not all of it: a wrong state has to show
    export_head(open_head(made.save(models.folder / "medusa"), "medusa"), models.info, folder(), "fp32")
    return made


def folder() -> Path:
    return pair().folder / "medusa_draft"


@functools.cache
def heads() -> MedusaDrafter:
    reference()
    choices = draft_choices(ovspec.draft_model(folder()), pair().info, "dense", "CPU", "native", F32, None)
    assert choices is not None and choices.boundaries == (BOUNDARY,)
    drafter = choices.load(VOCAB, 32)
    assert isinstance(drafter, MedusaDrafter)
    return drafter


def test_acceptance_is_the_references() -> None:
    """The same number of accepted tokens in every pass, and not with a boundary beside the right one."""

    def places(text: list[int], found: torch.Tensor, count: int) -> list[int]:
        return [int(reference().logits(found[-1], head).argmax()) for head in range(count)]

    expected = expected_outcomes(places, lambda text: states(pair(), text))
    assert outcomes(heads(), (BOUNDARY,)) == expected
    assert outcomes(heads(), (BOUNDARY - 1,)) != expected, "the state before the last norm goes unnoticed"


@pytest.mark.parametrize("form", [{}, {"prefix": "medusa_head."}, {"as_pt": True}])
def test_published_forms(tmp_path: Path, form: dict[str, Any]) -> None:
    checkpoint = reference().save(tmp_path / "medusa", **form)
    assert head_kind(checkpoint) == "medusa"
    export_head(open_head(checkpoint, "medusa"), pair().info, tmp_path / "out", "fp32")
    assert head_kind(tmp_path / "out") == "medusa"
    told = json.loads(command("info", str(tmp_path / "out"), "--json").stdout)["head"]
    assert (told["kind"], told["target_hidden_size"], told["target_vocab_size"]) == ("medusa", HIDDEN, VOCAB)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"medusa_num_heads": 9}, "has no weight 4.2.weight"),
        ({"medusa_num_layers": "2"}, "medusa_num_layers of config.json is '2'"),
        ({"vocab_size": 99}, None),  # what the weights say counts
    ],
)
def test_checkpoints_that_are_not_whole(tmp_path: Path, config: dict[str, Any], said: str | None) -> None:
    checkpoint = reference().save(tmp_path / "medusa", **config)
    if said is None:
        export_head(open_head(checkpoint, "medusa"), pair().info, tmp_path / "out", "fp32")
        return
    with pytest.raises(ValueError, match=said):
        open_head(checkpoint, "medusa")


def test_heads_that_the_configuration_leaves_out_are_refused(tmp_path: Path) -> None:
    checkpoint = reference().save(tmp_path / "medusa")
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "medusa_num_heads": 1}))
    with pytest.raises(ValueError, match=r"medusa_num_heads of config.json is 1, the checkpoint has more"):
        export_head(open_head(checkpoint, "medusa"), pair().info, tmp_path / "out", "fp32")


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    checkpoint = reference().save(tmp_path / "medusa")
    other = tmp_path / "other"
    other.mkdir()
    config = json.loads((pair().folder / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "vocab_size": 99}))
    cases = [
        (other, ("--medusa", checkpoint), f"its vocabulary is {VOCAB}, this target's 99"),
        (pair().folder, ("--eagle3", checkpoint), "holds a head of the kind 'medusa'"),
        (pair().folder, ("--medusa", checkpoint, "--eagle3", checkpoint), "--eagle3 and --medusa all go to"),
    ]
    for model, options, said in cases:
        done = command("export", "-m", model, tmp_path / "out", *options)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr, done.stderr

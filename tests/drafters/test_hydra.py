"""Hydra heads draft what their reference drafts, with and without the decoder layer of Hydra++."""

from __future__ import annotations

import copy
import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import openvino as ov
import pytest
import torch
from commands import ovspec as command
from drafters.eagle3_models import EPS, HEADS, HIDDEN, KV_HEADS, LAYERS, SIZE, VOCAB, pair
from drafters.test_eagle3 import expected_outcomes, outcomes
from drafters.test_medusa import states
from safetensors.torch import save_file
from settings import F32
from tiers import by_tier
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu
from transformers import LlamaConfig, LlamaModel

import ovspec
from ovspec.drafters.drafter import Drafter
from ovspec.pipeline.models.head_model import draft_choices
from ovspec_models.folder.head_info import head_kind
from ovspec_models.heads import export_head, open_head, open_hydra

FORMS = ("mlp", "prefix-mlp")
HYDRA_HEADS, BLOCKS = 4, 3
BOUNDARY = LAYERS + 1


class Block(nn.Module):
    """A residual block; the first of a head joins the state with the embeddings of tokens."""

    def __init__(self, tokens: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN * (tokens + 1), HIDDEN)
        if tokens:
            self.res_connection = nn.Linear(HIDDEN * (tokens + 1), HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return (self.res_connection(x) if hasattr(self, "res_connection") else x) + silu(self.linear(x))


class Reference(nn.Module):
    """Heads by the paper's definition: every pass reads the whole text again, without a cache."""

    def __init__(self, form: str, embedding: Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self._embedding, prefix = embedding, form == "prefix-mlp"
        # As published: the blocks behind the first are one, and Hydra++ has dropout between them.
        self.hydra_mlp, self.hydra_lm_head = nn.ModuleList(), nn.ModuleList()
        for head in range(HYDRA_HEADS):
            first, again, output = Block(head + 1), Block(), nn.Linear(HIDDEN, VOCAB)
            modules: list[nn.Module] = [first, *[again] * (BLOCKS - 1)]
            parts = [part for module in modules for part in (nn.Dropout(0.0), module)] if prefix else modules
            self.hydra_mlp.append(nn.Sequential(*parts))
            self.hydra_lm_head.append(nn.Sequential(nn.Dropout(0.0), output) if prefix else output)
        self.prefix_embeding_layer = LlamaModel(prefix_config()) if prefix else None

    def read(self, found: Tensor) -> Tensor:
        """What the heads read of a text's states `[tokens, hidden]`."""
        if self.prefix_embeding_layer is None:
            return found
        read: Tensor = self.prefix_embeding_layer(inputs_embeds=found[None]).last_hidden_state[0]
        return read

    def logits(self, read: Tensor, tokens: Tensor) -> Tensor:
        """Of the head behind `tokens [rows, i + 1]`, of which the first follow the states of `read`."""
        joined = torch.cat([read, self._embedding[tokens].flatten(1)], -1)
        head = tokens.shape[1] - 1
        found: Tensor = self.hydra_lm_head[head](self.hydra_mlp[head](joined))
        return found

    def draft(self, tokens: list[int], found: Tensor, count: int) -> list[int]:
        """The greedy draft after `tokens`, from the states `[tokens - 1, hidden]` before the last."""
        path = tokens[-1:]
        with torch.no_grad():
            last = self.read(found)[-1:]
            while len(path) <= count:
                path.append(int(self.logits(last, torch.tensor([path])).argmax()))
        return path[1:]

    def train_on(self, texts: list[tuple[list[int], Tensor]], steps: int) -> None:
        optimizer = torch.optim.Adam(self.parameters(), 2e-3)
        for step in range(steps):
            tokens, found = texts[step % len(texts)]
            ids, loss, read = torch.tensor(tokens), torch.zeros(()), self.read(found)
            for head in range(HYDRA_HEADS):
                rows = len(ids) - head - 2
                behind = torch.stack([ids[1 + place : 1 + place + rows] for place in range(head + 1)], 1)
                loss = loss + cross_entropy(self.logits(read[:rows], behind), ids[head + 2 :])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def save(self, folder: Path, as_pt: bool = True, drop: str = "", **config: Any) -> Path:
        """Write a checkpoint as it is published: with the target's embedding among the weights."""
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {k: array.clone() for k, array in self.state_dict().items() if not (drop and drop in k)}
        arrays["input_embed_fn.weight"] = self._embedding.clone()
        if as_pt:
            torch.save(arrays, folder / "hydra_lm_head.pt")
        else:
            save_file(arrays, folder / "hydra_lm_head.safetensors")
        said = {
            "hydra_head_arch": "mlp" if self.prefix_embeding_layer is None else "prefix-mlp",
            "hydra_num_heads": HYDRA_HEADS,
            "hydra_num_layers": BLOCKS,
            "grounded_heads": True,
            "hidden_state_offset": 0,
            "base_model_name_or_path": "x",
        }
        (folder / "config.json").write_text(json.dumps({**said, **config}))
        return folder


def prefix_config() -> LlamaConfig:
    """The target's sizes, with one layer."""
    return LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=SIZE,
        vocab_size=2,
        rms_norm_eps=EPS,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": pair().model.config.rope_parameters["rope_theta"],
        },
    )


@functools.cache
def reference(form: str) -> Reference:
    models = pair()
    made = Reference(form, models.model.get_input_embeddings().weight.detach())
    texts = [models.greedy(prompt, 40) for prompt in models.prompts]
    made.train_on([(text, states(models, text)) for text in texts], 30)
    checkpoint = open_head(made.save(models.folder / f"hydra_{form}"), "hydra")
    export_head(checkpoint, models.info, folder(form), "fp32")
    return made.eval()


def folder(form: str) -> Path:
    return pair().folder / f"hydra_{form}_draft"


@functools.cache
def heads(form: str) -> Drafter:
    reference(form)
    choices = draft_choices(
        ovspec.draft_model(folder(form)), pair().info, "dense", "CPU", "native", F32, None
    )
    assert choices is not None and choices.boundaries == (BOUNDARY,)
    drafter = choices.load(VOCAB, 32)
    assert isinstance(drafter, Drafter) and drafter.name == "hydra"
    return drafter


@pytest.mark.parametrize("form", by_tier(FORMS, ("prefix-mlp",)))
def test_acceptance_is_the_references(form: str) -> None:
    """The same number of accepted tokens in every pass, and not with a boundary beside the right one."""
    expected = expected_outcomes(reference(form).draft, lambda text: states(pair(), text))
    assert outcomes(heads(form), (BOUNDARY,)) == expected
    for boundary in (BOUNDARY - 1, BOUNDARY - 2):
        assert outcomes(heads(form), (boundary,)) != expected, f"boundary {boundary} goes unnoticed"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("as_pt", [True, False], ids=["pt", "safetensors"])
def test_published_forms(tmp_path: Path, form: str, as_pt: bool) -> None:
    """A head applies one block again and again: a file may hold it once, the folder does."""
    again = f".{5 if form == 'prefix-mlp' else 2}.linear"
    checkpoint = reference(form).save(tmp_path / "hydra", as_pt, drop="" if as_pt else again)
    assert head_kind(checkpoint) == "hydra"
    export_head(open_head(checkpoint, "hydra"), pair().info, tmp_path / "out", "fp32")
    assert head_kind(tmp_path / "out") == "hydra"
    export_head(open_head(checkpoint, "hydra"), pair().info, tmp_path / "int8", "int8")
    told = json.loads(command("info", str(tmp_path / "out"), "--json").stdout)["head"]
    assert (told["kind"], told["target_hidden_size"], told["target_vocab_size"]) == ("hydra", HIDDEN, VOCAB)
    found, weights = ((one / "openvino_model.bin").read_bytes() for one in (tmp_path / "out", folder(form)))
    assert found == weights
    heads = sum(HIDDEN * (2 * HIDDEN * (head + 2) + HIDDEN + VOCAB) for head in range(HYDRA_HEADS))
    layer = 0 if form == "mlp" else HIDDEN * (2 * (HEADS + KV_HEADS) * SIZE + 3 * 96)
    assert 0 < len(weights) - 4 * (heads + layer) < 4 * HIDDEN**2, "a block is held twice"


def test_blocks_that_differ_are_all_read(tmp_path: Path) -> None:
    """The logits of every head, where one applies another block behind its second."""
    models, made = pair(), copy.deepcopy(reference("mlp"))
    torch.manual_seed(1)
    made.hydra_mlp[1][2] = Block()
    checkpoint = open_head(made.save(tmp_path / "hydra"), "hydra")
    export_head(checkpoint, models.info, tmp_path / "out", "fp32")
    parts = open_hydra(ov.Core().read_model(tmp_path / "out" / "openvino_model.xml"))
    found, embedding = torch.randn(5, HIDDEN), models.model.get_input_embeddings().weight.detach()
    given = ov.compile_model(parts.states, "CPU", F32)(found)[0].reshape(5, HYDRA_HEADS, 2 * HIDDEN)
    for head, model in enumerate(parts.heads):
        tokens = torch.randint(VOCAB, (5, head + 1))
        logits = ov.compile_model(model, "CPU", F32)((given[:, head], embedding[tokens].flatten(1)))[0]
        with torch.no_grad():
            expected, same = made.logits(found, tokens), reference("mlp").logits(found, tokens)
        assert torch.equal(expected, same) == (head != 1)
        torch.testing.assert_close(torch.from_numpy(logits), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"hydra_num_heads": 9}, "has no weight hydra_lm_head.4.weight"),
        ({"hydra_num_heads": 2}, "hydra_num_heads of config.json is 2, the checkpoint has more"),
        ({"hydra_num_layers": "2"}, "hydra_num_layers of config.json is '2'"),
        ({"hydra_num_layers": 4}, "hydra_num_layers of config.json is 4, hydra_mlp.0 has 3 blocks"),
        ({"hydra_head_arch": "eagle-attn"}, "is 'eagle-attn', which is not known; known: mlp, prefix-mlp"),
        ({"hydra_head_arch": "prefix-mlp"}, "has no weight prefix_embeding_layer"),
        ({"grounded_heads": False}, "grounded_heads of config.json is False, expected True"),
        ({"hidden_state_offset": 1}, "hidden_state_offset of config.json is 1, expected 0"),
    ],
)
def test_checkpoints_that_are_not_known_or_not_whole(
    tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    checkpoint = reference("mlp").save(tmp_path / "hydra", **config)
    with pytest.raises(ValueError, match=said):
        open_head(checkpoint, "hydra")


def test_a_layer_of_other_sizes_than_the_targets(tmp_path: Path) -> None:
    """Neither config.json nor the outputs of the heads say them."""
    checkpoint = reference("prefix-mlp").save(tmp_path / "hydra", num_key_value_heads=HEADS)
    with pytest.raises(ValueError, match=r"another target: layer.self_attn.k_proj.weight .* has the shape"):
        export_head(open_head(checkpoint, "hydra"), pair().info, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    checkpoint, missing = reference("mlp").save(tmp_path / "hydra"), tmp_path / "missing"
    missing.mkdir()
    (missing / "config.json").write_text((checkpoint / "config.json").read_text())
    cases = [(pair().folder, missing, "has no weights of its kind in *.safetensors, *.bin or *.pt")]
    for name, theirs, said in (
        ("vocab_size", 99, f"its vocabulary is {VOCAB}, this target's 99"),
        ("hidden_size", 128, f"its hidden size is {HIDDEN}, this target's 128"),
    ):
        other = tmp_path / name
        other.mkdir()
        config = json.loads((pair().folder / "config.json").read_text())
        (other / "config.json").write_text(json.dumps({**config, name: theirs}))
        cases.append((other, checkpoint, said))
    for model, head, said in cases:
        done = command("export", "-m", model, tmp_path / "out", "--hydra", head)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr, done.stderr


def test_a_folder_for_another_target_is_refused_as_it_is_loaded(tmp_path: Path) -> None:
    """Its config.json says nothing wrong; the graph has other sizes."""
    reference("mlp")
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (tmp_path / name).symlink_to(folder("mlp") / name)
    config = json.loads((folder("mlp") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 99}))
    target = replace(pair().info, vocab_size=99)
    choices = draft_choices(ovspec.draft_model(tmp_path), target, "dense", "CPU", "native", F32, None)
    assert choices is not None
    with pytest.raises(ValueError, match=f"for another target: hidden size {HIDDEN} and vocabulary {VOCAB}"):
        choices.load(99, 32)

"""Heads in the formats of the package speculators, made by it: exported they compute what it computes.

`make test-speculators` installs that package and runs them.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from drafters.dflash_models import BLOCK, MASK, Reference
from drafters.dflash_models import BOUNDARIES as DFLASH_BOUNDARIES
from drafters.eagle3_models import DRAFTED, EPS, HEADS, HIDDEN, KV_HEADS, SIZE, THETA, VOCAB
from drafters.eagle31_models import VARIANTS, ParallelReference, Reference31
from openvino import opset15
from safetensors.torch import load_file
from settings import F32

from ovspec_models.folder.head_info import HeadInfo, boundaries_of
from ovspec_models.heads import open_head
from ovspec_models.heads.eagle3 import eagle3_model
from ovspec_models.heads.mtp import mtp_model
from ovspec_transforms.heads.gather_logits import lm_head
from ovspec_transforms.heads.hidden_states import token_embedding

speculators = pytest.importorskip("speculators", reason="needs speculators")
TOKENS = 24
# Three products of 64 to 192 numbers in f32, and softmax; measured: 2e-6.
TOLERANCE = 1e-4


def layers_config(kind: str, **sizes: Any) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[kind](
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=SIZE,
        rms_norm_eps=EPS,
        vocab_size=VOCAB,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        attn_implementation="eager",
        **{"num_hidden_layers": 1, **sizes},
    )


def about(algorithm: str) -> Any:
    """What every head of the package says beside its own settings."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    return SpeculatorsConfig(
        algorithm=algorithm,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )


def with_weights(model: Any) -> Any:
    """The model with random weights; it makes embedding and output layer of NaN."""
    torch.manual_seed(7)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(
                1 + 0.3 * torch.randn(weight.shape) if "norm" in name else 0.2 * torch.randn(weight.shape)
            )
    return model.float().eval()


def eagle3(name: str) -> Any:
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    said = {"model_type": "llama", **VARIANTS[name]}
    biased = {key: said.pop(key) for key in ("attention_bias", "mlp_bias") if key in said}
    if said["model_type"] == "qwen3":
        biased.pop("mlp_bias", None)
    layers = layers_config(
        said.pop("model_type"), num_hidden_layers=said.pop("num_hidden_layers", 1), **biased
    )
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layers,
        draft_vocab_size=DRAFTED,
        eagle_aux_hidden_state_layer_ids=[2, 3, 4],
        speculators_config=about("eagle3"),
        **said,
    )
    model = with_weights(Eagle3DraftModel(config))
    known = torch.zeros(VOCAB, dtype=torch.bool)
    known[torch.randperm(VOCAB)[:DRAFTED]] = True
    model.load_vocab_mappings(known, known.nonzero()[:, 0] - torch.arange(DRAFTED))
    return model


def logits_of(graph: ov.Model, **inputs: Any) -> np.ndarray[Any, Any]:
    """Those of a stateful head for one text."""
    request = ov.Core().compile_model(graph, "CPU", dict(F32)).create_infer_request()
    rows = inputs["input_ids"].shape[1]
    every = {"attention_mask": np.ones((1, rows), np.int64), "beam_idx": np.zeros(1, np.int32), **inputs}
    request.infer(every)
    return np.array(request.get_tensor("logits").data[0])


@pytest.mark.parametrize("name", VARIANTS)
def test_eagle3(name: str, tmp_path: Path) -> None:
    """The first token's logits of the graph; the second's of the reference of drafters."""
    model, seen = eagle3(name), list[torch.Tensor]()
    model.save_pretrained(tmp_path)
    model.lm_head.register_forward_hook(lambda layer, given, found: seen.append(found[0]))
    states, tokens = torch.randn(TOKENS, 3 * HIDDEN), torch.randint(0, VOCAB, (TOKENS,))
    with torch.no_grad():
        model(states[None], tokens[None], torch.zeros(1, TOKENS, dtype=torch.long), ttt_steps=2)
    checkpoint = open_head(tmp_path, "eagle3")
    got = logits_of(
        eagle3_model(checkpoint, "fp32"),
        input_ids=tokens[None].numpy(),
        hidden_states=states[None].numpy(),
        position_ids=np.arange(TOKENS)[None],
    )
    np.testing.assert_allclose(got, seen[0].numpy(), atol=TOLERANCE)

    made = Reference31(model.embed_tokens.weight.detach(), **VARIANTS[name])
    made.weights = load_file(tmp_path / "model.safetensors")
    # The entry behind row i, as a draft makes it: its own state, and the token after the next.
    own, first = made.forward(made.features(states), tokens)
    torch.testing.assert_close(first, seen[0], atol=TOLERANCE, rtol=0)
    row = TOKENS - 2
    features = torch.cat([made.features(states)[: row + 1], own[row : row + 1]])
    logits = made.forward(features, tokens[: row + 2])[1]
    torch.testing.assert_close(logits[-1], seen[1][row], atol=TOLERANCE, rtol=0)


def block_inputs() -> tuple[torch.Tensor, torch.Tensor, int, tuple[torch.Tensor, ...]]:
    """Random states, tokens, the only place that a block may begin at, and what the package's models take."""
    states, tokens = torch.randn(TOKENS, 2 * HIDDEN), torch.randint(0, VOCAB - 1, (TOKENS,))
    place, wanted = TOKENS - 2 * BLOCK, torch.zeros(1, TOKENS)
    wanted[0, place] = 1.0
    others = torch.randn(1, TOKENS, HIDDEN), torch.zeros(1, TOKENS, dtype=torch.long)
    return states, tokens, place, (states[None], tokens[None], wanted, *others)


def sliding(windows: tuple[int, ...]) -> dict[str, Any]:
    """What a config says of layers with these windows, 0: none."""
    kinds = ["sliding_attention" if window else "full_attention" for window in windows]
    return (
        {"layer_types": kinds, "sliding_window": max(windows), "use_sliding_window": True} if windows else {}
    )


@pytest.mark.parametrize(
    ("own", "anchor", "windows", "non_causal"),
    [
        (False, False, (), False),
        (True, False, (), False),
        (True, True, (), False),
        (False, False, (5, 5), False),
        (False, True, (8, 0), False),
        (True, False, (0, 4), True),
        (False, False, (6, 6), True),
        (False, False, (40, 40), False),  # longer than the text
    ],
)
def test_dflash(own: bool, anchor: bool, windows: tuple[int, ...], non_causal: bool, tmp_path: Path) -> None:
    """Its reference, with which the drafter is compared elsewhere, computes what the package computes.

    Of a head as that package saves it, and not with another window.
    """
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig

    ids = torch.arange(0, VOCAB, 2 if own else 1)
    config = DFlashSpeculatorConfig(
        transformer_layer_config=layers_config("qwen3", num_hidden_layers=2, **sliding(windows)),
        sliding_window_non_causal=non_causal,
        draft_vocab_size=len(ids),
        sample_from_anchor=anchor,
        block_size=BLOCK,
        mask_token_id=MASK,
        aux_hidden_state_layer_ids=list(DFLASH_BOUNDARIES),
        speculators_config=about("dflash"),
    )
    model = with_weights(DFlashDraftModel(config))
    if own:
        model.load_vocab_mappings(torch.isin(torch.arange(VOCAB), ids), ids - torch.arange(len(ids)))
    model.save_pretrained(tmp_path)
    states, tokens, place, given = block_inputs()
    with torch.no_grad():
        _, found, _, _, places = model._backbone_forward(*given, max_anchors=1)
    assert places[0] == place
    checkpoint = open_head(tmp_path, "dflash")
    assert boundaries_of(checkpoint.folder, checkpoint.config) == DFLASH_BOUNDARIES
    info = HeadInfo.read(tmp_path)
    assert info.layer_windows == (windows or (0, 0)) and info.windows_causal is not non_causal
    shared = model.embed_tokens.weight.detach(), model.lm_head.weight.detach()

    def difference(shift: int, non_causal: bool) -> float:
        shifted = tuple(window and window + shift for window in info.layer_windows)
        made = Reference(*shared, own=own, anchor=anchor, windows=shifted, non_causal=non_causal)
        made.load_state_dict(load_file(tmp_path / "model.safetensors"))
        with torch.no_grad():
            got = made.logits(tokens[: place + 1].tolist(), states[:place], BLOCK - 1 + anchor)
        return float((got - found[0, 0 if anchor else 1 :]).abs().max())

    assert difference(0, non_causal) < TOLERANCE
    if windows:
        assert difference(0, not non_causal) > 100 * TOLERANCE
    if 0 < max(info.layer_windows) < place:
        assert min(difference(-1, non_causal), difference(1, non_causal)) > 100 * TOLERANCE


def test_peagle(tmp_path: Path) -> None:
    """A text's last entry and masks behind it, as they stand in the package's one pass over a text."""
    package = importlib.import_module("speculators.models.peagle")
    depth = ParallelReference.depth
    config = package.PEagleSpeculatorConfig(
        transformer_layer_config=layers_config("llama", num_hidden_layers=2),
        draft_vocab_size=DRAFTED,
        eagle_aux_hidden_state_layer_ids=[2, 3, 4],
        mask_token_id=MASK,
        fc_norm=True,
        speculators_config=about("peagle"),
    )
    model, seen = with_weights(package.PEagleDraftModel(config)), list[torch.Tensor]()
    known = torch.zeros(VOCAB, dtype=torch.bool)
    known[torch.randperm(VOCAB)[:DRAFTED]] = True
    model.load_vocab_mappings(known, known.nonzero()[:, 0] - torch.arange(DRAFTED))
    model.save_pretrained(tmp_path)
    states, following = torch.randn(TOKENS, 3 * HIDDEN), torch.randint(0, VOCAB, (TOKENS,))
    # Masks at every place behind every token, so that the rows of one chain are among them.
    module, anchor = importlib.import_module(type(model).__module__), TOKENS - depth - 2
    chain = [(place, 0) for place in range(TOKENS)] + [(anchor, step) for step in range(1, depth)]
    model.lm_head.register_forward_hook(lambda layer, given, found: seen.append(found[0]))
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(
            module, "generate_cod_sample_indices", lambda **said: tuple(torch.tensor(chain).unbind(1))
        )
        patch.setattr(module, "compute_metrics", lambda **said: (torch.zeros(()), {}))
        model(
            states[None],
            following[None],
            torch.zeros(1, TOKENS, dtype=torch.long),
            verifier_last_hidden_states=torch.randn(1, TOKENS, HIDDEN),
        )
    wanted = torch.cat([seen[0][anchor : anchor + 1], seen[0][TOKENS:]])
    checkpoint = open_head(tmp_path, "eagle3")
    masks = checkpoint.array("mask_hidden")[0].repeat(depth - 1, 0)
    ids = [*following[: anchor + 1].tolist(), *[MASK] * (depth - 1)]
    got = logits_of(
        eagle3_model(checkpoint, "fp32"),
        input_ids=np.array([ids]),
        hidden_states=np.concatenate([states[: anchor + 1].numpy(), masks])[None],
        position_ids=np.arange(len(ids))[None],
    )
    np.testing.assert_allclose(got[-depth:], wanted.numpy(), atol=TOLERANCE)

    made = ParallelReference(model.embed_tokens.weight.detach(), fc_norm=True, num_hidden_layers=2)
    made.weights = load_file(tmp_path / "model.safetensors")
    logits = made.logits([0, *following[: anchor + 1].tolist()], states[: anchor + 1], depth)
    torch.testing.assert_close(logits, wanted, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_5_text"])
def test_mtp(kind: str, tmp_path: Path) -> None:
    """Tokens and states of the package's first step give its logits and states, and so its second step."""
    package = importlib.import_module("speculators.models.mtp")
    layers = layers_config(kind, layer_types=["full_attention"])
    config = package.MTPSpeculatorConfig(transformer_layer_config=layers, speculators_config=about("mtp"))
    model = with_weights(package.MTPDraftModel(config))
    model.save_pretrained(tmp_path)
    steps, passed = 3, list[torch.Tensor]()
    model.mtp_layers[0].register_forward_hook(lambda layer, given, found: passed.append(found[0]))
    states, tokens = torch.randn(TOKENS, HIDDEN), torch.randint(0, VOCAB, (TOKENS,))
    with torch.no_grad():
        found, *_ = model(tokens[None], states[None])
    checkpoint, rows = open_head(tmp_path, "mtp"), TOKENS - steps - 1
    graph = mtp_model(checkpoint, "fp32")
    for name in ("embed_tokens", "lm_head"):
        fill(graph, getattr(model, name).weight.detach().numpy(), name)
    read = states[:rows]
    for step in range(steps):
        got = logits_of(
            graph,
            input_ids=tokens[None, step + 1 : step + 1 + rows].numpy(),
            hidden_states=read[None].numpy(),
            position_ids=np.arange(rows)[None],
        )
        np.testing.assert_allclose(got, found[step][0].numpy(), atol=TOLERANCE)
        read = passed[step]


def fill(graph: ov.Model, weight: np.ndarray[Any, Any], name: str) -> None:
    """Put the target's embedding or output layer into a head's graph."""
    constant = opset15.constant(weight)
    if name == "embed_tokens":
        token_embedding(graph).input(0).replace_source_output(constant.output(0))
    else:
        head = lm_head(graph.output("logits").get_node())
        assert head is not None
        head.input(1).replace_source_output(constant.output(0))
    graph.validate_nodes_and_infer_types()

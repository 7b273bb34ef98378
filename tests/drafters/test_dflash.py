"""A DFlash head drafts what its reference drafts, from a checkpoint or from optimum-intel's folder."""

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
from drafters.correction_models import RANK
from drafters.dflash_models import BLOCK, BOUNDARIES, CONFIG, IDS, MASK, Reference, dspark_settings
from drafters.eagle3_models import HIDDEN, LAYERS, VOCAB, pair
from drafters.test_eagle3 import (
    DRAFT,
    answer,
    expected_outcomes,
    outcomes,
    plain,
    settings_of,
    target,
)
from safetensors.torch import load_file, save_file
from schedule.charged import PASS, Charged
from settings import F32

import ovspec
from ovspec.drafters.dflash import DFlashDrafter
from ovspec.drafters.drafter import Proposal
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.pipeline.models.head_model import draft_choices
from ovspec_models.folder.head_info import head_kind
from ovspec_models.heads import export_head, open_head

#: What a head may have more: tokens of its own, a first token of the block that drafts too, a correction.
VARIANTS: dict[str, dict[str, Any]] = {
    "own": {"own": True},
    "anchor": {"anchor": True},
    "both": {"own": True, "anchor": True},
    "dspark, vanilla": {"form": "dspark, vanilla", "anchor": True},
    "dspark, gated": {"form": "dspark, gated"},
    "dspark, rnn": {"form": "dspark, rnn", "own": True, "anchor": True},
    "dspark, rnn, masks alone": {"form": "dspark, rnn"},
    "dflash2": {"form": "dflash2"},
    "xpress": {"form": "xpress"},
    "xpress, both": {"form": "xpress", "own": True, "anchor": True},
}


@functools.cache
def reference(name: str = "") -> Reference:
    models = pair()
    weights = models.model.get_input_embeddings().weight, models.model.get_output_embeddings().weight
    made = Reference(*(weight.detach() for weight in weights), **VARIANTS.get(name, {}))
    texts = [models.greedy(prompt, 40) for prompt in models.prompts]
    made.train_on([(text, models.states(text, BOUNDARIES)) for text in texts], 300)
    checkpoint = open_head(made.save(models.folder / f"dflash {name}"), "dflash")
    export_head(checkpoint, models.info, folder(name), "fp32")
    return made


def folder(name: str = "") -> Path:
    return pair().folder / f"dflash_draft {name}"


def load(path: Path, attention: Any = "native") -> DFlashDrafter:
    choices = draft_choices(ovspec.draft_model(path), pair().info, "dense", "CPU", attention, F32, None)
    assert choices is not None and choices.boundaries == BOUNDARIES
    drafter = choices.load(VOCAB, 32)
    assert isinstance(drafter, DFlashDrafter)
    return drafter


@functools.cache
def head(name: str = "") -> DFlashDrafter:
    reference(name)
    return load(folder(name))


@pytest.mark.slow
@pytest.mark.parametrize("count", [DRAFT, BLOCK + 4])
def test_acceptance_is_the_references(count: int) -> None:
    """The same number of accepted tokens in every pass, and not with a boundary shifted by one."""
    models = pair()
    expected = expected_outcomes(reference().draft, lambda text: models.states(text, BOUNDARIES), count)
    assert outcomes(head(), BOUNDARIES, count) == expected
    for place, boundary in enumerate(BOUNDARIES):
        shifted = (*BOUNDARIES[:place], boundary - 1, *BOUNDARIES[place + 1 :])
        # A head of its own: others would find its entries of these prompts.
        assert outcomes(load(folder()), shifted, count) != expected, f"{boundary} shifted goes unnoticed"


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_acceptance_is_the_references_whatever_the_head_has_more(name: str) -> None:
    models, count = pair(), BLOCK + 4
    expected = expected_outcomes(
        reference(name).draft, lambda text: models.states(text, BOUNDARIES), count, at_least=0.1
    )
    assert outcomes(head(name), BOUNDARIES, count) == expected


@pytest.mark.slow
@pytest.mark.parametrize("confident", [False, True])
def test_dspark_without_a_markov_head_drafts_as_dflash(confident: bool, tmp_path: Path) -> None:
    said = {"architectures": ["DSparkDraftModel"], "markov_rank": 0, "confidence_head_with_markov": False}
    checkpoint = reference("anchor").save(tmp_path / "c", **said, enable_confidence_head=confident)
    if confident:
        arrays = {name: array.clone() for name, array in load_file(checkpoint / "model.safetensors").items()}
        arrays["confidence_head.proj.weight"] = torch.zeros(1, HIDDEN)
        arrays["confidence_head.proj.bias"] = torch.ones(1)
        save_file(arrays, checkpoint / "model.safetensors")
    export_head(open_head(checkpoint, "dflash"), pair().info, tmp_path / "draft", "fp32")
    found = outcomes(load(tmp_path / "draft"), BOUNDARIES, BLOCK)
    assert found == outcomes(head("anchor"), BOUNDARIES, BLOCK)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["top", "nested"])
def test_dspark_as_others_write_it(form: str, tmp_path: Path) -> None:
    """The same drafts, also with copies of the target's embedding and output layer, not with other ones."""
    expected = outcomes(head("dspark, vanilla"), BOUNDARIES, BLOCK)
    checkpoint = reference("dspark, vanilla").save(tmp_path / "c", **dspark_settings(form, RANK))
    arrays = {name: array.clone() for name, array in load_file(checkpoint / "model.safetensors").items()}
    model = pair().model
    layers = {"embed_tokens": model.get_input_embeddings(), "lm_head": model.get_output_embeddings()}
    copies = {f"{name}.weight": layer.weight.detach().clone() for name, layer in layers.items()}

    def found(name: str, more: dict[str, torch.Tensor]) -> Any:
        save_file({**arrays, **more}, checkpoint / "model.safetensors")
        export_head(open_head(checkpoint, "dflash"), pair().info, tmp_path / name, "fp32")
        return outcomes(load(tmp_path / name), BOUNDARIES, BLOCK)

    assert found("shared", {}) == found("copies", copies) == expected
    for name, copy in copies.items():
        assert found(name, {**copies, name: copy.flip(0)}) != expected


@pytest.mark.slow
def test_a_confidence_head_says_how_likely_tokens_are(tmp_path: Path) -> None:
    """Of a chain, each token's probability times that of those before it."""
    checkpoint = reference("dspark, vanilla").save(tmp_path / "dspark", enable_confidence_head=True)
    arrays = {name: array.clone() for name, array in load_file(checkpoint / "model.safetensors").items()}
    arrays["confidence_head.proj.weight"] = torch.zeros(1, HIDDEN + RANK)
    arrays["confidence_head.proj.bias"] = torch.ones(1)
    save_file(arrays, checkpoint / "model.safetensors")
    export_head(open_head(checkpoint, "dflash"), pair().info, tmp_path / "draft", "fp32")
    drafter, found = load(tmp_path / "draft"), list[Proposal]()
    propose = drafter.propose
    drafter.propose = lambda *asked: found.extend(proposed := propose(*asked)) or proposed  # type: ignore
    answer(LLMEngine(target("llama", BOUNDARIES), drafter, "dense", 32), [pair().prompts[0]], settings_of())
    chains = [proposal for proposal in found if len(proposal.tokens) > 1]
    likely = 1 / (1 + np.exp(-1.0))
    for proposal in chains:
        assert proposal.confidences == pytest.approx(
            [likely ** (place + 1) for place in range(len(proposal.tokens))], rel=1e-5
        )
    assert chains


@pytest.mark.slow
def test_auto_verifies_what_a_confidence_head_expects(tmp_path: Path) -> None:
    """Of the same drafts more where the head is sure, next to nothing where it is not; texts stay."""
    checkpoint = reference("dspark, vanilla").save(tmp_path / "dspark", enable_confidence_head=True)
    arrays = {name: array.clone() for name, array in load_file(checkpoint / "model.safetensors").items()}
    arrays["confidence_head.proj.weight"] = torch.zeros(1, HIDDEN + RANK)
    runner, sizes = target("llama", BOUNDARIES), list[float]()
    forward, settings = runner.forward, settings_of(num_assistant_tokens=BLOCK)
    for bias in (-4.0, 1.0, 4.0):
        arrays["confidence_head.proj.bias"] = torch.full((1,), bias)
        save_file(arrays, checkpoint / "model.safetensors")
        export_head(open_head(checkpoint, "dflash"), pair().info, tmp_path / f"{bias}", "fp32")
        schedule = Charged(runner, lambda batch, result: PASS * (1 + 0.1 * len(batch[0].tokens)), BLOCK)
        engine = LLMEngine(runner, load(tmp_path / f"{bias}"), "dense", 32)
        for number, prompt in enumerate(pair().prompts):
            request = Request(str(number), prompt, settings, schedule=schedule)
            assert list(engine.generate([request]).values()) == [plain("llama")[number]]
        runner.forward = forward  # type: ignore[method-assign]
        sizes.append(float(np.mean(schedule.sizes)))
    assert sizes[0] < 0.5 and sizes[0] < sizes[1] < sizes[2] and sizes[2] > BLOCK - 1.5, sizes


@pytest.mark.slow
def test_a_head_of_its_own_tokens_that_is_not_whole(tmp_path: Path) -> None:
    checkpoint = reference("own").save(tmp_path / "dflash")
    arrays = {name: array.clone() for name, array in load_file(checkpoint / "model.safetensors").items()}
    for changed, said in (
        ({name: array for name, array in arrays.items() if name != "d2t"}, "has no weight d2t"),
        ({**arrays, "lm_head.weight": torch.zeros(VOCAB, HIDDEN)}, r"lm_head\.weight has the shape"),
        ({**arrays, "d2t": arrays["d2t"] * 0}, "d2t and t2d name other tokens"),
    ):
        save_file(changed, checkpoint / "model.safetensors")
        with pytest.raises(ValueError, match=said):
            open_head(checkpoint, "dflash")


@pytest.mark.parametrize("compressed", [False, True])
def test_the_folder_of_optimum_intel(tmp_path: Path, compressed: bool) -> None:
    """Its IR has the weights that the checkpoint has, in a graph of another form."""
    made, names = reference(), ("inputs_embeds", "hidden_states", "position_ids")
    example = (torch.randn(1, 3, HIDDEN), torch.randn(1, 4, len(IDS) * HIDDEN), torch.arange(7)[None])
    model = ov.convert_model(made, example_input=dict(zip(names, example, strict=True)))
    model.output(0).set_names({"last_hidden_state"})
    for key, value in (("mask_token_id", str(MASK)), ("target_layer_ids", ",".join(map(str, IDS)))):
        model.set_rt_info(value, ["dflash", key])
    model.set_rt_info("True", ["dflash_mode"])
    if compressed:
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    ov.save_model(model, tmp_path / "openvino_model.xml", compress_to_fp16=False)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert head_kind(tmp_path) == "dflash"
    accepted, ours = outcomes(load(tmp_path), BOUNDARIES), outcomes(head(), BOUNDARIES)
    if compressed:
        assert sum(map(sum, accepted)) > 0.5 * sum(map(sum, ours))
    else:
        assert accepted == ours


def test_the_published_form(tmp_path: Path) -> None:
    checkpoint = reference().save(tmp_path / "dflash")
    assert head_kind(checkpoint) == "dflash"
    export_head(open_head(checkpoint, "dflash"), pair().info, tmp_path / "out")
    told = json.loads(command("info", str(tmp_path / "out"), "--json").stdout)["head"]
    assert (told["kind"], told["boundaries"], told["target_layers"]) == ("dflash", list(BOUNDARIES), LAYERS)
    assert (told["block_tokens"], told["mask_token"]) == (BLOCK, MASK)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"dflash_config": {"mask_token_id": MASK}}, "no target_layer_ids in dflash_config"),
        ({"block_size": None}, "block_size is None"),
        ({"num_hidden_layers": 3, "layer_types": None}, r"has no weight layers\.2"),
        ({"layer_types": ["sliding_attention"] * 2}, "layer_types of config.json is"),
        ({"hidden_size": 32}, r"fc\.weight has the shape"),
        ({"num_target_layers": 9}, f"its number of layers is 9, this target's {LAYERS}"),
        ({"vocab_size": 99}, f"its vocabulary is 99, this target's {VOCAB}"),
    ],
)
def test_heads_that_do_not_fit(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    checkpoint = reference().save(tmp_path / "dflash", **config)
    with pytest.raises(ValueError, match=said):
        export_head(open_head(checkpoint, "dflash"), pair().info, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_that_are_not_read_are_refused(tmp_path: Path) -> None:
    checkpoint = reference().save(tmp_path / "dflash")
    arrays = {name: array.clone() for name, array in load_file(checkpoint / "model.safetensors").items()}
    save_file({**arrays, "lm_head.bias": torch.zeros(VOCAB)}, checkpoint / "model.safetensors")
    with pytest.raises(ValueError, match=r"has the weight lm_head\.bias, which this kind of head does not"):
        open_head(checkpoint, "dflash")


def test_settings_that_blocks_do_not_know(tmp_path: Path) -> None:
    reference()
    with pytest.raises(ValueError, match="blocks attention='stock' can't read"):
        load(folder(), "stock")
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (tmp_path / name).symlink_to(folder() / name)
    config = json.loads((folder() / "config.json").read_text())
    config["dflash_config"]["mask_token_id"] = VOCAB
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ValueError, match=f"mask_token_id is {VOCAB}, the target's tokens are 0 to {VOCAB - 1}"
    ):
        load(tmp_path)

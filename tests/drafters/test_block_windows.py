"""DFlash heads whose layers have sliding windows, as the package speculators defines them.

That the reference in torch computes what the package computes is tested in test_speculators.py.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drafters.dflash_models import BLOCK, BOUNDARIES, OWN_LAYERS, Reference
from drafters.eagle3_models import pair
from drafters.test_dflash import load
from drafters.test_eagle3 import answer, expected_outcomes, outcomes, plain, settings_of, target
from tiers import by_tier

from ovspec.drafters.parallel_draft import BlockLogits
from ovspec.engine.llm_engine import LLMEngine
from ovspec_models.folder.head_info import HeadInfo
from ovspec_models.heads import export_head, open_head

#: Shorter than the prompts, in each layer or in one, and longer than some contexts.
VARIANTS: dict[str, dict[str, Any]] = {
    "causal": {"windows": (5, 5)},
    "not causal": {"windows": (6, 6), "non_causal": True},
    "one full layer": {"windows": (0, 4)},
    "one full layer, not causal": {"windows": (4, 0), "non_causal": True, "anchor": True},
    "of one token": {"windows": (1, 1), "own": True},
    "longer than a prompt": {"windows": (34, 34)},
    "dspark": {"windows": (5, 0), "form": "dspark, rnn", "anchor": True},
    "dflash2": {"windows": (7, 7), "non_causal": True, "form": "dflash2"},
    "dflash2, causal": {"windows": (0, 7), "form": "dflash2"},
    "xpress": {"windows": (4, 4), "form": "xpress"},
}
FEW = ("one full layer, not causal",)
COUNT = BLOCK + 4
# Three products of 64 to 192 numbers in f32, and softmax; measured: 3e-6.
TOLERANCE = 1e-4


@functools.cache
def reference(name: str) -> Reference:
    """Trained for a moment, so that some drafts are accepted and others are not."""
    models = pair()
    weights = models.model.get_input_embeddings().weight, models.model.get_output_embeddings().weight
    made = Reference(*(weight.detach() for weight in weights), **VARIANTS[name])
    texts = [models.greedy(prompt, 40) for prompt in models.prompts]
    made.train_on([(text, models.states(text, BOUNDARIES)) for text in texts], 100)
    return made


def exported(name: str, folder: Path, **said: Any) -> Path:
    checkpoint = reference(name).save(folder / "checkpoint", **said)
    export_head(open_head(checkpoint, "dflash"), pair().info, folder / "draft", "fp32")
    return folder / "draft"


def differences(name: str, folder: Path) -> list[float]:
    """Of the logits of every block, of sequences that draft in one pass, from the reference's."""
    models, drafter, seen = pair(), load(folder), list[tuple[list[int], Any]]()
    compute = drafter._continue

    def watched(blocks: Any) -> Any:
        block: BlockLogits
        for block in blocks:
            seen.append((list(block.sequence.tokens), np.array(block.logits)))
        return compute(blocks)

    drafter._continue = watched  # type: ignore[method-assign]
    prompts = [prompt[:length] for prompt, length in zip(models.prompts, (3, 40, 9, 21), strict=False)]
    engine = LLMEngine(target("llama", BOUNDARIES), drafter, "dense", 8)
    answer(engine, [*models.prompts, *prompts], settings_of(num_assistant_tokens=COUNT))
    made, found = reference(name), list[float]()
    first = 0 if made.anchor else 1
    for tokens, logits in seen:
        with torch.no_grad():
            states = models.states(tokens, BOUNDARIES)[: len(tokens) - 1]
            wanted = made.block(tokens, states, len(logits))[1][first : first + len(logits)]
        found.append(float(np.abs(wanted.numpy() - logits).max()))
    lengths = {len(tokens) for tokens, _ in seen}
    assert len(seen) > 30 and min(lengths) < 6 and max(lengths) > 40
    return found


@pytest.mark.parametrize("name", by_tier(VARIANTS, FEW))
def test_logits_are_the_references(name: str, tmp_path: Path) -> None:
    """In batches, prompts in chunks, behind rejected drafts, in contexts shorter and longer than windows."""
    assert max(differences(name, exported(name, tmp_path))) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("causal", {"sliding_window": 4}),
        ("causal", {"sliding_window": 6}),
        ("causal", {"sliding_window_non_causal": True}),
        ("not causal", {"sliding_window": 7}),
        ("not causal", {"sliding_window_non_causal": False}),
        ("one full layer", {"layer_types": ["sliding_attention", "full_attention"]}),
        ("one full layer", {"layer_types": ["sliding_attention"] * 2}),
        ("causal", {"layer_types": ["full_attention"] * 2}),
    ],
)
def test_another_window_is_noticed(name: str, wrong: dict[str, Any], tmp_path: Path) -> None:
    assert max(differences(name, exported(name, tmp_path, **wrong))) > 100 * TOLERANCE


@pytest.mark.parametrize("name", by_tier(VARIANTS, ["one full layer", "not causal"]))
def test_acceptance_is_the_references(name: str, tmp_path: Path) -> None:
    """`outcomes` compares the text with plain decoding too."""
    models = pair()
    expected = expected_outcomes(
        reference(name).draft, lambda text: models.states(text, BOUNDARIES), COUNT, at_least=0.1
    )
    assert outcomes(load(exported(name, tmp_path)), BOUNDARIES, COUNT) == expected


def test_a_batch_of_prompts_is_answered_as_alone(tmp_path: Path) -> None:
    drafter = load(exported("causal", tmp_path))
    engine = LLMEngine(target("llama", BOUNDARIES), drafter, "dense", 8)
    assert answer(engine, pair().prompts, settings_of())[0] == plain("llama")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"sliding_window": None}, r"sliding_window of config\.json is None, expected a number of tokens"),
        ({"sliding_window": 0}, r"sliding_window of config\.json is 0, expected a number of tokens"),
        ({"sliding_window": -5}, r"sliding_window of config\.json is -5, expected"),
        ({"sliding_window": 2.5}, r"sliding_window of config\.json is 2\.5, expected"),
        ({"sliding_window": 2**31}, r"sliding_window of config\.json is 2147483648, expected"),
        ({"layer_types": ["sliding_attention"]}, f"expected .* for each of {OWN_LAYERS} layers"),
        ({"layer_types": ["sliding_attention", "chunked_attention"]}, r"'chunked_attention'\], expected"),
        (
            {"layer_types": "sliding_attention"},
            r"layer_types of config\.json is 'sliding_attention', expected",
        ),
        ({"layer_types": None}, "expected what each layer is, as use_sliding_window is true"),
        ({"use_sliding_window": False}, r"use_sliding_window of config\.json is False, expected true"),
        ({"use_sliding_window": None}, r"use_sliding_window of config\.json is None, expected true"),
        ({"use_sliding_window": 3}, r"use_sliding_window of config\.json is 3, expected true or false"),
        ({"sliding_window_non_causal": "no"}, r"sliding_window_non_causal of config\.json is 'no', expected"),
        ({"speculators_model_type": None}, "by a rule with no reference to test against"),
    ],
)
def test_windows_that_are_refused(said: dict[str, Any], message: str, tmp_path: Path) -> None:
    """In a checkpoint, and in the config.json of an exported head."""
    folder = exported("causal", tmp_path)
    checkpoint = reference("causal").save(tmp_path / "other", **said)
    with pytest.raises(ValueError, match=message) as caught:
        open_head(checkpoint, "dflash")
    assert "\n" not in str(caught.value)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **said}))
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_a_graph_of_other_layers_than_its_config(tmp_path: Path) -> None:
    folder = exported("causal", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"has 2 layers, num_hidden_layers of config\.json is 1"):
        load(folder)


def test_full_layers_whatever_the_window_is(tmp_path: Path) -> None:
    """Also of z-lab's heads: layer_types says that no layer has it."""
    full = {"layer_types": ["full_attention"] * OWN_LAYERS}
    checkpoint = reference("causal").save(tmp_path / "dflash", **full, speculators_model_type=None)
    open_head(checkpoint, "dflash")
    assert HeadInfo.read(checkpoint).layer_windows == (0,) * OWN_LAYERS


def test_dflash2_sees_its_whole_block_unless_told(tmp_path: Path) -> None:
    """The package's default for this form, and for no other."""
    folder = exported("dflash2", tmp_path, sliding_window_non_causal=None)
    assert max(differences("dflash2", folder)) < TOLERANCE

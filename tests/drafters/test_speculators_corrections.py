"""Forms of DFlash that correct their logits, made by the package speculators, and as exported."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from drafters.correction_models import FORMS
from drafters.dflash_models import BLOCK, MASK, Reference
from drafters.dflash_models import BOUNDARIES as DFLASH_BOUNDARIES
from drafters.eagle3_models import VOCAB
from drafters.test_speculators import TOLERANCE, about, block_inputs, layers_config, sliding, with_weights
from safetensors.torch import load_file, save_file
from settings import F32

from ovspec_models.folder.head_info import HeadInfo, form_of, samples_anchor
from ovspec_models.heads import open_correction, open_head
from ovspec_models.heads.dflash import dflash_model

#: Forms of DFlash with a correction, and what their config.json says.
CORRECTED: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"dspark, {kind}": ("DSpark", {"markov_rank": 8, "markov_head_type": kind, **more})
        for kind, more in (
            ("vanilla", {"confidence_head_with_markov": False}),
            ("gated", {"sample_from_anchor": False}),
            ("rnn", {}),
        )
    },
    "dspark, none": ("DSpark", {"markov_rank": 0, "confidence_head_with_markov": False}),
    "dflash2": (
        "DFlash2",
        {"conv_group_size": 8, "conv_kernel_size": 3, "selector_rank": 8, "selector_top_k": 5},
    ),
    "dspark, rnn, windows": ("DSpark", {"markov_rank": 8, "markov_head_type": "rnn", "windows": (5, 0)}),
    "xpress": ("XPress", {"xpress_rank": 8}),
    "xpress, anchor": ("XPress", {"xpress_rank": 8, "sample_from_anchor": True}),
}
CORRECTED["dflash2, windows"] = ("DFlash2", {**CORRECTED["dflash2"][1], "windows": (6, 6)})
LEFT_OUT = 3e-3


def corrected(name: str, folder: Path) -> Any:
    """A model of the package, saved."""
    kind, said = CORRECTED[name]
    windows = said.get("windows", ())
    said = {key: value for key, value in said.items() if key != "windows"}
    package = importlib.import_module(f"speculators.models.{kind.lower()}")
    layers = layers_config("qwen3", num_hidden_layers=2, **sliding(windows))
    config = getattr(package, f"{kind}SpeculatorConfig")(
        transformer_layer_config=layers,
        draft_vocab_size=VOCAB,
        block_size=BLOCK,
        mask_token_id=MASK,
        aux_hidden_state_layer_ids=list(DFLASH_BOUNDARIES),
        speculators_config=about(kind.lower()),
        **said,
    )
    model = with_weights(getattr(package, f"{kind}DraftModel")(config))
    model.save_pretrained(folder)
    return model


def of_package(model: Any, seen: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """States, the tokens of a block and the one before, those up to it; `seen`: what the package computes."""
    states, tokens, place, given = block_inputs()
    module = importlib.import_module(type(model).__module__)

    def watch(*more: Any, **said: Any) -> Any:
        if said.get("candidate_logits") is not None:
            return torch.zeros(()), {}  # of other candidates than those that are drafted
        logits, _, *more = more
        seen["corrected"] = logits[0]
        if more and isinstance(more[0], torch.Tensor) and more[0].shape == (1, BLOCK):
            seen["confidence"] = more[0][0].sigmoid()
        return torch.zeros(()), {}

    model.norm.register_forward_hook(lambda layer, given, found: seen.update(states=found[0]))
    model.lm_head.register_forward_hook(lambda layer, given, found: seen.update(logits=found[0]))
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(module, "compute_metrics", watch)
        model(*given, max_anchors=1)
    around = tokens[place - 1 : place + BLOCK]
    if hasattr(model, "candidate_selector"):
        with torch.no_grad():
            before = torch.cat([around[1:2], around[1:-1]])
            ids, scores = model.candidate_selector.select(seen["logits"], seen["states"], before)
        seen["corrected"] = torch.full_like(seen["logits"], -torch.inf).scatter(1, ids, scores)
    return states[:place], around, tokens[: place + 1]


def of_head(folder: Path, seen: dict[str, torch.Tensor], tokens: torch.Tensor) -> dict[str, Any]:
    """What the exported head's correction makes of the same states and logits, from place to place."""
    checkpoint = open_head(folder, "dflash")
    correction = open_correction(dflash_model(checkpoint, "fp32"), form_of(checkpoint.config) or "")
    assert correction is not None
    step = ov.Core().compile_model(correction.step, "CPU", dict(F32)).create_infer_request()
    given = np.zeros((BLOCK, 0), np.float32)
    if correction.given:
        prepared = ov.Core().compile_model(correction.given, "CPU", dict(F32))
        given = prepared({0: seen["states"].numpy()})[0]
    reads, state = {port.get_any_name() for port in correction.step.inputs}, np.zeros((1, correction.state))
    before = tokens[1:].tolist()
    if not samples_anchor(checkpoint.config):
        before = [int(tokens[2 - correction.leads]), *before[:-1]]
    found: dict[str, list[Any]] = {"corrected": [], "confidence": []}
    for place in range(BLOCK):
        every = {
            "number": np.array([place]),
            "given": given[place : place + 1],
            "token": np.array(before[place : place + 1]),
            "state": state.astype(np.float32),
            "logits": seen["logits"][place : place + 1].numpy(),
        }
        step.infer({name: value for name, value in every.items() if name in reads})
        names = {port.get_any_name() for port in correction.step.outputs}
        state = step.get_tensor("next").data.copy() if "next" in names else state
        for name in found.keys() & names:
            found[name].append(step.get_tensor(name).data[0].copy())
    return {name: np.stack(rows) for name, rows in found.items() if rows}


@pytest.mark.parametrize("name", CORRECTED)
def test_what_is_corrected(name: str, tmp_path: Path) -> None:
    """Behind the package's own states and logits, and not with one of the weights left out.

    Nor is what drafters are compared with elsewhere another than the package's.
    """
    model, seen = corrected(name, tmp_path), dict[str, torch.Tensor]()
    states, tokens, text = of_package(model, seen)
    first = 0 if model.config.sample_from_anchor else 1
    wanted = {key: seen[key].numpy()[first:] for key in ("corrected", "confidence") if key in seen}

    def difference() -> float:
        found = {key: rows[first:] for key, rows in of_head(tmp_path, seen, tokens).items()}
        found["confidence"] = found["confidence"][:, 0] if "confidence" in found else None
        return max(
            float(np.where(rows == found[key], 0.0, np.abs(rows - found[key])).max())
            for key, rows in wanted.items()
        )

    assert ("confidence" in wanted) == name.startswith("dspark")
    assert difference() < TOLERANCE

    anchor = model.config.sample_from_anchor
    shared = model.embed_tokens.weight.detach(), model.lm_head.weight.detach()
    info, form = HeadInfo.read(tmp_path), name.removesuffix(", anchor").removesuffix(", windows")
    assert info.layer_windows == CORRECTED[name][1].get("windows", (0, 0))
    assert info.windows_causal == (form != "dflash2")
    sight: dict[str, Any] = {"windows": info.layer_windows, "non_causal": not info.windows_causal}
    made = Reference(*shared, anchor=anchor, form=form if form in FORMS else "", **sight).eval()
    made.load_state_dict(
        {
            key: array
            for key, array in load_file(tmp_path / "model.safetensors").items()
            if not key.startswith("confidence")
        }
    )
    with torch.no_grad():
        got = made.logits(text.tolist(), states, BLOCK - first, tokens[2:].tolist())
    torch.testing.assert_close(got, torch.tensor(wanted["corrected"]), atol=TOLERANCE, rtol=0)
    file = tmp_path / "model.safetensors"
    arrays = {key: array.clone() for key, array in load_file(file).items()}
    own = [key for key in arrays if key.split("_head.")[0] in ("markov", "confidence", "refiner")]
    own += [key for key in arrays if key.startswith("candidate_selector.")]
    assert len(own) >= (2 if name == "dspark, none" else 3)
    for key in own:
        save_file({**arrays, key: torch.zeros_like(arrays[key])}, file)
        assert difference() > LEFT_OUT, f"{key} left out"
        save_file({other: array for other, array in arrays.items() if other != key}, file)
        with pytest.raises(ValueError, match=f"has no weight {key}"):
            open_head(tmp_path, "dflash")

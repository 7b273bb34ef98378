"""A head with a weight or a setting that its graph would not follow is refused by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters import dflash_models, eagle3_models, mtp_models, test_hydra, test_medusa
from drafters.eagle3_models import HIDDEN, LAYERS, SIZE, VOCAB
from safetensors.torch import load_file, save_file

from ovspec_models.heads import open_head

Save = Callable[[Path], Path]
_SHARED = (torch.zeros(VOCAB, HIDDEN), torch.zeros(VOCAB, HIDDEN))
SAVE: dict[str, tuple[str, Save]] = {
    "eagle3": ("eagle3", lambda folder: eagle3_models.Reference(_SHARED[0]).save(folder)),
    "dflash": ("dflash", lambda folder: dflash_models.Reference(*_SHARED).save(folder)),
    "deepseek": ("mtp", lambda folder: mtp_models.Reference("deepseek", *_SHARED).save(folder)),
    "qwen": ("mtp", lambda folder: mtp_models.Reference("qwen", *_SHARED).save(folder)),
    "medusa": ("medusa", lambda folder: test_medusa.Reference().save(folder)),
    "hydra": (
        "hydra",
        lambda folder: test_hydra.Reference("prefix-mlp", _SHARED[0]).save(folder, as_pt=False),
    ),
}
_NEXT = f"model.layers.{LAYERS}"
WEIGHTS = {
    "eagle3": (
        *("input_norm.weight", "fc_norm.0.weight", "midlayer.self_attn.scale", "midlayer.norm.bias"),
        *("layers.1.mlp.up_proj.weight", "model.midlayer.scale"),
    ),
    "dflash": ("layers.0.conv.weight", "markov.weight", "layers.2.self_attn.q_proj.weight"),
    "deepseek": (f"{_NEXT}.conv.weight", f"{_NEXT}.mlp.scale"),
    "qwen": ("mtp.layers.1.mlp.up_proj.weight", "mtp.fc_norm.weight"),
    "medusa": ("0.0.norm.weight", "medusa_head.norm.weight"),
    "hydra": ("hydra_mlp.0.1.norm.weight", "prefix_embeding_layer.layers.1.mlp.up_proj.weight"),
}
_OF_LAYERS: dict[str, Any] = {
    "layer_types": ["sliding_attention"],
    "use_sliding_window": True,
    "sliding_window": 64,
    "hidden_act": "gelu",
    "attention_bias": True,
    "residual_multiplier": 0.5,
    "norm_later": False,
}
_ROPE: dict[str, Any] = {
    "partial_rotary_factor": 0.5,
    "rope_scaling": {"rope_type": "default", "attention_factor": 2.0},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "eagle3": {
        **{name: value for name, value in _OF_LAYERS.items() if name != "attention_bias"},
        **_ROPE,
        "eagle_config": {"use_last_layernorm": False},
        "norm_before_residual": "yes",
    },
    "dflash": {
        # Whatever these say, layer_types says that no layer has a window.
        **{name: value for name, value in _OF_LAYERS.items() if "sliding_window" not in name},
        **_ROPE,
        "conv_kernel_size": 4,
        "dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 4], "causal": True},
    },
    "deepseek": {name: value for name, value in _OF_LAYERS.items() if name != "layer_types"},
    "qwen": {"num_nextn_predict_layers": 2, "mtp_use_dedicated_embeddings": True, "norm_later": 1},
    "medusa": {"medusa_residual_scale": 0.5},
    "hydra": {**_OF_LAYERS, **_ROPE, "hydra_norm": True},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("heads")
    return {name: save(place / name) for name, (_, save) in SAVE.items()}


def changed(folder: Path, place: Path, weight: str = "", **config: Any) -> Path:
    """A copy of a checkpoint with another weight or setting."""
    (file,) = folder.glob("*.safetensors")
    arrays = load_file(file)
    save_file({**arrays, weight: torch.ones(SIZE)} if weight else arrays, place / file.name)
    said = json.loads((folder / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**said, **config}))
    return place


@pytest.mark.parametrize("name", SAVE)
def test_what_is_known_is_read(folders: dict[str, Path], name: str, tmp_path: Path) -> None:
    """Also beside settings that change nothing."""
    more = {"attention_dropout": 0.1, "use_cache": True, "transformers_version": "9.9", "hidden_act": "silu"}
    open_head(changed(folders[name], tmp_path, **more, sliding_window=None), SAVE[name][0])


@pytest.mark.parametrize(("name", "weight"), [(name, one) for name, all in WEIGHTS.items() for one in all])
def test_a_weight(folders: dict[str, Path], name: str, weight: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        open_head(changed(folders[name], tmp_path, weight), SAVE[name][0])
    assert f"has the weight {weight}, which" in str(caught.value) or "biases" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "setting"), [(name, one) for name, settings in SETTINGS.items() for one in settings]
)
def test_a_setting(folders: dict[str, Path], name: str, setting: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        open_head(changed(folders[name], tmp_path, **{setting: SETTINGS[name][setting]}), SAVE[name][0])
    assert setting in str(caught.value)


def test_a_kind_that_is_named_like_a_known_one(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds a head of the kind 'domino' \(a recurrent layer"):
        open_head(changed(folders["dflash"], tmp_path, architectures=["DominoDFlashDraftModel"]), "dflash")


@pytest.mark.parametrize("kind", ["dflash", "dspark", "xpress", "dflash2"])
def test_a_form_without_its_own_parts(folders: dict[str, Path], kind: str, tmp_path: Path) -> None:
    """Nor with a setting of another form."""
    other = changed(folders["dflash"], tmp_path, markov_rank=4, architectures=[f"{kind}DraftModel"])
    with pytest.raises(ValueError, match=r"markov|selector_top_k|xpress_rank"):
        open_head(other, "dflash")

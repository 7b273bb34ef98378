"""The schema of ovspec_config.json: what is written is read back, and every error is one clear line."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from ovspec_models import CreatedBy, ModelSection, OvspecConfig, SparseVerify
from ovspec_models.folder.config import CONFIG_NAME


def model() -> ModelSection:
    return ModelSection("org/name", "qwen3", "int8", 6, 4, 2, 64, 4096, 8192)


def model_without_limit() -> ModelSection:
    return ModelSection("org/name", "bloom", "int8", 6, 4, 4, 64, 4096, None)


def full() -> OvspecConfig:
    return OvspecConfig(
        model=model(),
        created_by=CreatedBy(ovspec="0.1.0", openvino="2026.4.1", optimum_intel="2.1.0", nncf="3.4.0"),
        draft_model="draft",
        verify=SparseVerify(L0=1024, rho=0.1, anchor_layers=(0, 2, 5)),
    )


def write(folder: Path, **changes: Any) -> Path:
    """Write a good file with some keys replaced; dotted names reach into a section, ... removes the key."""
    data = full().to_dict()
    for dotted, value in changes.items():
        section, _, key = dotted.rpartition("__")
        place = data[section] if section else data
        if value is ...:
            del place[key]
        else:
            place[key] = value
    path = folder / CONFIG_NAME
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(full(), id="everything"),
        pytest.param(OvspecConfig(model=model()), id="least"),
        pytest.param(OvspecConfig(model=model(), verify=SparseVerify(rho=1)), id="part of verify"),
        pytest.param(OvspecConfig(model=model(), verify=SparseVerify(L0=0, rho=0.0)), id="zero budget"),
        pytest.param(
            OvspecConfig(
                model=model(),
                verify=SparseVerify(
                    anchor_layers=(0,),
                    coverage=0.9,
                    rule="paper",
                    sink_blocks=2,
                    local_blocks=4,
                ),
            ),
            id="selection",
        ),
        pytest.param(OvspecConfig(model=model_without_limit()), id="no limit of positions"),
        pytest.param(
            OvspecConfig(model=model(), verify=SparseVerify(anchor_layers=(1, 3))),
            id="first layer has a sliding window",
        ),
        pytest.param(OvspecConfig(model=model(), verify=SparseVerify(anchor_layers=(5,))), id="one anchor"),
    ],
)
def test_round_trip(tmp_path: Path, config: OvspecConfig) -> None:
    path = config.save(tmp_path)
    assert path == tmp_path / "ovspec_config.json"
    assert OvspecConfig.load(tmp_path) == config


def test_file_layout_is_fixed(tmp_path: Path) -> None:
    data = json.loads(full().save(tmp_path).read_text())
    assert list(data) == ["schema_version", "created_by", "model", "draft_model", "verify"]
    assert data["schema_version"] == 1
    assert list(data["created_by"]) == ["ovspec", "openvino", "optimum_intel", "nncf", "transformers"]
    assert list(data["verify"]) == [
        "L0", "rho", "budget", "anchor_layers", "coverage", "rule", "sink_blocks", "local_blocks",
        "expert_budget", "ffn_density",
    ]  # fmt: skip


def test_absent_file_is_none(tmp_path: Path) -> None:
    assert OvspecConfig.load(tmp_path) is None


def test_save_replaces_and_leaves_no_other_file(tmp_path: Path) -> None:
    write(tmp_path, draft_model=None)
    full().save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [CONFIG_NAME]
    assert stat.S_IMODE((tmp_path / CONFIG_NAME).stat().st_mode) & 0o400
    loaded = OvspecConfig.load(tmp_path)
    assert loaded is not None
    assert loaded.draft_model == "draft"


def test_save_refuses_bad_value_and_keeps_old_file(tmp_path: Path) -> None:
    path = full().save(tmp_path)
    before = path.read_bytes()
    config = full()
    config.model.head_dim = 0
    with pytest.raises(ValueError, match=r"model\.head_dim is 0"):
        config.save(tmp_path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [CONFIG_NAME]


def test_save_into_unwritable_folder_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        full().save(tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []


# No setting limits attention.
OPEN = {"verify__L0": None, "verify__rho": None}
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "newer schema": ({"schema_version": 2}, "schema_version", "upgrade ovspec"),
    "schema of no version": ({"schema_version": ...}, "schema_version", "positive integer"),
    "schema is text": ({"schema_version": "1"}, "schema_version", "positive integer"),
    "schema is true": ({"schema_version": True}, "schema_version", "positive integer"),
    "unknown key": ({"verifier": 1}, "'verifier'", "remove"),
    "unknown model key": ({"model__layers": 1}, "'model.layers'", "remove"),
    "unknown verify key": ({"verify__share": 1}, "verify.share", "remove"),
    "budget beside L0": ({"verify__budget": 512}, "verify.budget", "contradicts L0=1024"),
    "coverage beside rho": (
        {"verify__coverage": 0.9, "verify__L0": None},
        "verify.coverage",
        "contradicts rho=0.1",
    ),
    "budget is zero": ({**OPEN, "verify__budget": 0}, "verify.budget", "at least 1"),
    "budget is a fraction": ({"verify__budget": 1.5}, "verify.budget", "a whole number"),
    "expert budget below -1": (
        {"verify__expert_budget": [4, -2]},
        "verify.expert_budget",
        "or -1 for",
    ),
    "ffn density of zero": ({"verify__ffn_density": [0.5, 0]}, "verify.ffn_density", "above 0"),
    "no ffn density": ({"verify__ffn_density": []}, "verify.ffn_density", "or one per layer"),
    "removed rule": (
        {"verify__ffn_density": 0.5, "verify__ffn_rule": "groups"},
        "verify.ffn_rule='groups'",
        "remove the key, or run `ovspec calibrate` again",
    ),
    "removed threshold": ({"verify__ffn_threshold": 0.1}, "verify.ffn_threshold=0.1", "remove the key"),
    "removed score": ({"verify__ffn_score": "mean"}, "verify.ffn_score='mean'", "remove the key"),
    "removed expert rule": (
        {"verify__expert_budget": 1, "verify__expert_rule": "share", "verify__expert_share_bound": 0.1},
        "verify.expert_rule='share'",
        "remove the key",
    ),
    "coverage is zero": ({**OPEN, "verify__coverage": 0.0}, "verify.coverage", "above 0"),
    "coverage is text": ({"verify__coverage": "1"}, "verify.coverage", "a number"),
    "rule is unknown": ({"verify__rule": "first"}, "verify.rule", "'mass' or 'paper'"),
    "anchors of no rule": (
        {**OPEN, "verify__rule": "mass", "verify__anchor_layers": [0]},
        "verify.anchor_layers",
        "rule='paper'",
    ),
    "removed query": ({"verify__query": "union"}, "verify.query='union'", "remove the key"),
    "removed summary": ({"verify__summary": "mean"}, "verify.summary='mean'", "remove the key"),
    "no sinks": ({"verify__sink_blocks": 0}, "verify.sink_blocks", "at least 1"),
    "no local blocks": ({"verify__local_blocks": -1}, "verify.local_blocks", "at least 1"),
    "removed interval": ({"verify__refresh_interval": 3}, "verify.refresh_interval=3", "remove the key"),
    "unknown created_by key": ({"created_by__torch": "2"}, "'created_by.torch'", "remove"),
    "no model": ({"model": ...}, "'model'", "add it"),
    "model lacks a key": ({"model__head_dim": ...}, "'model.head_dim'", "add it"),
    "model is a list": ({"model": []}, "model", "JSON object"),
    "created_by is null": ({"created_by": None}, "created_by", "JSON object"),
    "version is a number": ({"created_by__nncf": 3}, "created_by.nncf", "text or null"),
    "layers are text": ({"model__num_hidden_layers": "6"}, "model.num_hidden_layers", "positive integer"),
    "layers are a fraction": (
        {"model__num_hidden_layers": 6.0},
        "model.num_hidden_layers",
        "positive integer",
    ),
    "heads are true": ({"model__num_attention_heads": True}, "model.num_attention_heads", "positive integer"),
    "vocabulary is negative": ({"model__vocab_size": -1}, "model.vocab_size", "positive integer"),
    "source is empty": ({"model__source": ""}, "model.source", "text"),
    "draft is a number": ({"draft_model": 1}, "draft_model", "null"),
    "draft is absolute": ({"draft_model": "/draft"}, "draft_model", "inside"),
    "draft is outside": ({"draft_model": "../draft"}, "draft_model", "inside"),
    "draft is empty": ({"draft_model": ""}, "draft_model", "inside"),
    "verify is a list": ({"verify": [1]}, "verify", "JSON object"),
    "L0 is negative": ({"verify__L0": -1}, "verify.L0", "at least 0"),
    "L0 is a fraction": ({"verify__L0": 1.5}, "verify.L0", "a whole number"),
    "rho is above one": ({"verify__rho": 1.01}, "verify.rho", "between 0 and 1"),
    "rho is text": ({"verify__rho": "0.1"}, "verify.rho", "a number"),
    "rho is not a number": ({"verify__rho": float("nan")}, "verify.rho", "between 0 and 1"),
    "positions are zero": (
        {"model__max_position_embeddings": 0},
        "model.max_position_embeddings",
        "positive integer or null",
    ),
    "positions are text": (
        {"model__max_position_embeddings": "8192"},
        "model.max_position_embeddings",
        "positive integer or null",
    ),
    "layers are null": ({"model__num_hidden_layers": None}, "model.num_hidden_layers", "positive integer;"),
    "model lacks positions": (
        {"model__max_position_embeddings": ...},
        "'model.max_position_embeddings'",
        "add it",
    ),
    "anchors are empty": ({"verify__anchor_layers": []}, "verify.anchor_layers", "at least one"),
    "anchors repeat": ({"verify__anchor_layers": [1, 2, 2]}, "verify.anchor_layers", "increasing"),
    "anchors fall": ({"verify__anchor_layers": [3, 1]}, "verify.anchor_layers", "increasing"),
    "anchor is negative": ({"verify__anchor_layers": [-1, 2]}, "verify.anchor_layers", "0 to 5"),
    "anchor is true": ({"verify__anchor_layers": [True, 2]}, "verify.anchor_layers", "layer numbers"),
    "anchor past the end": ({"verify__anchor_layers": [0, 6]}, "verify.anchor_layers", "0 to 5"),
    "anchors are a number": ({"verify__anchor_layers": 0}, "verify.anchor_layers", "layer numbers"),
}


@pytest.mark.parametrize(("changes", "key", "remedy"), BAD.values(), ids=BAD.keys())
def test_bad_file(tmp_path: Path, changes: dict[str, Any], key: str, remedy: str) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(ValueError, match="ovspec_config") as caught:
        OvspecConfig.load(tmp_path)
    message = str(caught.value)
    assert str(path) in message
    assert key in message
    assert remedy in message
    assert "\n" not in message


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", "\udcff"], ids=repr)
def test_no_json_object(tmp_path: Path, text: str) -> None:
    (tmp_path / CONFIG_NAME).write_bytes(text.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(ValueError, match="JSON") as caught:
        OvspecConfig.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_settings_of_older_versions_are_dropped_where_they_mean_the_same(tmp_path: Path) -> None:
    channels = {"verify__ffn_density": 0.5, "verify__ffn_rule": "top_k", "verify__ffn_score": "max"}
    experts = {"verify__expert_budget": 8, "verify__expert_rule": "mass", "verify__expert_share_bound": None}
    write(tmp_path, **channels, **experts, verify__ffn_threshold=None)
    config = OvspecConfig.load(tmp_path)
    assert config is not None and config.verify is not None and config.verify.ffn_density == 0.5


def test_constructor_checks_too() -> None:
    with pytest.raises(ValueError, match=r"verify\.anchor_layers is \[9\]"):
        OvspecConfig(model=model(), verify=SparseVerify(anchor_layers=(9,)))


LONG = [{"w": [["x" * 5000]] * 5000}, "a\nb" * 50_000, [1] * 100_000, {"k" * 100_000: 1}]


@pytest.mark.parametrize("key", ["operations", "verify", "verify__anchor_layers", "model__head_dim", "model"])
@pytest.mark.parametrize("value", LONG, ids=["nested", "text", "list", "key"])
def test_long_values_are_cut(tmp_path: Path, key: str, value: Any) -> None:
    write(tmp_path, **{key: value})
    with pytest.raises(ValueError, match="ovspec_config") as caught:
        OvspecConfig.load(tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


def test_a_default_budget_is_at_most_half_of_a_context() -> None:
    default, given = SparseVerify(), SparseVerify(L0=512)
    for context in range(1, 5000):
        tokens, part = default.budget_tokens(context), given.budget_tokens(context)
        assert tokens == (context if 2 * part > context else part)
    assert given.budget_tokens(1000) == 512 + 49

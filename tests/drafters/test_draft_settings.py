"""Which operations and precisions a small draft takes, and whether it reads its whole context."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from settings import F32

import ovspec
from ovspec.operations.attention_config import Attention
from ovspec.operations.linear_backend import LinearBackend
from ovspec.pipeline.models.assistant_model import AssistantChoices
from ovspec.pipeline.models.head_model import draft_choices
from ovspec_models import ModelInfo
from ovspec_models.folder.sparse_verify import SparseVerify

HINT = "INFERENCE_PRECISION_HINT"


@pytest.mark.parametrize("draft", ["draft", "eagle3"])
@pytest.mark.parametrize(
    ("attention", "linear", "properties", "products", "hint"),
    [
        (None, None, {}, "native", "f32"),
        (None, "stock", {}, "stock", "f32"),
        ("stock", None, {}, "stock", None),
        ("native", None, {}, "native", "f32"),
        ("stock", "native", {}, "native", None),
        (None, None, {HINT: "bf16"}, "native", "bf16"),
        (None, None, {"KV_CACHE_PRECISION": "bf16"}, "native", None),
    ],
)
def test_small_drafts_take_our_operations_in_f32_unless_asked_otherwise(
    demo_ir: Path,
    draft: str,
    attention: Attention | None,
    linear: LinearBackend | None,
    properties: dict[str, Any],
    products: str,
    hint: str | None,
) -> None:
    model, info = ovspec.draft_model(demo_ir / draft), ModelInfo.read(demo_ir)
    choices = draft_choices(model, info, "dense", "CPU", attention, properties, linear)
    assert choices is not None
    assert (choices.backends.linear, choices.backends.properties.get(HINT)) == (products, hint)


@pytest.mark.parametrize("draft", ["draft", "eagle3"])
@pytest.mark.parametrize(("asked", "expected"), [(None, "native"), ("native", "native"), ("stock", "stock")])
def test_drafts_take_the_attention_of_their_target(
    demo_ir: Path, draft: str, asked: Any, expected: str
) -> None:
    target = ModelInfo.read(demo_ir)
    found = draft_choices(ovspec.draft_model(demo_ir / draft), target, "dense", "CPU", asked, F32, None)
    assert found is not None
    assert (found.backends.attention.backend, found.backends.linear) == (expected, expected)


@pytest.mark.parametrize(("positions", "reads_all"), [(8192, True), (70_000, False), (None, False)])
def test_a_small_draft_with_a_small_cache_reads_all(
    demo_ir: Path, tmp_path: Path, positions: int | None, reads_all: bool
) -> None:
    """Where the target may not: 288 bytes of cache for a token are 20 MB for 70,000."""
    folder = shutil.copytree(demo_ir / "draft", tmp_path / "draft")
    config = json.loads((folder / "config.json").read_text())
    config = {name: value for name, value in config.items() if name != "max_position_embeddings"}
    if positions is not None:
        config["max_position_embeddings"] = positions
    (folder / "config.json").write_text(json.dumps(config))
    target, sparse = ModelInfo.read(demo_ir), SparseVerify(budget=128)
    found = draft_choices(ovspec.draft_model(folder), target, sparse, "CPU", None, F32, None)
    assert isinstance(found, AssistantChoices)
    assert found.sparse == (None if reads_all else sparse)
    assert found.backends.attention.selects != reads_all  # by ours

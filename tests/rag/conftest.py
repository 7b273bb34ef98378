"""A small store, and a small embedding model that is a real one: the mean of a vector of every token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from made_once import MakeOnce
from openvino import opset13 as ops

from ovspec_models import demo_pair_path

# Each is about one thing; none fits a question about another.
TEXTS = {
    "zebra.txt": "The zebra lives in the savanna. A zebra has black and white stripes.",
    "moon.md": "# Moon\n\nThe moon moves around the earth. It shows craters.",
    "bread.html": "<html><head><style>p {}</style></head><body><p>Bread is made of <b>flour</b>, water and "
    "salt.</p><p>An oven bakes it.</p></body></html>",
    "ship.txt": "A ship carries freight over the sea. The captain steers it with a compass.",
    "piano.txt": "A piano has black and white keys. Hammers strike its strings.",
}


def write_texts(folder: Path, texts: dict[str, str] = TEXTS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def embedding_model(folder: Path, seed: int = 0) -> Path:
    """Write a model whose vectors are alike for texts with the same words, with the demo pair's tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    table = np.random.default_rng(seed).standard_normal((4096, 48), np.float32)
    ids, mask = (ops.parameter([-1, -1], ov.Type.i64, name=name) for name in ("input_ids", "attention_mask"))
    for node, name in ((ids, "input_ids"), (mask, "attention_mask")):
        node.output(0).set_names({name})
    states = ops.gather(ops.constant(table), ids, ops.constant(0))
    states.output(0).set_names({"last_hidden_state"})
    ov.save_model(ov.Model([states], [ids, mask]), folder / "openvino_model.xml", compress_to_fp16=False)
    for file in demo_pair_path().glob("openvino_tokenizer.*"):
        shutil.copy(file, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder


@pytest.fixture(scope="session")
def embedder_ir(make_once: MakeOnce) -> Path:
    pytest.importorskip("sqlite_vec", reason="needs ovspec[rag]")
    return make_once("embedding model", embedding_model)


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "documents")

"""Files of a folder with anything in them: one line that names the file, in little time and memory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ovspec.bundle.files.check_files import check_files, check_machine
from ovspec.generation.inputs import read_generation_config, read_tokenizer
from ovspec.graphs import checksums
from ovspec_models import ModelInfo, OvspecConfig, check_same_token_ids
from ovspec_models.folder.head_info import HeadInfo, head_kind
from ovspec_models.folder.ir_facts import IrFacts
from ovspec_models.heads import open_head

DEEP = b'{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"
DIGITS = b'{"hidden_size": ' + b"1" * 5000 + b"}"
READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "model": ("config.json", ModelInfo.read),
    "ovspec": ("ovspec_config.json", OvspecConfig.load),
    "generation": ("generation_config.json", read_generation_config),
    "tokenizer": ("tokenizer.json", lambda folder: check_same_token_ids(folder, folder)),
    "settings of the tokenizer": ("tokenizer_config.json", read_tokenizer),
    "bundle": ("manifest.json", lambda folder: check_machine(check_files(folder))),
    "head": ("config.json", lambda folder: open_head(folder, "eagle3")),
}


@pytest.fixture
def folder(demo_ir: Path, tmp_path: Path) -> Path:
    """A folder of links to a model's files, of which a test may replace some."""
    for path in demo_ir.iterdir():
        if path.is_file():
            (tmp_path / path.name).symlink_to(path)
    return tmp_path


def write(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("content", [DEEP, DIGITS, b"", b"[]", b"\xff", b'{"a": 1'], ids=range(6))
def test_no_json_object(folder: Path, reader: str, content: bytes) -> None:
    name, read = READERS[reader]
    write(folder / name, content)
    with pytest.raises(ValueError, match=r"^[^\n]{1,600}$"):
        read(folder)


@pytest.mark.parametrize(
    "value", [10**9, 10**400, 1e400, float("nan"), -1, True, "2", [2], {"a": 2}], ids=range(9)
)
@pytest.mark.parametrize("name", ["num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_sizes(folder: Path, name: str, value: Any) -> None:
    """A number of layers that no model has would fill the memory."""
    config = json.loads((folder / "config.json").read_text())
    if value == 10**9 and name != "num_hidden_layers":
        value = 2**31
    write(folder / "config.json", json.dumps({**config, name: value}).encode())
    with pytest.raises(ValueError, match=rf"config\.json: {name} is .*expected a positive integer"):
        ModelInfo.read(folder)


HEAD: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "hidden_size": 8,
    "vocab_size": 9,
    "block_size": 4,
    "mask_token_id": 1,
}


@pytest.mark.parametrize(
    "config",
    [
        {"eagle_aux_hidden_state_layer_ids": 3},
        {"eagle_aux_hidden_state_layer_ids": ["a"]},
        {"eagle_aux_hidden_state_layer_ids": [[1]]},
        {"dflash_config": {"target_layer_ids": [1e400]}},
        {"num_target_layers": "many"},
        {"target_num_layers": float("nan")},
        {"hidden_size": 10**400},
    ],
    ids=range(7),
)
def test_heads(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**HEAD, **config}))
    assert head_kind(tmp_path) == "dflash"
    with pytest.raises(ValueError, match=r"^[^\n]{1,900}$"):
        HeadInfo.read(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"<net>" + b'type="Const" ' * 200_000,
        b"<net>" + b"<runtime_options>" * 200_000,
        b'<net><layer type="Const"><data ' + b"a" * 4000 + b">" * 200_000,
        b'<net><layer type="Const"><data shape="' + b"9" * 4000 + b'" size="' + b"9" * 50 + b'"></net>',
        '<net><layer type="Const"><data shape="²"></net>'.encode(),
    ],
    ids=range(5),
)
def test_graphs(tmp_path: Path, content: bytes) -> None:
    """The time is that of the size, whatever is in it."""
    path = tmp_path / "openvino_model.xml"
    path.write_bytes(content)
    begin = time.process_time()
    assert IrFacts.read(path).fault
    assert time.process_time() - begin < 5


def test_a_manifest_of_another_format(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 2, "files": {}}')
    with pytest.raises(ValueError, match="format 2, this script reads 1"):
        check_files(tmp_path)


def test_a_note_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    for content in (DEEP, b"[[[1e400], 1]]", b"[1]"):
        (tmp_path / "checksums.json").write_bytes(content)
        checksums.remember(tmp_path / "checksums.json")

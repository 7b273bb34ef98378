"""Damaged files and files that contradict each other: one line, exit code 2, nothing half-written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from commands import refusal
from openvino import opset15 as ops
from settings import F32
from tiny_checkpoints import TINY, write_checkpoint

import ovspec
from ovspec.cli import main
from ovspec_models import export_model

Change = Callable[[Path], None]


def cut(name: str, keep: float = 0.6) -> Change:
    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * keep)])

    return change


def write(name: str, data: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(data) and None


def edit(name: str, **values: Any) -> Change:
    """Set keys of a JSON file; ... removes one."""

    def change(folder: Path) -> None:
        data = {**json.loads((folder / name).read_text()), **values}
        kept = {key: value for key, value in data.items() if value is not ...}
        (folder / name).write_text(json.dumps(kept))

    return change


def remove(*names: str) -> Change:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def config(**values: Any) -> Change:
    return edit("config.json", **values)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must end with code 2 and one line; give the line."""

    def run(*arguments: Any) -> str:
        monkeypatch.setattr("sys.argv", ["ovspec", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert ended.value.code == 2 and printed.out == ""
        (line,) = refusal(printed.err)
        assert line.startswith("ovspec: error: "), printed.err
        return line

    return run


def without_states(folder: Path) -> None:
    """As a model that was exported without a cache, or with its cache as inputs."""
    ids = ops.parameter([1, -1, 4096], ov.Type.f32, name="ids")
    ov.save_model(ov.Model([ops.relu(ids)], [ids]), folder / "openvino_model.xml")


FOLDERS: dict[str, tuple[Change, list[str]]] = {
    "cut weights": (cut("openvino_model.bin"), ["openvino_model.xml or its .bin file can't be read"]),
    "no weights": (write("openvino_model.bin", b""), ["openvino_model.xml or its .bin file can't be read"]),
    "cut graph": (cut("openvino_model.xml"), ["openvino_model.xml"]),
    "no graph": (write("openvino_model.xml", b"\0" * 99), ["openvino_model.xml is no XML"]),
    "cut tokenizer": (cut("openvino_tokenizer.bin"), ["the tokenizer in", "can't be read"]),
    "cut detokenizer": (cut("openvino_detokenizer.xml"), ["the tokenizer in", "can't be read"]),
    "no states": (without_states, ["openvino_model.xml keeps no keys and values between passes"]),
    "more layers": (
        config(num_hidden_layers=3, layer_types=["full_attention"] * 3),
        ["config.json: num_hidden_layers is 3, but openvino_model.xml has 2", "export the model again"],
    ),
    "fewer layers": (
        config(num_hidden_layers=1, layer_types=["full_attention"]),
        ["num_hidden_layers is 1, but openvino_model.xml has 2"],
    ),
    "heads": (
        config(num_attention_heads=4),
        ["num_attention_heads is 4, but openvino_model.xml has 2"],
    ),
    "KV heads": (
        config(num_key_value_heads=2),
        ["num_key_value_heads is 2, but openvino_model.xml has 1"],
    ),
    "head size": (config(head_dim=32), ["head_dim is 32, but openvino_model.xml has 64"]),
    "vocabulary": (config(vocab_size=5000), ["vocab_size is 5000, but openvino_model.xml has 4096"]),
    "vocabulary of another family": (
        config(model_type="unheard_of", vocab_size=5000),
        ["vocab_size is 5000, but openvino_model.xml has 4096"],
    ),
    "windows": (
        config(sliding_window=512, layer_types=["full_attention", "sliding_attention"]),
        ["layer 1 has a sliding window of 512, but openvino_model.xml computes with 0"],
    ),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders(name: str, demo_ir: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    change, parts = FOLDERS[name]
    folder = shutil.copytree(demo_ir / "draft", tmp_path / "ir")
    change(folder)
    line = refused("generate", "-m", folder, "-p", "Once")
    for part in parts:
        assert part in line


@pytest.mark.parametrize("command", [["generate", "-p", "x", "-m"], ["info"], ["export", "OUT", "-m"]])
@pytest.mark.parametrize("kind", ["file", "folder", "file of another name"])
def test_gguf(command: list[str], kind: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    name = "model.bin" if kind == "file of another name" else "model-q4_k_m.gguf"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(b"GGUF\3\0\0\0" + b"\0" * 64)
    given = tmp_path / "in" if kind == "folder" else tmp_path / "in" / name
    words = [str(tmp_path / "out") if word == "OUT" else word for word in command]
    line = refused(*words, given)
    said = "is a GGUF file: give the file" if kind == "folder" else "names no architecture"
    assert f"{tmp_path / 'in' / name}' {said}" in line and "ovspec export" in line
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def lose_a_shard(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.rename(folder / "model-00001-of-00002.safetensors")
    names = {"model.norm.weight": 1, "lm_head.weight": 2}
    shards = {name: f"model-0000{number}-of-00002.safetensors" for name, number in names.items()}
    large = " " * (17 << 20)  # as of models with thousands of experts
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}) + large)


def as_pickle(keep: float) -> Change:
    """Weights as torch.save writes them, of which a part is left."""

    def change(folder: Path) -> None:
        weights = folder / "model.safetensors"
        torch = pytest.importorskip("torch")
        torch.save({"lm_head.weight": torch.zeros(8, 8)}, folder / "pytorch_model.bin")
        weights.unlink()
        cut("pytorch_model.bin", keep)(folder)

    return change


def ship_code(folder: Path) -> None:
    (folder / "configuration_mine.py").write_text("raise SystemExit('this code ran')")
    config(model_type="mine", auto_map={"AutoConfig": "configuration_mine.Mine"})(folder)


CHECKPOINTS: dict[str, tuple[Change, list[str]]] = {
    "cut weights": (
        cut("model.safetensors"),
        ["model.safetensors is missing, cut short or damaged", "get it again"],
    ),
    "header of nothing": (write("model.safetensors", b"\0" * 64), ["cut short or damaged"]),
    "empty weights": (write("model.safetensors", b""), ["cut short or damaged"]),
    "lost shard": (lose_a_shard, ["model-00002-of-00002.safetensors is missing"]),
    "broken index": (write("model.safetensors.index.json", b"[]"), ["index.json: holds list"]),
    "index of numbers": (
        write("model.safetensors.index.json", b'{"weight_map": {"lm_head.weight": 3}}'),
        ["index.json has no weight_map from weights to files"],
    ),
    "cut pickle": (as_pickle(0.9), ["pytorch_model.bin is cut short or damaged; get it again"]),
    "empty pickle": (as_pickle(0.0), ["pytorch_model.bin is cut short or damaged; get it again"]),
    "configuration of another kind": (write("config.json", b"[]"), ["cannot be read by transformers"]),
    "layers as text": (
        config(num_hidden_layers="2"),
        ["field 'num_hidden_layers': TypeError", "expected int, got str", "check config.json"],
    ),
    "types of other layers": (config(layer_types=["full_attention"]), ["check config.json"]),
    "dtype": (config(dtype="float23"), ["no attribute 'float23'", "check config.json"]),
    "activation": (config(hidden_act="unheard_of"), ["KeyError 'unheard_of'"]),
    "tokenizer of another kind": (write("tokenizer.json", b"[]"), ["cannot be read by transformers"]),
    "settings of the tokenizer": (write("tokenizer_config.json", b"[]"), ["cannot be read by transformers"]),
    "more layers": (config(num_hidden_layers=3), ["model.layers.2", "is not among the weights"]),
    "fewer layers": (config(num_hidden_layers=1), ["the weights hold model.layers.1", "no place for"]),
    "heads": (
        config(num_attention_heads=8),
        ["model.layers.{0, 1}.self_attn", "has another shape in the weights"],
    ),
    "vocabulary": (config(vocab_size=5000), ["has another shape in the weights"]),
    "no tokenizer": (remove("tokenizer.json", "tokenizer_config.json"), ["has no tokenizer"]),
    "remote code": (ship_code, ["comes with code of its own", "--trust-remote-code"]),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints(
    name: str,
    tmp_path: Path,
    tiny_llama: Path,
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change, parts = CHECKPOINTS[name]
    folder = shutil.copytree(tiny_llama, tmp_path / "checkpoint")
    change(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    line = refused("export", "-m", folder, "--weight-format", "fp32", tmp_path / "out")
    for part in parts:
        assert part in line
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")
    return write_checkpoint(TINY["Llama"], tmp_path_factory.mktemp("llama") / "checkpoint")


def test_tokenizer_without_special_tokens(tmp_path: Path, tiny_llama: Path) -> None:
    """Such a model runs as far as it is told to, and has to be told."""
    folder = shutil.copytree(tiny_llama, tmp_path / "checkpoint")
    none = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    config(**none)(folder)
    edit("tokenizer_config.json", eos_token=..., bos_token=..., pad_token=...)(folder)
    remove("generation_config.json")(folder)
    pipe = ovspec.LLMPipeline(export_model(folder, tmp_path / "ir", weight_format="fp32"), "CPU", **F32)
    prompt = ov.Tensor(np.arange(5, 25)[None])
    assert len(pipe.generate(prompt, max_new_tokens=6).tokens[0]) == 6
    assert pipe.generate("Once upon a time", max_new_tokens=6)
    with pytest.raises(ValueError, match="or 'max_new_tokens', or 'max_length' should be defined"):
        pipe.generate(prompt)

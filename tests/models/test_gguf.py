"""GGUF files: every format and family becomes a folder that the native operations know, or is refused."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai
import pytest
from commands import command, one_line, ovspec
from gguf_files import HIDDEN, LAYERS, QUANTISERS, GgufModel
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ovspec import LLMPipeline
from ovspec.devices.devices import openvino_core
from ovspec.graphs.paged_graph import lower, transform
from ovspec.operations.backends import Backends
from ovspec_models.sources.gguf_file import GgufFile
from ovspec_models.sources.gguf_folder import export_gguf
from ovspec_transforms import DECODER_LAYERS
from ovspec_transforms.linear.native_linear import linear_layers
from ovspec_transforms.weights.linear_weights import is_constant, number_weights, stored_weights

FAMILIES = ("llama", "qwen2", "qwen3")
# Largest error of a weight; the reader rounds the zero points of K-quants.
MOST = {"F16": 2e-4, "Q4_0": 0.025, "Q4_1": 0.02, "Q8_0": 0.0015, "Q4_K": 0.04, "Q6_K": 0.006}
F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ovspec" / "gguf"


def exported(model: GgufModel, folder: Path) -> Path:
    return export_gguf(model.write(folder / "in.gguf"), folder / "ir", print, print)


def weights_of(matmul: ov.Node) -> NDArray[np.float32]:
    weights = number_weights(matmul) or stored_weights(matmul, "a layer")
    if weights.scales is None or weights.zero_points is None:
        return np.array(weights.numbers(), np.float32)
    each = weights.inputs // weights.groups
    values = weights.values().astype(np.float32) - weights.zero_points.repeat(each, 1)
    return values * weights.scales.astype(np.float32).repeat(each, 1)


@pytest.mark.parametrize("kind", QUANTISERS)
def test_linear_knows_every_format(kind: str, tmp_path: Path) -> None:
    family = FAMILIES[list(QUANTISERS).index(kind) % 3]
    model = GgufModel(family, kind, embedding=kind)
    folder = exported(model, tmp_path)
    graph = ov.Core().read_model(folder / "openvino_model.xml")
    report = linear_layers(graph)
    assert len(report.changed) == 7 * LAYERS + 1 and not report.left
    found = [weights_of(node) for node in graph.get_ordered_ops() if is_matmul(node)]
    for name, (_, wanted) in model.tensors.items():
        # The reader puts the rows of Llama's queries and keys into another order.
        if wanted.ndim == 2 and not (family == "llama" and ("attn_q" in name or "attn_k" in name)):
            errors = [np.abs(held - wanted).max() for held in found if held.shape == wanted.shape]
            assert min(errors) < MOST[kind], name


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_joined(family: str, tmp_path: Path) -> None:
    """The parts of the first layer, all layers, the output layer; no product is left beside them."""
    folder = exported(GgufModel(family), tmp_path)
    backends = Backends.resolve(folder, "CPU", F32)
    graph = openvino_core().read_model(folder / "openvino_model.xml")
    transform(graph, backends.attention, 32)
    lower(graph, backends)
    counts = Counter(node.get_type_name() for node in graph.get_ops())
    beside = ("Linear", "MatMul", "VerifyAttention", "CacheWrite", "GatedMLP")
    assert counts[DECODER_LAYERS] == 3 and not any(counts[kind] for kind in beside)


def is_matmul(node: ov.Node) -> bool:
    return node.get_type_name() == "MatMul" and is_constant(node)


@pytest.mark.parametrize(("family", "kind"), [("llama", "Q6_K"), ("qwen2", "Q4_1"), ("qwen3", "Q8_0")])
def test_pipeline_writes_what_genai_writes(family: str, kind: str, tmp_path: Path) -> None:
    file = GgufModel(family, kind, embedding="Q8_0").write(tmp_path / "tiny.gguf")
    # Both round rows in front of integer weights, each in its own way, in f32 too, unless told not to.
    exact = {**F32, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    pipeline = LLMPipeline(file, "CPU", drafter="prompt_lookup", **exact)
    assert pipeline.runner.identity_breakers == ()
    (folder,) = (tmp_path / "cache" / "ovspec" / "gguf").glob("*-*/tiny")
    theirs = openvino_genai.LLMPipeline(str(folder), "CPU", **exact)
    prompt = "the other one in an inn"
    expected = theirs.generate([prompt], max_new_tokens=24, apply_chat_template=False)
    assert pipeline.generate([prompt], max_new_tokens=24, apply_chat_template=False).texts == expected.texts


def test_no_ir_is_written_beside_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    file = GgufModel().write(folder / "tiny.gguf")
    with pytest.raises(RuntimeError, match=r"enable_save_ov_model=True: .* export -m FILE") as caught:
        LLMPipeline(file, "CPU", {"enable_save_ov_model": True})
    assert "\n" not in str(caught.value)
    options = {"max_new_tokens": 4, "apply_chat_template": False}
    plain = LLMPipeline(file, "CPU", **F32).generate("the", **options)
    assert LLMPipeline(file, "CPU", enable_save_ov_model=False, **F32).generate("the", **options) == plain
    assert list(folder.iterdir()) == [file]


@pytest.mark.parametrize("words", ["generate -p the", "export full/out"])
def test_a_full_disk_is_not_the_files_fault(words: str, tmp_path: Path) -> None:
    own = ("unshare", "-rm", "sh", "-c")
    mount = "mount -t tmpfs -o size=300k tmpfs full"
    (tmp_path / "full").mkdir()
    if command(*own, mount, cwd=tmp_path).returncode:
        pytest.skip("needs a file system of its own")
    GgufModel().write(tmp_path / "tiny.gguf")
    program = Path(sys.executable).with_name("ovspec")
    line = f"{mount} && XDG_CACHE_HOME=$PWD/full {program} {words} -m tiny.gguf"
    refusal = one_line(command(*own, line, cwd=tmp_path))
    assert "full" in refusal and "No space left on device" in refusal and "can't read" not in refusal


def test_file_is_read_once(tmp_path: Path, cache: Path) -> None:
    file = GgufModel().write(tmp_path / "tiny.gguf")
    words = ("generate", "-m", file, "-p", "the", "--max-new-tokens", "4", "--ignore-eos")
    first, second = ovspec(*words), ovspec(*words)
    assert first.returncode == 0 and "reading tiny.gguf into OpenVINO IR" in first.stderr, first.stderr
    assert "reading tiny.gguf" not in second.stderr and first.stdout == second.stdout
    shutil.copyfile(file, tmp_path / "again.gguf")  # the same content
    assert "reading" not in ovspec(*words[:2], tmp_path / "again.gguf", *words[3:]).stderr
    GgufModel(seed=1).write(file)
    assert "reading tiny.gguf" in ovspec(*words).stderr
    assert len(list(cache.glob("*-*/tiny"))) == 2


def test_export_writes_a_whole_folder(tmp_path: Path) -> None:
    model = GgufModel("qwen3")
    model.metadata["tokenizer.ggml.eot_token_id"] = 1
    file = model.write(tmp_path / "weights")  # known by its content
    run = ovspec("export", "-m", file, tmp_path / "out")
    assert run.returncode == 0, run.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (
        config["model_type"] == "qwen3" and config["hidden_size"] == HIDDEN and config["tie_word_embeddings"]
    )
    ends = json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"]
    assert ends == [0, 1]
    tokenizer = openvino_genai.Tokenizer(str(tmp_path / "out"))
    assert tokenizer.encode("x" * 9000).input_ids.shape[1] == 9000
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a"}], False) == "<|im_start|>a"
    assert not [path for path in (tmp_path / "out").iterdir() if path.suffix == ".gguf"]
    refused = ovspec("export", "-m", file, tmp_path / "other", "--weight-format", "int8")
    assert "--weight-format is for checkpoints" in one_line(refused)


def without(name: str) -> Callable[[GgufModel], object]:
    return lambda model: model.metadata.pop(name)


def having(name: str, value: object) -> Callable[[GgufModel], object]:
    return lambda model: model.metadata.update({name: value})


def holding(name: str, size: int) -> Callable[[GgufModel], object]:
    return lambda model: model.tensors.update({name: ("F32", np.ones(size, np.float32))})


REFUSED: dict[str, tuple[Callable[[GgufModel], object], str]] = {
    "family": (having("general.architecture", "gemma3"), "is of the architecture 'gemma3'"),
    "families": (having("general.architecture", ["llama"]), "is of the architecture ['llama']"),
    "no family": (without("general.architecture"), "names no architecture"),
    "no tokenizer": (without("tokenizer.ggml.model"), "has no tokenizer"),
    "tokenizer": (having("tokenizer.ggml.model", "llama"), "a tokenizer of the kind 'llama'"),
    "half a tokenizer": (without("tokenizer.ggml.merges"), "tokenizer.ggml.merges is missing"),
    "mixture": (having("llama.expert_count", 8), "8 experts"),
    "scaled": (having("llama.rope.scaling.type", "yarn"), "scaled rotary embeddings ('yarn')"),
    "factor": (having("llama.rope.scaling.factor", 4.0), "scaled rotary embeddings ('linear')"),
    "old factor": (having("llama.rope.scale_linear", 4.0), "scaled rotary embeddings ('linear')"),
    "size": (without("llama.block_count"), "llama.block_count is missing"),
    "read by GenAI alone": (without("general.file_type"), "openvino_genai can't read"),
    "frequencies": (holding("rope_freqs.weight", 32), "rope_freqs.weight"),
    "a norm's bias": (holding("blk.0.attn_norm.bias", HIDDEN), "has the tensor blk.0.attn_norm.bias, which"),
    "order": (holding("blk.1.attn_q.bias", HIDDEN), "the tensor blk.1.attn_q.bias in an order of its own"),
    "type": (
        lambda model: model.tensors.update({"output.weight": ("F32", np.ones((64, HIDDEN), np.float32))}),
        "output.weight is of the type F32",
    ),
}


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({}, False),
        ({"tokenizer.ggml.add_bos_token": True}, True),
        ({"tokenizer.ggml.pre": "llama-bpe"}, True),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, False),
    ],
)
def test_a_token_that_the_reader_leaves_out(changes: dict[str, object], warned: bool, tmp_path: Path) -> None:
    model, said = GgufModel(), list[str]()
    model.metadata |= {"tokenizer.ggml.bos_token_id": 1} | changes
    folder = export_gguf(model.write(tmp_path / "in.gguf"), tmp_path / "ir", print, said.append)
    assert openvino_genai.Tokenizer(str(folder)).encode("the").input_ids.data[0, 0] != 1
    assert any("puts a token (BOS) in front of every text" in line for line in said) == warned


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, tmp_path: Path) -> None:
    change, said = REFUSED[name]
    model = GgufModel()
    change(model)
    file = model.write(tmp_path / "tiny.gguf")
    assert said in one_line(ovspec("generate", "-m", file, "-p", "the"))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damage_is_one_line(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = bytearray(CONTENT)
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(4, HEAD))] = data.draw(st.integers(0, 255))
    size = data.draw(st.sampled_from([len(content), data.draw(st.integers(5, len(content)))]))
    file = tmp_path_factory.getbasetemp() / "damaged.gguf"
    file.write_bytes(bytes(content[:size]))
    said = ""
    try:
        GgufFile.read(file)
    except ValueError as error:
        said = str(error)
    assert "\n" not in said and (str(file) in said or size >= len(content) - 32)  # padding


CONTENT = GgufModel().content()
HEAD = CONTENT.index(b"ffn_down") + 60

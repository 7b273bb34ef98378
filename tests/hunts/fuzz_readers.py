"""Small valid files, and the functions of ovspec that read them."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from gguf_files import GgufModel
from hunts.fuzz_adapters import kohya_files, peft_files, read_adapter
from openvino import opset15 as ops
from prompts import STORY
from safetensors import safe_open
from safetensors.numpy import save
from settings import F32

import ovspec
from ovspec.bundle.files.check_files import check_files, check_machine, this_machine
from ovspec.drafters.corpus import Corpus
from ovspec.eval.prompts import read_prompts
from ovspec.generation.inputs import read_generation_config, read_tokenizer
from ovspec.graphs import checksums
from ovspec.graphs.compile import read_model
from ovspec.pipeline.prefix_files import load_prefix, save_prefix
from ovspec.serve.batch_file import BatchOutput, read_batch
from ovspec.serve.served_model import read_template
from ovspec_models import ModelInfo, OvspecConfig, demo_pair_path
from ovspec_models.export.calibration_texts import read_dataset
from ovspec_models.export.checkpoint import Checkpoint
from ovspec_models.folder.head_info import HeadInfo, checkpoint_kind, head_kind
from ovspec_models.folder.ir_facts import IrFacts
from ovspec_models.folder.jsonl import read_texts
from ovspec_models.folder.model_info import read_shape, weight_format_of
from ovspec_models.folder.tokenizer_check import check_same_token_ids
from ovspec_models.heads import open_head
from ovspec_models.sources.gguf_config import check_readable, config_of, generation_config_of
from ovspec_models.sources.gguf_file import GgufFile

DEMO = demo_pair_path()
Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Reader:
    """A function that reads a folder.

    Attributes:
        files: what lies in a folder that it takes, by their names.
        changed: names of those that a hunt changes.
        read: reads the folder.
        share: how often it is tried; one that takes long, less often.
    """

    files: Callable[[], Files]
    changed: tuple[str, ...]
    read: Callable[[Path], object]
    share: int = 10


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()


def demo(*names: str) -> Files:
    """Files of the demo pair."""
    return {name: (DEMO / name).read_bytes() for name in names}


_RICH = {
    "model_type": "gemma3_text", "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100, "eos_token_id": [1, 106],
    "max_position_embeddings": 512, "sliding_window": 64, "sliding_window_pattern": 2,
    "layer_types": ["sliding_attention", "full_attention", "linear_attention", "full_attention"],
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    "text_config": {"rope_theta": 1e4, "num_hidden_layers": 4}, "multi_query": False,
}  # fmt: skip
_EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
    "vocab_size": 20,
    "draft_vocab_size": 10, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "target_hidden_size": 8,
    "target_num_layers": 6,
    "eagle_aux_hidden_state_layer_ids": [1, 3, 4], "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0,
    2, 3]},
}  # fmt: skip
_DFLASH = {
    "architectures": ["DFlashDraftModel"], "hidden_size": 8, "vocab_size": 20, "num_target_layers": 6,
    "block_size": 8, "num_hidden_layers": 2, "speculators_model_type": "dflash", "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True,
    "sliding_window_non_causal": False,
    "dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 2]},
    "transformer_layer_config": {"head_dim": 4},
}  # fmt: skip


def eagle3() -> Files:
    """A head's checkpoint."""
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    shapes = {
        "fc.weight": (8, 24), "norm.weight": (8,), "lm_head.weight": (10, 8),
        **{f"midlayer.{name}.weight": (8,) for name in norms},
        **{f"midlayer.self_attn.{part}_proj.weight": (rows, 16) for part, rows in (("q", 8), ("k", 4), ("v",
        4))},
        "midlayer.self_attn.o_proj.weight": (8, 8),
        "midlayer.mlp.gate_proj.weight": (12, 8), "midlayer.mlp.up_proj.weight": (12, 8),
        "midlayer.mlp.down_proj.weight": (8, 12),
    }  # fmt: skip
    arrays: dict[str, Any] = {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}
    arrays["d2t"] = np.arange(10)
    return {"config.json": _json(_EAGLE3), "model.safetensors": save(arrays)}


def medusa() -> Files:
    """Another kind of head, whose sizes are those of its weights."""
    arrays = {}
    for head in range(2):
        arrays[f"{head}.0.linear.weight"] = np.ones((8, 8), np.float32)
        arrays[f"{head}.0.linear.bias"] = np.ones(8, np.float32)
        arrays[f"{head}.1.weight"] = np.ones((20, 8), np.float32)
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "x"}
    return {"config.json": _json(config), "medusa_lm_head.safetensors": save(arrays)}


@functools.cache
def small_ir() -> Files:
    """A graph with constants of several types."""
    ids = ops.parameter([-1, -1], np.int64, name="input_ids")
    table = ops.constant(np.ones((100, 64), np.float16))
    rows = ops.gather(ops.convert(table, "f32"), ids, ops.constant(np.int32(0)))
    for kind in (ov.Type.u8, ov.Type.i8, ov.Type.u4, ov.Type.f32):
        constant = ov.op.Constant(kind, ov.Shape([64, 64]), [1] * 4096)
        rows = ops.matmul(rows, ops.convert(constant, "f32"), False, True)
    model = ov.Model([ops.result(rows, name="logits")], [ids], "small")
    model.set_rt_info("f16", ["runtime_options", "KV_CACHE_PRECISION"])
    folder = Path("/tmp") if not Path("/dev/shm").is_dir() else Path("/dev/shm")
    path = folder / f"ovspec-hunt-{id(model)}.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    files = {
        "openvino_model.xml": path.read_bytes(),
        "openvino_model.bin": path.with_suffix(".bin").read_bytes(),
    }
    path.unlink()
    path.with_suffix(".bin").unlink()
    shape = {key: value for key, value in _RICH.items() if key not in ("layer_types", "text_config")}
    return {
        **files,
        "config.json": _json({**shape, "model_type": "llama"}),
        "openvino_tokenizer.xml": b"<net/>",
    }


def _gguf() -> Files:
    """A GGUF file without layers, since no weights are read."""
    model = GgufModel()
    norm = ("F32", np.ones(256, np.float32))
    model.tensors = {"token_embd.weight": ("F16", np.ones((8, 256), np.float32)), "output_norm.weight": norm}
    return {"model.gguf": model.content()}


def _read_gguf(folder: Path) -> object:
    file = GgufFile.read(folder / "model.gguf")
    check_readable(file)
    return config_of(file), generation_config_of(file)


def _facts(folder: Path) -> object:
    info = ModelInfo.read(folder)
    return info.weight_sizes(), info.section("here"), info.kv_cache_bytes_per_token("u8")


def _tokenizer_json() -> bytes:
    vocab = {f"t{number}": number for number in range(12)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": 12, "content": "<s>", "special": True, **flags}]
    return _json(
        {"version": "1.0", "model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": added}
    )


def checkpoint() -> Files:
    """A Hugging Face checkpoint."""
    config = {**_RICH, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    for name in ("layer_types", "text_config", "rope_scaling"):
        del config[name]
    return {
        "config.json": _json(config),
        "tokenizer.json": _tokenizer_json(),
        "tokenizer_config.json": _json({"tokenizer_class": "PreTrainedTokenizerFast"}),
        "model.safetensors": save({"a": np.ones(4, np.float32)}),
        "model.safetensors.index.json": _json({"metadata": {}, "weight_map": {"a": "model.safetensors"}}),
    }


def _bundle() -> Files:
    content = {"model/a.bin": b"abc", "install.sh": b"#!/bin/sh\n"}
    listed = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in content.items()
    }
    return {
        "manifest.json": _json({"format": 1, "draft_model": None, **this_machine(), "files": listed}),
        **content,
    }


_BATCH = [
    {"custom_id": f"n{n}", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once", "n": n}}
    for n in range(3)
]


def _batch_output(folder: Path) -> object:
    with BatchOutput(folder / "out.jsonl", read_batch(folder / "batch.jsonl")) as output:
        return output.done


def _lines(values: list[Any]) -> bytes:
    return b"\n".join(json.dumps(value).encode() for value in values) + b"\n"


@functools.cache
def prefix_pipeline() -> ovspec.LLMPipeline:
    """Whose prefix files are read: the draft alone, the smallest model there is."""
    return ovspec.LLMPipeline(DEMO / "draft", "CPU", **{**F32, "KV_CACHE_PRECISION": "u8"})


@functools.cache
def prefix_file() -> Files:
    """What `save_prefix` writes."""
    path = Path(f"/dev/shm/ovspec-hunt-{id(prefix_file)}.safetensors")
    save_prefix(prefix_pipeline(), path, STORY[:700], is_system_message=False)
    data = path.read_bytes()
    path.unlink()
    return {"prefix.safetensors": data}


def _forged(folder: Path) -> object:
    """Load a prefix file whose checksum fits what was changed."""
    from ovspec.runner.prefix_file import PrefixFile

    path = folder / "prefix.safetensors"
    try:
        with safe_open(path, framework="numpy") as file:
            names, known = list(file.keys()), dict(file.metadata() or {})
            content = {name: file.get_tensor(name) for name in names}
        tokens, long_rope = content.pop("token_ids"), known.pop("long RoPE") == "True"
        made_with = {name: text for name, text in known.items() if name not in ("checksum", "format")}
    except Exception:  # it is no such file any more
        return load_prefix(prefix_pipeline(), path)
    PrefixFile(tokens, content, long_rope, made_with).write(path)
    return load_prefix(prefix_pipeline(), path)


@functools.cache
def _demo_tokenizer() -> Any:
    return read_tokenizer(DEMO)


_TOKENIZER = (
    *(f"openvino_{name}.{end}" for name in ("tokenizer", "detokenizer") for end in ("xml", "bin")),
    *("tokenizer_config.json", "config.json"),
)
_IR = ("openvino_model.xml", "openvino_model.bin", "config.json")

READERS: dict[str, Reader] = {
    "ovspec_config": Reader(lambda: demo("ovspec_config.json"), ("ovspec_config.json",), OvspecConfig.load,
    30),
    "shape": Reader(lambda: demo("config.json"), ("config.json",), read_shape, 30),
    "rich shape": Reader(lambda: {"config.json": _json(_RICH)}, ("config.json",), read_shape, 30),
    "model facts": Reader(small_ir, ("config.json", "openvino_model.xml"), _facts, 30),
    "weight format": Reader(
        small_ir, ("openvino_model.xml",), lambda folder: weight_format_of(folder / "openvino_model.xml"), 20
    ),
    "IR facts": Reader(
        small_ir, ("openvino_model.xml",), lambda folder: IrFacts.read(folder / "openvino_model.xml"), 20
    ),
    "GGUF": Reader(_gguf, ("model.gguf",), _read_gguf, 20),
    "IR": Reader(
        lambda: demo(*(f"draft/{name}" for name in _IR)),
        tuple(f"draft/{name}" for name in _IR),
        lambda folder: read_model(ov.Core(), folder / "draft"),
        2,
    ),
    "head": Reader(eagle3, ("config.json",), HeadInfo.read, 20),
    "block head": Reader(lambda: {"config.json": _json(_DFLASH)}, ("config.json",), HeadInfo.read, 20),
    "kind of head": Reader(
        lambda: {**eagle3(), **small_ir(), "config.json": _json(_EAGLE3)},
        ("config.json", "openvino_model.xml"),
        lambda folder: (head_kind(folder), checkpoint_kind(folder)),
        20,
    ),
    "eagle3": Reader(eagle3, ("config.json", "model.safetensors"), lambda folder: open_head(folder,
    "eagle3"), 20),
    "medusa": Reader(
        medusa, ("config.json", "medusa_lm_head.safetensors"), lambda folder: open_head(folder, "medusa"), 20
    ),
    "vocabulary": Reader(
        lambda: {"tokenizer.json": _tokenizer_json(), "config.json": _json(_RICH)},
        ("tokenizer.json", "config.json"),
        lambda folder: check_same_token_ids(folder, folder),
        20,
    ),
    "checkpoint": Reader(
        checkpoint,
        ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
        "model.safetensors.index.json"),
        lambda folder: Checkpoint.open(folder, "model", trust_remote_code=False, cache_dir=None),
        2,
    ),
    "texts": Reader(
        lambda: {"texts.jsonl": _lines(["Once", {"prompt": "upon"}, {"prompt": "a", "x": [1]}])},
        ("texts.jsonl",),
        lambda folder: read_texts(folder / "texts.jsonl"),
        20,
    ),
    "prompts": Reader(
        lambda: {"texts.jsonl": _lines(["Once", {"prompt": "upon"}])},
        ("texts.jsonl",),
        lambda folder: read_prompts(folder / "texts.jsonl"),
        20,
    ),
    "calibration texts": Reader(
        lambda: {"texts.txt": b"Once\nupon\n"},
        ("texts.txt",),
        lambda folder: read_dataset(str(folder / "texts.txt")),
    ),
    "batch": Reader(
        lambda: {"batch.jsonl": _lines(_BATCH)},
        ("batch.jsonl",),
        lambda folder: read_batch(folder / "batch.jsonl"),
        20,
    ),
    "answers of a batch": Reader(
        lambda: {
            "batch.jsonl": _lines(_BATCH),
            "out.jsonl": _lines([{"id": "batch_req_1", "custom_id": "n0", "response": {"status_code": 200}}]),
        },
        ("out.jsonl", "batch.jsonl"),
        _batch_output,
        20,
    ),
    "generation config": Reader(
        lambda: demo("generation_config.json"), ("generation_config.json",), read_generation_config, 20
    ),
    # Its graphs stay whole: openvino_tokenizers 2026.4.1 trusts shapes and offsets in them.
    "tokenizer": Reader(lambda: demo(*_TOKENIZER), ("tokenizer_config.json",), read_tokenizer, 1),
    "prefix": Reader(
        prefix_file,
        ("prefix.safetensors",),
        lambda folder: load_prefix(prefix_pipeline(), folder / "prefix.safetensors"),
        8,
    ),
    "bundle": Reader(
        _bundle, ("manifest.json", "install.sh"), lambda folder: check_machine(check_files(folder)), 20
    ),
    "checksums": Reader(
        lambda: {"checksums.json": _json([[[1, 2, 3, 4, 5], "ab"]])},
        ("checksums.json",),
        lambda folder: checksums.remember(folder / "checksums.json"),
    ),
    "corpus": Reader(
        lambda: {"corpus.txt": STORY[:300].encode()},
        ("corpus.txt",),
        lambda folder: Corpus.read(folder / "corpus.txt", _demo_tokenizer()),
    ),
    "PEFT adapter": Reader(
        peft_files,
        ("adapter_config.json", "adapter_model.safetensors"),
        lambda folder: read_adapter(folder, "adapter_model.safetensors"),
        30,
    ),
    "kohya adapter": Reader(
        kohya_files, ("kohya.safetensors",), lambda folder: read_adapter(folder, "kohya.safetensors"), 30
    ),
    "chat template": Reader(
        lambda: {"chat.jinja": b"{{ messages }}"}, ("chat.jinja",),
        lambda folder: read_template(folder / "chat.jinja")
    ),
}  # fmt: skip
if find_spec("ovspec.runner.prefix_file"):
    READERS["forged prefix"] = Reader(prefix_file, ("prefix.safetensors",), _forged, 8)

"""ModelInfo: the shape read from config.json, the files, the cache arithmetic, and the errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ovspec_models import ModelInfo, demo_pair_path
from ovspec_models.folder.model_info import weight_format_of

BASE = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "hidden_size": 96,
    "vocab_size": 101,
    "max_position_embeddings": 512,
}


def folder_with(path: Path, config: Any, *, files: tuple[str, ...] = ()) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name in ("openvino_model.xml", "openvino_model.bin", *files):
        (path / name).write_bytes(b"12345")
    return path


def test_demo_pair() -> None:
    info = ModelInfo.read(demo_pair_path())
    assert (info.model_type, info.num_hidden_layers, info.num_kv_layers) == ("qwen3", 6, 6)
    assert (info.num_attention_heads, info.num_key_value_heads, info.head_dim) == (4, 2, 64)
    assert (info.vocab_size, info.max_position_embeddings) == (4096, 8192)
    assert info.weight_bytes == (demo_pair_path() / "openvino_model.bin").stat().st_size > 11_000_000
    assert info.has_tokenizer
    assert info.has_detokenizer
    assert info.weight_format() == "fp16"
    assert info.eos_token_ids == {0}


def test_shared_weights_of_another_folder_count_as_a_whole_only() -> None:
    info = ModelInfo.read(demo_pair_path())
    own, shared = info.weight_sizes(), 12_345
    assert info.shared_bytes == 0 and own.total > 11_000_000
    assert replace(info, shared_bytes=shared).weight_sizes() == replace(own, total=own.total + shared)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, (3, 6, 2, 16, 101, 512), id="head size from hidden size"),
        pytest.param({"head_dim": 32}, (3, 6, 2, 32, 101, 512), id="head size given"),
        pytest.param({"head_dim": None}, (3, 6, 2, 16, 101, 512), id="head size null"),
        pytest.param({"num_key_value_heads": None}, (3, 6, 6, 16, 101, 512), id="no grouped queries"),
        pytest.param(
            {"num_key_value_heads": None, "multi_query": True}, (3, 6, 1, 16, 101, 512), id="multi query"
        ),
    ],
)
def test_shape(tmp_path: Path, changes: dict[str, Any], expected: tuple[int, ...]) -> None:
    info = ModelInfo.read(folder_with(tmp_path, {**BASE, **changes}))
    assert expected == (
        info.num_hidden_layers,
        info.num_attention_heads,
        info.num_key_value_heads,
        info.head_dim,
        info.vocab_size,
        info.max_position_embeddings,
    )


def test_gpt2_names(tmp_path: Path) -> None:
    config = {
        "model_type": "gpt2",
        "n_layer": 2,
        "n_head": 4,
        "n_embd": 20,
        "vocab_size": 9,
        "n_positions": 33,
    }
    info = ModelInfo.read(folder_with(tmp_path, config))
    assert (info.num_hidden_layers, info.num_attention_heads, info.num_key_value_heads) == (2, 4, 4)
    assert (info.head_dim, info.max_position_embeddings) == (5, 33)


def test_nested_text_config(tmp_path: Path) -> None:
    outer = {"model_type": "gemma3", "vocab_size": 7, "text_config": {**BASE, "model_type": "gemma3_text"}}
    info = ModelInfo.read(folder_with(tmp_path, outer))
    assert (info.model_type, info.vocab_size, info.num_hidden_layers) == ("gemma3_text", 101, 3)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, None, id="absent"),
        pytest.param({"max_position_embeddings": None}, None, id="null"),
        pytest.param({"seq_length": 2048}, 2048, id="bloom with a training length"),
        pytest.param({"max_seq_len": 65}, 65, id="mpt"),
        pytest.param({"max_sequence_length": 66}, 66, id="olmo"),
        pytest.param({"model_max_length": 67}, 67, id="baichuan"),
        pytest.param({"max_position_embeddings": None, "n_positions": 68}, 68, id="second name"),
    ],
)
def test_longest_context(tmp_path: Path, changes: dict[str, Any], expected: int | None) -> None:
    config = {key: value for key, value in BASE.items() if key != "max_position_embeddings"}
    info = ModelInfo.read(folder_with(tmp_path, {**config, **changes}))
    assert info.max_position_embeddings == expected


def test_bloom_as_transformers_writes_it(tmp_path: Path) -> None:
    config = {"model_type": "bloom", "n_layer": 2, "n_head": 8, "hidden_size": 64, "vocab_size": 99}
    info = ModelInfo.read(folder_with(tmp_path, {**config, "eos_token_id": 2, "bos_token_id": 1}))
    assert (info.num_hidden_layers, info.num_key_value_heads, info.head_dim) == (2, 8, 8)
    assert info.max_position_embeddings is None
    assert info.eos_token_ids == {2}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, set(), id="absent"),
        pytest.param({"eos_token_id": None}, set(), id="null"),
        pytest.param({"eos_token_id": []}, set(), id="empty list"),
        pytest.param({"eos_token_id": 0}, {0}, id="zero"),
        pytest.param({"eos_token_id": 7}, {7}, id="one"),
        pytest.param({"eos_token_id": [7, 3, 7]}, {3, 7}, id="several"),
        pytest.param({"text_config": {"eos_token_id": 5}}, {5}, id="nested"),
        pytest.param({"llm_config": {"eos_token_id": [5, 6]}}, {5, 6}, id="nested list"),
        pytest.param({"eos_token_id": None, "text_config": {"eos_token_id": 5}}, {5}, id="null outside"),
        pytest.param({"eos_token_id": 7, "text_config": {"eos_token_id": None}}, {7}, id="null inside"),
        # transformers writes the default of text_config beside the ids that the model was given.
        pytest.param({"eos_token_id": [1, 106], "text_config": {"eos_token_id": 1}}, {1, 106}, id="gemma3"),
    ],
)
def test_end_of_sequence_ids(tmp_path: Path, changes: dict[str, Any], expected: set[int]) -> None:
    info = ModelInfo.read(folder_with(tmp_path, {**BASE, **changes}))
    assert info.eos_token_ids == expected
    assert isinstance(info.eos_token_ids, frozenset)


@pytest.mark.parametrize(
    ("layer_types", "layers"),
    [
        (["full_attention", "sliding_attention", "full_attention"], 3),
        (["linear_attention", "linear_attention", "full_attention"], 1),
        (["mamba", "full_attention", "full_attention"], 2),
        (None, 3),
    ],
    ids=["sliding", "linear", "mamba", "absent"],
)
def test_layers_with_a_cache(tmp_path: Path, layer_types: list[str] | None, layers: int) -> None:
    info = ModelInfo.read(folder_with(tmp_path, {**BASE, "layer_types": layer_types}))
    assert info.num_kv_layers == layers
    assert info.num_hidden_layers == 3
    assert info.kv_cache_bytes_per_token("f32") == layers * 2 * 2 * 16 * 4


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, (0, 0, 0), id="none"),
        pytest.param({"sliding_window": 64}, (0, 0, 0), id="of a family that does not use it"),
        pytest.param({"model_type": "mistral", "sliding_window": 64}, (64, 64, 64), id="mistral"),
        pytest.param({"model_type": "mistral", "sliding_window": None}, (0, 0, 0), id="mistral without"),
        pytest.param(
            {"model_type": "qwen3_moe", "use_sliding_window": True, "sliding_window": 64},
            (64, 64, 64),
            id="qwen3_moe",
        ),
        pytest.param({"model_type": "phimoe", "sliding_window": 64}, (64, 64, 64), id="phimoe"),
        pytest.param({"model_type": "gemma2", "sliding_window": 64}, (64, 0, 64), id="gemma2 of old"),
        pytest.param(
            {"model_type": "gemma3_text", "sliding_window": 64, "sliding_window_pattern": 3},
            (64, 64, 0),
            id="gemma3 of old",
        ),
        pytest.param(
            {"sliding_window": 64, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            (0, 64, 0),
            id="layer types",
        ),
        pytest.param(
            {"sliding_window": 64, "layer_types": ["linear_attention", "full_attention", "mamba"]},
            (0,),
            id="layers without a cache",
        ),
        pytest.param(
            {"model_type": "mistral", "use_sliding_window": False, "sliding_window": 64},
            (0, 0, 0),
            id="switched off",
        ),
        pytest.param({"sliding_window": 0, "layer_types": ["full_attention"] * 3}, (0, 0, 0), id="zero"),
    ],
)
def test_windows(tmp_path: Path, changes: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert ModelInfo.read(folder_with(tmp_path, {**BASE, **changes})).layer_windows == expected


@pytest.mark.parametrize(
    ("multi_query", "new", "cached"), [(True, False, 1), (False, False, 4), (True, True, 4)]
)
def test_kv_heads_that_falcon_caches(tmp_path: Path, multi_query: bool, new: bool, cached: int) -> None:
    """The old architecture does not read num_kv_heads, the new one repeats them before they are cached."""
    kind = {"model_type": "falcon", "multi_query": multi_query, "new_decoder_architecture": new}
    config = {**BASE, **kind, "num_attention_heads": 4, "num_kv_heads": 2}
    config.pop("num_key_value_heads", None)
    assert ModelInfo.read(folder_with(tmp_path, config)).num_key_value_heads == cached


@pytest.mark.parametrize(
    ("precision", "mode", "expected"),
    [
        # 3 layers, 2 KV heads, head size 16; by channel: 40 rows of 16 bytes for 32 keys, so 20 bytes a key.
        ("f32", "BY_CHANNEL", 3 * 2 * 2 * 64),
        ("f16", "BY_CHANNEL", 3 * 2 * 2 * 32),
        ("bf16", "BY_TOKEN", 3 * 2 * 2 * 32),
        ("u8", "BY_TOKEN", 3 * 2 * (24 + 24)),
        ("u8", "BY_CHANNEL", 3 * 2 * (20 + 24)),
    ],
)
def test_cache_bytes(tmp_path: Path, precision: str, mode: str, expected: int) -> None:
    info = ModelInfo.read(folder_with(tmp_path, BASE))
    assert info.kv_cache_bytes_per_token(precision, mode) == expected


def test_cache_bytes_with_groups(tmp_path: Path) -> None:
    info = ModelInfo.read(folder_with(tmp_path, BASE))
    assert info.kv_cache_bytes_per_token("u8", "BY_TOKEN", 8, 4) == 3 * 2 * (16 + 2 * 8 + 16 + 4 * 8)
    assert info.kv_cache_bytes_per_token("u8", "BY_CHANNEL", 8, 4) == 3 * 2 * (20 + 16 + 4 * 8)
    assert info.kv_cache_bytes_per_token("f16", "BY_TOKEN", 8, 4) == 3 * 2 * 2 * 32


def test_cache_bytes_refuses_unknown_names(tmp_path: Path) -> None:
    info = ModelInfo.read(folder_with(tmp_path, BASE))
    with pytest.raises(ValueError, match="precision is 'fp32'"):
        info.kv_cache_bytes_per_token("fp32")
    with pytest.raises(ValueError, match="key_cache_quant_mode is 'by token'"):
        info.kv_cache_bytes_per_token("u8", "by token")


def test_files_that_plain_optimum_cli_leaves_out(tmp_path: Path) -> None:
    info = ModelInfo.read(folder_with(tmp_path, BASE, files=("openvino_tokenizer.xml",)))
    assert info.has_tokenizer
    assert not info.has_detokenizer
    assert info.weight_bytes == 5


class TestErrors:
    def check(self, folder: Path, *parts: str) -> None:
        with pytest.raises(ValueError, match=r".") as caught:
            ModelInfo.read(folder)
        message = str(caught.value)
        assert "\n" not in message
        for part in (str(folder), *parts):
            assert part in message

    def test_missing_folder(self, tmp_path: Path) -> None:
        self.check(tmp_path / "absent", "does not exist", "ovspec export")

    def test_file(self, tmp_path: Path) -> None:
        (tmp_path / "model.xml").touch()
        self.check(tmp_path / "model.xml", "is a file")

    def test_empty_folder(self, tmp_path: Path) -> None:
        self.check(
            tmp_path, "openvino_model.xml, openvino_model.bin, config.json", "ovspec export -m ... OUT"
        )

    def test_weights_missing(self, tmp_path: Path) -> None:
        folder_with(tmp_path, BASE)
        (tmp_path / "openvino_model.bin").unlink()
        self.check(tmp_path, ": openvino_model.bin missing")

    def test_checkpoint(self, demo_draft: Path) -> None:
        self.check(demo_draft, "Hugging Face checkpoint", f"ovspec export -m {demo_draft} OUT")

    @pytest.mark.parametrize(
        ("config", "part"),
        [
            ("{", "not valid JSON"),
            ("[]", "expected a JSON object"),
            ({**BASE, "model_type": None}, "model_type is None"),
            ({**BASE, "vocab_size": None}, "vocab_size is missing"),
            ({**BASE, "num_hidden_layers": "3"}, "num_hidden_layers is '3'"),
            ({**BASE, "num_hidden_layers": 0}, "num_hidden_layers is 0"),
            ({**BASE, "hidden_size": None}, "hidden_size is missing"),
            ({**BASE, "max_position_embeddings": "512"}, "max_position_embeddings is '512'"),
        ],
        ids=["broken", "list", "no type", "no vocabulary", "text", "zero", "no head size", "positions"],
    )
    def test_bad_config(self, tmp_path: Path, config: Any, part: str) -> None:
        self.check(folder_with(tmp_path, config), part, "export")

    @pytest.mark.parametrize("kind", ["mamba", "linear_attention", "conv"])
    def test_no_layer_of_attention(self, tmp_path: Path, kind: str) -> None:
        folder = folder_with(tmp_path, {**BASE, "layer_types": [kind] * 3})
        self.check(folder, f"all layers are of the kind '{kind}'", "run the model with transformers")

    @pytest.mark.parametrize("nested", [False, True], ids=["outer", "text_config"])
    def test_attention_to_later_tokens(self, tmp_path: Path, nested: bool) -> None:
        given = {"use_bidirectional_attention": True}
        folder = folder_with(tmp_path, {**BASE, "text_config": given} if nested else {**BASE, **given})
        self.check(folder, "use_bidirectional_attention is true", "take a text generation model")

    @pytest.mark.parametrize(
        "value", ["2", "", True, False, 2.0, -1, [[1]], ["x"], [1, -1], [None], {}], ids=repr
    )
    @pytest.mark.parametrize("nested", [False, True], ids=["outer", "text_config"])
    def test_bad_end_of_sequence_id(self, tmp_path: Path, value: Any, nested: bool) -> None:
        given = {"eos_token_id": value}
        folder = folder_with(tmp_path, {**BASE, "text_config": given} if nested else {**BASE, **given})
        part = f"config.json: eos_token_id is {value!r}, expected a token id >= 0, a list of them, or null"
        self.check(folder, part, "export")


def test_weight_format_of_mixed_constants(tmp_path: Path) -> None:
    def const(kind: str, shape: str) -> str:
        return f'<layer id="0" name="c" type="Const"><data element_type="{kind}" shape="{shape}" /></layer>'

    # int8 embedding, f32 scales and a long vector of norms must not outvote the int4 matrices.
    xml = tmp_path / "model.xml"
    layers = (
        const("u4", "64, 4, 32")
        + const("u8", "999, 128")
        + const("f32", "64, 4, 1")
        + const("f32", "99999")
        + const("i64", "200, 200")
    )
    xml.write_text(f"<net><layers>{layers}</layers></net>")
    assert weight_format_of(xml) == "int4"
    xml.write_text(f"<net>{const('i8', '64, 64')}{const('f16', '64, 1')}{const('f32', '9, 9')}</net>")
    assert weight_format_of(xml) == "int8"
    xml.write_text(f"<net>{const('f16', '64, 64')}{const('f32', '9, 9')}{const('f32', '9999')}</net>")
    assert weight_format_of(xml) == "fp16"
    xml.write_text("<net><layers></layers></net>")
    with pytest.raises(ValueError, match="holds no weights"):
        weight_format_of(xml)


GOOD_LAYER = '<layer id="0" name="c" type="Const"><data element_type="f16" shape="64, 64" /></layer>'


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(f"<net><layers>{GOOD_LAYER}", id="cut short"),
        pytest.param("not XML\n", id="text"),
        pytest.param('{"net": 1}', id="JSON"),
        pytest.param("version https://git-lfs.github.com/spec/v1\nsize 5\n", id="LFS pointer"),
        pytest.param(
            f'<?xml version="1.0" encoding="utf-99"?><net>{GOOD_LAYER}</net>', id="unknown encoding"
        ),
        pytest.param(f"<net>{GOOD_LAYER.replace('64, 64', '64, x')}</net>", id="shape of text"),
    ],
)
def test_broken_ir_is_named_in_one_line(tmp_path: Path, text: str) -> None:
    folder = folder_with(tmp_path, BASE)
    (folder / "openvino_model.xml").write_text(text)
    with pytest.raises(ValueError, match=r".") as caught:
        ModelInfo.read(folder).weight_format()
    message = str(caught.value)
    assert message.startswith(f"{folder / 'openvino_model.xml'}: cannot be read as OpenVINO IR (")
    assert message.endswith("export the model again: `ovspec export -m ... OUT`")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("kind", "expected"), [("nf4", "nf4"), ("f4e2m1", "fp4"), ("f8e4m3", "int8"), ("i4", "int4")]
)
def test_formats_of_other_exports(tmp_path: Path, kind: str, expected: str) -> None:
    embedding = GOOD_LAYER.replace("f16", "u8")
    folder = folder_with(tmp_path, BASE)
    (folder / "openvino_model.xml").write_text(f"<net>{embedding}{GOOD_LAYER.replace('f16', kind)}</net>")
    assert ModelInfo.read(folder).weight_format() == expected


def test_truncated_demo_ir(tmp_path: Path) -> None:
    data = (demo_pair_path() / "openvino_model.xml").read_bytes()
    (tmp_path / "openvino_model.xml").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"openvino_model\.xml: cannot be read as OpenVINO IR"):
        weight_format_of(tmp_path / "openvino_model.xml")

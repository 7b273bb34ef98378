"""export_model: the right weights come out, and they compute what the checkpoint computes."""

from __future__ import annotations

import shutil
import stat
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai
import pytest
from tiers import by_tier

from ovspec_models import ModelInfo, OvspecConfig, check_same_token_ids, export_model

pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

Exported = Callable[[str], Path]
Edit = Callable[[Path, Callable[[dict], None]], None]

TEXT = "Once upon a time,\n  Lily's 12 cats — “said” ümlaut 猫 <|endoftext|> x"
FILES = {
    *(
        f"openvino_{part}.{ending}"
        for part in ("model", "tokenizer", "detokenizer")
        for ending in ("xml", "bin")
    ),
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("ovspec_config.json", "README.md"),
}
# Two layers of 7 matrices, and the embedding that the head shares.
MATRICES = 15


def operations(xml: Path) -> Counter[str]:
    return Counter(op.get_type_name() for op in ov.Core().read_model(xml).get_ops())


def constants(xml: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return name -> element type, shape and the raw bytes of every constant."""
    found = {}
    for op in ov.Core().read_model(xml).get_ops():
        if op.get_type_name() == "Constant":
            shape = tuple(op.get_output_shape(0))
            found[op.get_friendly_name()] = (op.get_element_type().get_type_name(), shape, op.data.tobytes())
    return found


def weights_by_type(xml: Path) -> Counter[str]:
    """Count the weight matrices by element type: at least 2 dimensions and 4,096 values, and no scales."""
    counts: Counter[str] = Counter()
    for kind, shape, _ in constants(xml).values():
        size = 1
        for dim in shape:
            size *= dim
        if len(shape) >= 2 and shape[-1] > 1 and size >= 4096:
            counts[kind] += 1
    return counts


def last_logits(xml: Path, ids: list[int]) -> np.ndarray:
    """Return the logits `[vocab]` f32 after `ids`, computed in f32."""
    hints = {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }
    request = ov.Core().compile_model(xml, "CPU", hints).create_infer_request()
    tokens = np.array([ids], np.int64)
    inputs = {
        "input_ids": tokens,
        "attention_mask": np.ones_like(tokens),
        "position_ids": np.arange(len(ids), dtype=np.int64)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    return np.array(request.infer(inputs)["logits"][0, -1])


@pytest.fixture(scope="module")
def prompt(demo_draft: Path) -> list[int]:
    tokenizer = openvino_genai.Tokenizer(str(demo_draft.parents[2] / "models" / "ovspec_models" / "demo_ir"))
    return [int(i) for i in tokenizer.encode(TEXT).input_ids.data[0]]


@pytest.fixture(scope="module")
def torch_logits(demo_draft: Path, prompt: list[int]) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(demo_draft, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([prompt])).logits[0, -1].numpy()


@pytest.mark.parametrize(
    ("weight_format", "kind"),
    by_tier(
        [("fp32", "f32"), ("fp16", "f16"), ("int8", "u8"), ("int4", "u4")], [("fp32", "f32"), ("int8", "u8")]
    ),
)
def test_every_matrix_has_the_format(exported: Exported, weight_format: str, kind: str) -> None:
    found = weights_by_type(exported(weight_format) / "openvino_model.xml")
    if weight_format == "int4":
        # As optimum-cli does, embedding and head keep int8; a layer's scales, f16 per group, are small.
        assert (found["u4"], found["u8"]) == (MATRICES - 1, 1)
    else:
        assert found[kind] == MATRICES
    assert not set(found) - {kind, "u8" if weight_format == "int4" else kind}


# Relative L2 error of the logits. Measured on AVX2: 4e-7, 7e-5 (bf16 weights below 2^-14 lose bits in fp16),
# 0.008 and 0.11; a wrong scale or zero point gives more than 1.
@pytest.mark.parametrize(
    ("weight_format", "tolerance"),
    by_tier(
        [("fp32", 1e-5), ("fp16", 2e-4), ("int8", 0.02), ("int4", 0.2)], [("fp32", 1e-5), ("int8", 0.02)]
    ),
)
def test_logits_agree_with_the_checkpoint(
    exported: Exported, torch_logits: np.ndarray, prompt: list[int], weight_format: str, tolerance: float
) -> None:
    got = last_logits(exported(weight_format) / "openvino_model.xml", prompt)
    centred, expected = got - got.mean(), torch_logits - torch_logits.mean()
    error = np.linalg.norm(centred - expected) / np.linalg.norm(expected)
    assert error < tolerance
    assert error > 0 or weight_format == "fp32"


@pytest.mark.parametrize("weight_format", by_tier(["fp32", "fp16", "int8", "int4"], ["fp32", "int8"]))
def test_folder_describes_itself(exported: Exported, weight_format: str) -> None:
    folder = exported(weight_format)
    assert {path.name for path in folder.iterdir()} - {"openvino_config.json"} == FILES
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    config = OvspecConfig.load(folder)
    assert config is not None
    assert (config.model.source, config.model.weight_format) == ("draft", weight_format)
    assert (config.draft_model, config.verify) == (None, None)
    assert config.created_by.openvino == "2026.4.1"
    assert (config.created_by.optimum_intel or "").startswith(("2.1", "2.2"))
    info = ModelInfo.read(folder)
    assert info.weight_format() == weight_format
    for name in (
        "num_hidden_layers",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
    ):
        assert getattr(config.model, name) == getattr(info, name)
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: ovspec\n")
    assert f"- {weight_format}\n" in card
    assert "ovspec generate" in card
    for path in (folder / "README.md", folder / "ovspec_config.json"):
        assert str(folder.parent) not in path.read_text()


def test_tokenizer_round_trip(exported: Exported, demo_draft: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(demo_draft)
    tokenizer = openvino_genai.Tokenizer(str(exported("fp16")))
    ids = [int(i) for i in tokenizer.encode(TEXT).input_ids.data[0]]
    assert ids == reference(TEXT)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == TEXT


def padded(checkpoint: Path, rows: int, edit_json: Edit) -> None:
    """Grow the embedding of a checkpoint to `rows`, as some model families do for the hardware's sake."""
    from safetensors.torch import load_file, save_file

    weights = load_file(checkpoint / "model.safetensors")
    name = "model.embed_tokens.weight"
    grown = weights[name].new_zeros(rows, weights[name].shape[1])
    grown[: weights[name].shape[0]] = weights[name]
    weights[name] = grown
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    edit_json(checkpoint / "config.json", lambda config: config.update(vocab_size=rows))


@pytest.mark.slow
def test_pair_with_padded_draft_into_empty_folder(
    tmp_path: Path,
    demo_draft: Path,
    checkpoint_copy: Path,
    edit_json: Edit,
    capfd: pytest.CaptureFixture[str],
) -> None:
    padded(checkpoint_copy, 4160, edit_json)
    out = tmp_path / "pair"
    out.mkdir()
    steps: list[str] = []
    capfd.readouterr()
    returned = export_model(
        demo_draft, out, draft_model=checkpoint_copy, weight_format="int8", sym=True, progress=steps.append
    )
    assert capfd.readouterr() == ("", ""), "the libraries' output is not silenced"
    assert returned == out
    assert {path.name for path in out.iterdir()} - {"openvino_config.json"} == {*FILES, "draft"}
    assert weights_by_type(out / "openvino_model.xml") == {"i8": MATRICES}
    assert weights_by_type(out / "draft" / "openvino_model.xml") == {"i8": MATRICES}
    target, draft = OvspecConfig.load(out), OvspecConfig.load(out / "draft")
    assert target is not None
    assert draft is not None
    assert (target.draft_model, draft.draft_model) == ("draft", None)
    assert (target.model.vocab_size, draft.model.vocab_size) == (4096, 4160)
    assert "`checkpoint` in `draft/`" in (out / "README.md").read_text()
    assert "sym=True" in (out / "README.md").read_text()
    check_same_token_ids(out, out / "draft")
    assert [step.split()[0] for step in steps] == ["loading", "checking", "exporting", "exporting", "writing"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "pair"]


def test_default_format_keeps_the_checkpoints(tmp_path: Path, demo_draft: Path) -> None:
    out = export_model(demo_draft, tmp_path / "new" / "parent" / "ir")
    config = OvspecConfig.load(out)
    assert config is not None
    assert config.model.weight_format == "bf16"
    assert weights_by_type(out / "openvino_model.xml") == {"bf16": MATRICES}


def test_model_that_states_no_longest_context(tmp_path: Path, checkpoint_copy: Path) -> None:
    """Bloom's ALiBi knows no limit, and transformers writes none into config.json."""
    import torch
    from transformers import BloomConfig, BloomForCausalLM

    torch.manual_seed(0)
    for name in ("model.safetensors", "config.json"):
        (checkpoint_copy / name).unlink()
    shape = BloomConfig(vocab_size=4096, hidden_size=32, n_layer=2, n_head=4, eos_token_id=[0, 3])
    BloomForCausalLM(shape).save_pretrained(checkpoint_copy)
    out = export_model(checkpoint_copy, tmp_path / "ir", weight_format="fp16")
    info, config = ModelInfo.read(out), OvspecConfig.load(out)
    assert config is not None
    assert (info.model_type, info.num_hidden_layers, info.head_dim) == ("bloom", 2, 8)
    assert (info.max_position_embeddings, config.model.max_position_embeddings) == (None, None)
    assert info.eos_token_ids == {0, 3}
    assert "| vocabulary, longest context | 4,096, no limit stated |" in (out / "README.md").read_text()


@pytest.mark.slow
def test_flags_mean_what_optimum_cli_means(
    tmp_path: Path, demo_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same flags give the same constants, bit for bit; and a folder without our file is accepted."""
    from optimum.commands.optimum_cli import main as optimum_cli

    plain = tmp_path / "plain"
    flags = ["--weight-format", "int4", "--group-size", "64", "--ratio", "0.6", "--sym", "--all-layers"]
    flags += ["--task", "text-generation-with-past"]
    # In this process: importing torch and optimum-intel again takes longer than the export.
    arguments = ["optimum-cli", "export", "openvino", "-m", str(demo_draft), *flags, str(plain)]
    monkeypatch.setattr(sys, "argv", arguments)
    optimum_cli()
    ours = export_model(
        demo_draft,
        tmp_path / "ours",
        weight_format="int4",
        group_size=64,
        ratio=0.6,
        sym=True,
        all_layers=True,
    )
    # The names of constants are numbered per process, so their contents are compared.
    found = [sorted(constants(folder / "openvino_model.xml").values()) for folder in (ours, plain)]
    assert found[0] == found[1]
    assert operations(ours / "openvino_model.xml") == operations(plain / "openvino_model.xml")
    kinds = weights_by_type(ours / "openvino_model.xml")
    assert kinds["i4"] > 0
    assert kinds["i8"] + kinds["u8"] > 0
    assert OvspecConfig.load(plain) is None
    info = ModelInfo.read(plain)
    assert (info.num_hidden_layers, info.has_tokenizer, info.weight_format()) == (2, True, "int4")


@pytest.mark.slow
def test_demo_ir_is_the_export_of_the_demo_checkpoint(
    tmp_path: Path, demo_target: Path, demo_draft: Path
) -> None:
    committed = demo_target.parents[2] / "models" / "ovspec_models" / "demo_ir"
    rebuilt = export_model(demo_target, tmp_path / "ir", draft_model=demo_draft, weight_format="fp16")
    for part in (Path(), Path("draft")):
        for name in ("openvino_model.xml", "openvino_tokenizer.xml", "openvino_detokenizer.xml"):
            assert operations(rebuilt / part / name) == operations(committed / part / name)
        new, old = (constants(folder / part / "openvino_model.xml") for folder in (rebuilt, committed))
        assert len(new) > 50
        assert sorted(new.values()) == sorted(old.values())
        ids = [
            openvino_genai.Tokenizer(str(f / part)).encode(TEXT).input_ids.data.tolist()
            for f in (rebuilt, committed)
        ]
        assert ids[0] == ids[1]
        new_config, old_config = OvspecConfig.load(rebuilt / part), OvspecConfig.load(committed / part)
        assert new_config is not None
        assert old_config is not None
        new_config.model.source = old_config.model.source
        assert (new_config.model, new_config.draft_model) == (old_config.model, old_config.draft_model)


@pytest.mark.slow
def test_int4_takes_texts_for_calibration(tmp_path: Path, demo_draft: Path) -> None:
    """Data-aware compression works offline with a list of texts."""
    texts = ["Once upon a time there was a cat. " * 20, "Question: what is 2 + 2?\nAnswer: 4. " * 20]
    out = export_model(
        demo_draft, tmp_path / "ir", weight_format="int4", group_size=32, dataset=texts, scale_estimation=True
    )
    plain = shutil.copytree(out, tmp_path / "copy")
    assert weights_by_type(plain / "openvino_model.xml")["u4"] == MATRICES - 1
    assert "dataset=2 texts" in (out / "README.md").read_text()

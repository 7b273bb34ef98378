"""export_model: the right weights come out, compute what the checkpoint computes, and nothing half-done stays."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai
import pytest
from models_graph import constants, operations, weights_by_type
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
    tokenizer = openvino_genai.Tokenizer(str(demo_draft.parents[1] / "ovspec_models" / "demo_ir"))
    return [int(i) for i in tokenizer.encode(TEXT).input_ids.data[0]]


@pytest.fixture(scope="module")
def torch_logits(demo_draft: Path, prompt: list[int]) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(demo_draft, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([prompt])).logits[0, -1].numpy()


@pytest.mark.parametrize(
    ("weight_format", "kind"), [("fp32", "f32"), ("fp16", "f16"), ("int8", "u8"), ("int4", "u4")]
)
def test_every_matrix_has_the_format(exported: Exported, weight_format: str, kind: str) -> None:
    found = weights_by_type(exported(weight_format) / "openvino_model.xml")
    if weight_format == "int4":
        # As optimum-cli does, embedding and head keep int8; a layer's scales, f16 per group, are small.
        assert (found["u4"], found["u8"]) == (MATRICES - 1, 1)
    else:
        assert found[kind] == MATRICES
    assert not set(found) - {kind, "u8" if weight_format == "int4" else kind}


# f32: rounding only. fp16 of bf16 weights: exact but for subnormals. int8, int4: measured 0.021 and 0.35
# relative; a wrong scale or zero point gives more than 1.
@pytest.mark.parametrize(
    ("weight_format", "tolerance"), [("fp32", 1e-5), ("fp16", 1e-4), ("int8", 0.04), ("int4", 0.5)]
)
def test_logits_agree_with_the_checkpoint(
    exported: Exported, torch_logits: np.ndarray, prompt: list[int], weight_format: str, tolerance: float
) -> None:
    got = last_logits(exported(weight_format) / "openvino_model.xml", prompt)
    centred, expected = got - got.mean(), torch_logits - torch_logits.mean()
    error = np.linalg.norm(centred - expected) / np.linalg.norm(expected)
    assert error < tolerance
    assert error > 0 or weight_format == "fp32"


@pytest.mark.parametrize("weight_format", ["fp32", "fp16", "int8", "int4"])
def test_folder_describes_itself(exported: Exported, weight_format: str) -> None:
    folder = exported(weight_format)
    assert {path.name for path in folder.iterdir()} - {"openvino_config.json"} == FILES
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    config = OvspecConfig.load(folder)
    assert config is not None
    assert (config.model.source, config.model.weight_format) == ("draft", weight_format)
    assert (config.draft_model, config.verify) == (None, None)
    assert config.created_by.openvino == "2026.4.1"
    assert (config.created_by.optimum_intel or "").startswith("2.1")
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
    assert [step.split()[0] for step in steps] == ["checking", "exporting", "exporting", "writing"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "pair"]


def test_default_format_keeps_the_checkpoints(tmp_path: Path, demo_draft: Path) -> None:
    out = export_model(demo_draft, tmp_path / "new" / "parent" / "ir")
    config = OvspecConfig.load(out)
    assert config is not None
    assert config.model.weight_format == "bf16"
    assert weights_by_type(out / "openvino_model.xml") == {"bf16": MATRICES}


def test_flags_mean_what_optimum_cli_means(tmp_path: Path, demo_draft: Path) -> None:
    """The same flags give the same constants, bit for bit; and a folder without our file is accepted."""
    plain = tmp_path / "plain"
    flags = ["--weight-format", "int4", "--group-size", "64", "--ratio", "0.6", "--sym", "--all-layers"]
    flags += ["--task", "text-generation-with-past"]
    command = [
        str(Path(sys.executable).parent / "optimum-cli"),
        "export",
        "openvino",
        "-m",
        str(demo_draft),
        *flags,
    ]
    subprocess.run([*command, str(plain)], check=True, capture_output=True)
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


def test_demo_ir_is_the_export_of_the_demo_checkpoint(
    tmp_path: Path, demo_target: Path, demo_draft: Path
) -> None:
    committed = demo_target.parents[1] / "ovspec_models" / "demo_ir"
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


class TestNothingIsLeft:
    @pytest.mark.parametrize("step", ["checking", "exporting", "writing"])
    def test_after_interrupt(self, tmp_path: Path, demo_draft: Path, step: str) -> None:
        def stop(message: str) -> None:
            if message.startswith(step):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            export_model(demo_draft, tmp_path / "a" / "b" / "ir", progress=stop, weight_format="fp32")
        assert list(tmp_path.iterdir()) == []

    def test_after_broken_weights(self, tmp_path: Path, checkpoint_copy: Path) -> None:
        weights = checkpoint_copy / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])
        (tmp_path / "empty").mkdir()
        with pytest.raises(RuntimeError, match="could not export 'checkpoint'") as caught:
            export_model(checkpoint_copy, tmp_path / "empty", weight_format="fp16")
        assert "\n" not in str(caught.value)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "empty"]
        assert list((tmp_path / "empty").iterdir()) == []

    def test_after_failed_tokenizer_conversion(
        self, tmp_path: Path, checkpoint_copy: Path, edit_json: Edit
    ) -> None:
        # optimum-intel only logs this failure; openvino-tokenizers cannot convert this pre-tokenizer.
        edit_json(
            checkpoint_copy / "tokenizer.json",
            lambda data: data.update(pre_tokenizer={"type": "UnicodeScripts"}),
        )
        with pytest.raises(RuntimeError, match=r"did not write openvino_tokenizer\.xml") as caught:
            export_model(checkpoint_copy, tmp_path / "ir", weight_format="fp16")
        assert "no reason was logged" not in str(caught.value)
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


class TestRefusedBeforeTheWork:
    def check(self, model: Any, out: Path, *parts: str, **options: Any) -> None:
        before = sorted(out.parent.rglob("*"))
        with pytest.raises(ValueError, match=r".") as caught:
            export_model(model, out, **options)
        message = str(caught.value)
        assert "\n" not in message
        for part in parts:
            assert part in message
        assert sorted(out.parent.rglob("*")) == before

    def test_folder_in_use(self, tmp_path: Path, demo_draft: Path) -> None:
        (tmp_path / "mine.txt").write_text("keep")
        self.check(demo_draft, tmp_path, f"out '{tmp_path}' is not empty", "new folder")
        assert (tmp_path / "mine.txt").read_text() == "keep"

    def test_file_in_the_way(self, tmp_path: Path, demo_draft: Path) -> None:
        (tmp_path / "ir").touch()
        self.check(demo_draft, tmp_path / "ir", "is no folder")
        self.check(demo_draft, tmp_path / "ir" / "deeper", "cannot be made")

    @pytest.mark.parametrize("name", ["./absent", "/absent/model", "a/b/c", "nosuch model", ".."])
    def test_absent_model(self, tmp_path: Path, name: str) -> None:
        self.check(name, tmp_path / "ir", f"model '{name}'")

    def test_empty_name(self, tmp_path: Path) -> None:
        self.check("", tmp_path / "ir", "model is ''")

    def test_absent_draft(self, tmp_path: Path, demo_draft: Path) -> None:
        self.check(
            demo_draft, tmp_path / "ir", "draft_model", "does not exist", draft_model=tmp_path / "none"
        )

    def test_folder_without_weights(self, tmp_path: Path) -> None:
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        self.check(folder, tmp_path / "ir", "is no Hugging Face checkpoint", "safetensors")

    def test_openvino_model(self, tmp_path: Path, exported: Exported) -> None:
        self.check(exported("fp16"), tmp_path / "ir", "is an OpenVINO model already")

    def test_unknown_architecture(self, tmp_path: Path, checkpoint_copy: Path, edit_json: Edit) -> None:
        edit_json(checkpoint_copy / "config.json", lambda config: config.update(model_type="nosuchmodel"))
        self.check(checkpoint_copy, tmp_path / "ir", "cannot be read by transformers", "nosuchmodel")

    def test_hub_model_that_is_not_cached(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        self.check(
            "nobody/absent-model", tmp_path / "ir", "'nobody/absent-model' is neither a folder nor a model"
        )

    def test_draft_with_another_tokenizer(
        self, tmp_path: Path, demo_draft: Path, checkpoint_copy: Path, edit_json: Edit
    ) -> None:
        vocab = json.loads((checkpoint_copy / "tokenizer.json").read_text())["model"]["vocab"]

        def swap(data: dict) -> None:
            a, b = "!", '"'
            data["model"]["vocab"].update({a: vocab[b], b: vocab[a]})

        edit_json(checkpoint_copy / "tokenizer.json", swap)
        self.check(
            demo_draft,
            tmp_path / "ir",
            f"token id {min(vocab['!'], vocab[chr(34)])} is",
            "'!' in the target",
            "use a draft that was trained with the target's tokenizer",
            draft_model=checkpoint_copy,
        )

    def test_draft_with_too_small_embedding(
        self, tmp_path: Path, demo_draft: Path, checkpoint_copy: Path, edit_json: Edit
    ) -> None:
        edit_json(checkpoint_copy / "config.json", lambda config: config.update(vocab_size=4000))
        self.check(demo_draft, tmp_path / "ir", "vocab_size 4000", draft_model=checkpoint_copy)

    def test_missing_packages(
        self, tmp_path: Path, demo_draft: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "nncf", None)  # what an import of an absent package looks like
        with pytest.raises(RuntimeError, match=r'pip install "ovspec\[export\]"') as caught:
            export_model(demo_draft, tmp_path / "ir")
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown format": ({"weight_format": "int3"}, "weight_format is 'int3'"),
    "group size without format": ({"group_size": 64}, "group_size needs compressed weights"),
    "ratio with fp16": ({"weight_format": "fp16", "ratio": 0.8}, "weight_format is 'fp16'"),
    "sym with fp32": ({"weight_format": "fp32", "sym": True}, "sym needs compressed weights"),
    "two options with fp16": (
        {"weight_format": "fp16", "awq": True, "group_size": 64},
        "group_size, awq needs",
    ),
    "group size with int8": ({"weight_format": "int8", "group_size": 64}, "group_size works with int4"),
    "ratio with int8": ({"weight_format": "int8", "ratio": 0.5}, "ratio works with int4"),
    "all layers with int8": ({"weight_format": "int8", "all_layers": True}, "all_layers works with int4"),
    "awq with int8": ({"weight_format": "int8", "awq": True}, "awq works with int4"),
    "gptq with int8": ({"weight_format": "int8", "gptq": True}, "gptq works with int4"),
    "backup with int8": ({"weight_format": "int8", "backup_precision": "none"}, "backup_precision works"),
    "dataset with int8": ({"weight_format": "int8", "dataset": "wikitext2"}, "dataset works with int4"),
    "dataset unused": ({"weight_format": "int4", "dataset": "wikitext2"}, "no option uses it"),
    "dataset unknown": ({"weight_format": "int4", "dataset": "pile", "awq": True}, "dataset is 'pile'"),
    "gptq without dataset": ({"weight_format": "int4", "gptq": True}, "gptq needs a calibration dataset"),
    "scales without dataset": ({"weight_format": "int4", "scale_estimation": True}, "scale_estimation needs"),
    "group size zero": ({"weight_format": "int4", "group_size": 0}, "group_size is 0"),
    "group size negative": ({"weight_format": "int4", "group_size": -2}, "group_size is -2"),
    "ratio zero": ({"weight_format": "int4", "ratio": 0.0}, "weight_format='int8'"),
    "ratio above one": ({"weight_format": "int4", "ratio": 1.1}, "ratio is 1.1"),
    "unknown backup": ({"weight_format": "int4", "backup_precision": "int8"}, "backup_precision is 'int8'"),
}


@pytest.mark.parametrize(("options", "part"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_contradicting_options(tmp_path: Path, demo_draft: Path, options: dict[str, Any], part: str) -> None:
    TestRefusedBeforeTheWork().check(demo_draft, tmp_path / "ir", part, **options)


def test_int4_takes_texts_for_calibration(tmp_path: Path, demo_draft: Path) -> None:
    """Data-aware compression works offline with a list of texts."""
    texts = ["Once upon a time there was a cat. " * 20, "Question: what is 2 + 2?\nAnswer: 4. " * 20]
    out = export_model(
        demo_draft, tmp_path / "ir", weight_format="int4", group_size=32, dataset=texts, scale_estimation=True
    )
    plain = shutil.copytree(out, tmp_path / "copy")
    assert weights_by_type(plain / "openvino_model.xml")["u4"] == MATRICES - 1
    assert "dataset=2 texts" in (out / "README.md").read_text()

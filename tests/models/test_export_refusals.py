"""export_model: what it refuses, before any work, and that a failure leaves nothing behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ovspec_models import export_model
from ovspec_models.export.weight_options import WeightOptions

pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

Exported = Callable[[str], Path]
Edit = Callable[[Path, Callable[[dict], None]], None]


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
        with pytest.raises(
            ValueError, match=r"model\.safetensors is missing, cut short or damaged"
        ) as caught:
            export_model(checkpoint_copy, tmp_path / "empty", weight_format="fp16")
        assert "\n" not in str(caught.value)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "empty"]
        assert list((tmp_path / "empty").iterdir()) == []

    @pytest.mark.parametrize("name", ["other.safetensors", "\ud800", "a\0b", "n" * 5000])
    def test_after_an_index_that_names_no_file(
        self, tmp_path: Path, checkpoint_copy: Path, name: str
    ) -> None:
        index = checkpoint_copy / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"a": name}}), encoding="utf-8")
        with pytest.raises(ValueError, match="is missing, cut short or damaged") as caught:
            export_model(checkpoint_copy, tmp_path / "ir", weight_format="fp16")
        assert "\n" not in str(caught.value)
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]

    def test_after_weights_that_are_quantised_already(
        self, tmp_path: Path, checkpoint_copy: Path, edit_json: Edit
    ) -> None:
        gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
        edit_json(checkpoint_copy / "config.json", lambda data: data.update(quantization_config=gptq))
        with pytest.raises(
            RuntimeError, match=r"quantised already \(gptq\): give the checkpoint before that"
        ):
            export_model(checkpoint_copy, tmp_path / "ir", weight_format="int8")
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]

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

    @pytest.mark.parametrize(
        ("kind", "said"),
        [("mamba", "no attention"), ("xglm", "attention out"), ("diffllama", "before attention")],
    )
    def test_types_that_cannot_be_paged(
        self, tmp_path: Path, checkpoint_copy: Path, kind: str, said: str
    ) -> None:
        from transformers import CONFIG_MAPPING

        CONFIG_MAPPING[kind](architectures=["Some"]).save_pretrained(checkpoint_copy)
        self.check(checkpoint_copy, tmp_path / "ir", f"models of type '{kind}' can't be served", said)

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
        command = r'pip install "optimum-intel\S+" "nncf\S+" "torch\S+" "transformers\S+"'
        with pytest.raises(RuntimeError, match=command) as caught:
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
    "task without generation": ({"task": "feature-extraction"}, "task is 'feature-extraction', expected"),
    "task without a cache": ({"task": "text-generation"}, "task is 'text-generation', expected"),
    "unknown backup": ({"weight_format": "int4", "backup_precision": "int8"}, "backup_precision is 'int8'"),
}


class TestGroupsOfInt4:
    """Sizes of SmolLM2-135M: 128, which NNCF takes, does not divide 576."""

    @pytest.fixture
    def odd(self, tmp_path: Path) -> Callable[..., Path]:
        def make(**sizes: int) -> Path:
            folder = tmp_path / "odd"
            folder.mkdir()
            config = {"model_type": "llama", "vocab_size": 64, "num_hidden_layers": 2, **sizes}
            (folder / "config.json").write_text(json.dumps(config))
            return folder

        return make

    SMOL: ClassVar[dict[str, int]] = {
        "hidden_size": 576,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
    }

    def test_a_size_that_divides_all_rows_is_taken(self, odd: Callable[..., Path]) -> None:
        options = WeightOptions(weight_format="int4")
        assert options.group_size_of(odd(**self.SMOL), None) == 64
        assert options.to_optimum("a", 64).quantization_config.group_size == 64

    def test_a_ratio_leaves_the_choice_of_layers_to_nncf(self, odd: Callable[..., Path]) -> None:
        options = WeightOptions(weight_format="int4", group_size=128, ratio=0.5)
        assert options.group_size_of(odd(**self.SMOL), None) == 128

    @pytest.mark.parametrize(
        ("sizes", "options", "part"),
        [
            pytest.param({}, {"group_size": 128}, "rows of 576 .*use --group-size 64", id="asked"),
            pytest.param({"intermediate_size": 97}, {}, "rows of 97 .*use --group-size -1", id="none fits"),
            pytest.param(
                {"num_experts": 4, "moe_intermediate_size": 40, "intermediate_size": 97},
                {"group_size": 64},
                "rows of 40 .*use --group-size 8 ",
                id="experts",
            ),
        ],
    )
    def test_another_is_refused_before_packages_are_loaded(
        self,
        odd: Callable[..., Path],
        sizes: dict[str, int],
        options: dict[str, int],
        part: str,
        tmp_path: Path,
    ) -> None:
        def loads(step: str) -> None:
            pytest.fail(f"began with {step}")

        folder = odd(**{**self.SMOL, **sizes})
        with pytest.raises(ValueError, match=part) as caught:
            export_model(folder, tmp_path / "ir", weight_format="int4", progress=loads, **options)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("options", "part"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_contradicting_options(tmp_path: Path, demo_draft: Path, options: dict[str, Any], part: str) -> None:
    TestRefusedBeforeTheWork().check(demo_draft, tmp_path / "ir", part, **options)

"""Weight formats through the flags of `ovspec export`: one export of a tiny Llama each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from settings import F32
from tiers import by_tier
from tiny_checkpoints import TINY, write_checkpoint

from ovspec.cache.cache import CachedSequence
from ovspec.cli import cli
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import ModelInfo, export_model

pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

TEXTS = ["Once upon a time there was a cat. " * 12, "Question: what is 2 + 2? Answer: 4. " * 12]
# Flags, and how many matrices have which type: 14 in the layers, embedding and head.
CASES: dict[str, tuple[list[str], dict[str, int]]] = {
    "bf16": (["--weight-format", "bf16"], {"bf16": 16}),
    "int4 gptq": (
        ["--weight-format", "int4", "--group-size", "32", "--gptq", "--dataset", "TEXTS"],
        {"u4": 14, "u8": 2},
    ),
    "int4 sym awq": (
        ["--weight-format", "int4", "--group-size", "32", "--sym", "--awq"],
        {"i4": 14, "u8": 2},
    ),
}
SWEPT: dict[str, tuple[list[str], dict[str, int]]] = {
    "fp32": (["--weight-format", "fp32"], {"f32": 16}),
    "fp16": (["--weight-format", "fp16"], {"f16": 16}),
    "int8": (["--weight-format", "int8"], {"u8": 16}),
    "int8 sym": (["--weight-format", "int8", "--sym"], {"i8": 16}),
    "int4 rows": (["--weight-format", "int4", "--group-size", "-1"], {"u4": 14, "u8": 2}),
    "int4 ratio": (
        ["--weight-format", "int4", "--group-size", "32", "--ratio", "0.5"],
        {"u4": 8, "u8": 8},
    ),
    "int4 backup": (
        ["--weight-format", "int4", "--group-size", "32", "--ratio", "0.5", "--backup-precision", "none"],
        {"u4": 8, "f32": 8},
    ),
    "int4 awq, data": (
        ["--weight-format", "int4", "--group-size", "32", "--awq", "--dataset", "TEXTS"],
        {"u4": 14, "u8": 2},
    ),
    "int4 scale estimation": (
        ["--weight-format", "int4", "--group-size", "32", "--scale-estimation", "--dataset", "TEXTS"],
        {"u4": 14, "u8": 2},
    ),
}
# Of the logits' spread, by the format of most weights; a wrong scale or zero point gives more than 1.
TOLERANCE = {"f32": 1e-4, "f16": 0.01, "bf16": 0.1, "u8": 0.1, "i8": 0.1, "u4": 0.9, "i4": 0.9}


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(TINY["Llama"], tmp_path_factory.mktemp("llama") / "checkpoint")


def matrices(xml: Path) -> dict[str, int]:
    """Weight matrices by element type."""
    counts: Counter[str] = Counter()
    for node in ov.Core().read_model(xml).get_ops():
        shape = list(node.get_output_shape(0)) if node.get_type_name() == "Constant" else []
        # Weights of a norm are [1, 1, size], scales [rows, groups, 1].
        if shape and shape[-1] > 1 and max(shape[:-1], default=1) > 1:
            counts[node.get_element_type().get_type_name()] += 1
    return dict(counts)


def swept(cases: dict[str, Any]) -> list[Any]:
    return [pytest.param(name, id=name, marks=pytest.mark.sweep) for name in cases]


@pytest.mark.parametrize("name", [*by_tier(CASES, ("bf16",)), *swept(SWEPT)])
def test_flags_give_the_format_and_the_models_logits(
    name: str,
    llama: Path,
    tmp_path: Path,
    reference: Callable[[str], NDArray[np.float32]],
    prompt: NDArray[np.int64],
) -> None:
    flags, expected = {**CASES, **SWEPT}[name]
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    out = tmp_path / "ir"
    arguments = [str(texts) if flag == "TEXTS" else flag for flag in flags]
    done = CliRunner().invoke(cli, ["export", "-m", str(llama), *arguments, str(out)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert matrices(out / "openvino_model.xml") == expected
    assert ModelInfo.read(out).weight_format() == flags[1]
    linear = sum(expected.values()) - 1  # the embedding is none
    for backend, taken in (("stock", None), ("native", linear)):
        exact = {} if backend == "native" else {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
        runner = ModelRunner(out, "CPU", properties={**F32, **exact}, linear=backend)
        fired = {report.name: report.count for report in runner.reports}
        assert fired.get("NativeLinear") == taken
        got = runner.forward([Rows(CachedSequence(), prompt, sampled=len(prompt))]).logits
        error = np.linalg.norm(got - reference("Llama")) / np.linalg.norm(reference("Llama"))
        assert error < TOLERANCE[max(expected, key=lambda kind: expected[kind])]


class TestDatasets:
    def check(self, llama: Path, out: Path, dataset: Any, *parts: str) -> None:
        with pytest.raises(ValueError, match="dataset") as caught:
            export_model(llama, out, weight_format="int4", group_size=32, awq=True, dataset=dataset)
        for part in parts:
            assert part in str(caught.value)
        assert "\n" not in str(caught.value) and not out.exists()

    def test_named_sets_need_their_package(
        self, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ovspec_models.export.calibration_texts.find_spec", lambda name: None)
        self.check(llama, tmp_path / "ir", "wikitext2", "pip install datasets", "a file of texts")

    def test_files(self, llama: Path, tmp_path: Path) -> None:
        empty, broken, binary = (tmp_path / name for name in ("empty.txt", "broken.jsonl", "binary.txt"))
        empty.write_text("\n \n")
        broken.write_text('"a text"\n{"words": 1}\n')
        binary.write_bytes(b"\xff\xfe\x00")
        self.check(llama, tmp_path / "ir", str(empty), "holds no text")
        self.check(llama, tmp_path / "ir", str(broken), "line 2", '"text" or "prompt" or "question"')
        self.check(llama, tmp_path / "ir", str(binary), "UTF-8")
        self.check(llama, tmp_path / "ir", str(tmp_path / "absent.txt"), "wikitext2", "a file with a text")
        self.check(llama, tmp_path / "ir", [], "holds no text")


def test_group_size_that_divides_nothing(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"group_size is 48, which does not divide .*; use --group-size 32"):
        export_model(llama, tmp_path / "ir", weight_format="int4", group_size=48)
    assert list(tmp_path.iterdir()) == []

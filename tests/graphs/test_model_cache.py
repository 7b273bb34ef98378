"""CACHE_DIR: what comes back is what was kept, and what can't be used is made anew."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from graphs.kept_models import Said, entries, logits, start
from numpy.typing import NDArray
from prompts import STORY
from settings import F32
from tiers import by_tier
from transforms.moe_models import TOP_K

import ovspec
from ovspec.graphs.checksums import checksum
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.operations.ffn_budgets import FfnConfig
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.shapes import get_shape
from ovspec_models.synthetic import build_model
from ovspec_transforms import Selection

GRAPHS: dict[str, dict[str, Any]] = {
    "native": {},
    "stock": {"attention": AttentionConfig("stock")},
    "native, selecting": {"attention": AttentionConfig("native", True)},
    "stock, selecting": {"attention": AttentionConfig("stock", True, None, Selection("paper"))},
    "every layer watched": {"attention": AttentionConfig("native", True, watches=True)},
    "experts": {"experts": ExpertConfig("native", TOP_K)},
    "channels": {"ffn": FfnConfig("native", density=0.5)},
}


@pytest.fixture(scope="module")
def filled(demo_ir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a start has kept the draft."""
    place = tmp_path_factory.mktemp("filled")
    start(demo_ir / "draft", place)
    return place


@pytest.fixture
def place(filled: Path, tmp_path: Path) -> Path:
    """A copy for a test to change; an entry does not hold its own path."""
    copy = Path(shutil.copytree(filled, tmp_path / "cache"))
    for blob in copy.glob("*/model.blob"):
        blob.chmod(0o600)
    return copy


def copy_of(demo_ir: Path, folder: Path) -> Path:
    """The smaller demo model, where a test may change it."""
    return Path(shutil.copytree(demo_ir / "draft", folder))


class TestHit:
    @pytest.mark.parametrize("name", by_tier(GRAPHS, ("native, selecting", "experts")))
    def test_logits_are_those_of_a_model_that_is_compiled(
        self, name: str, demo_ir: Path, moe_ir: Path, tmp_path: Path, said: Said
    ) -> None:
        folder, settings = moe_ir if name == "experts" else demo_ir, GRAPHS[name]
        expected = logits(start(folder, None, **settings))
        compiled = start(folder, tmp_path, **settings)
        kept = entries(tmp_path)
        again = start(folder, tmp_path, **settings)
        assert len(kept) == 1 and entries(tmp_path) == kept and not said()
        assert np.array_equal(logits(compiled), expected)
        assert np.array_equal(logits(again), expected)
        assert again.reports == compiled.reports
        assert (again._expert_layers, again._ffn_layers) == (compiled._expert_layers, compiled._ffn_layers)

    @pytest.mark.parametrize(
        "properties",
        [
            {"KV_CACHE_PRECISION": "u8", "INFERENCE_PRECISION_HINT": "f32"},
            {
                "KV_CACHE_PRECISION": "u8",
                "KEY_CACHE_QUANT_MODE": "BY_CHANNEL",
                "INFERENCE_PRECISION_HINT": "f32",
            },
            {"KV_CACHE_PRECISION": ov.Type.f16, "INFERENCE_PRECISION_HINT": ov.Type.f32},
        ],
        ids=["u8 by token", "u8 by channel", "f16, as types"],
    )
    def test_precisions(self, properties: dict[str, Any], demo_ir: Path, tmp_path: Path, said: Said) -> None:
        folder = demo_ir / "draft"
        expected = logits(start(folder, None, properties=properties))
        for _ in range(2):
            assert np.array_equal(logits(start(folder, tmp_path, properties=properties)), expected)
        assert len(entries(tmp_path)) == 1 and not said()

    @pytest.mark.parametrize("verify", by_tier(["dense", "commit"], ["commit"]))
    def test_text_is_the_same_with_and_without_it(
        self, verify: str, make_pipeline: Callable[..., ovspec.LLMPipeline], demo_ir: Path, tmp_path: Path
    ) -> None:
        expected = make_pipeline(draft=True, verify=verify).generate(STORY, max_new_tokens=24)
        for _ in range(2):
            pipeline = ovspec.LLMPipeline(
                demo_ir,
                "CPU",
                draft_model=ovspec.draft_model(demo_ir / "draft"),
                drafter="assistant",
                verify=verify,
                CACHE_DIR=str(tmp_path),
                **F32,
            )
            assert pipeline.generate(STORY, max_new_tokens=24) == expected
            assert len(entries(tmp_path)) == 2

    def test_numbers_that_every_pass_is_given_share_an_entry(
        self, demo_ir: Path, moe_ir: Path, tmp_path: Path
    ) -> None:
        for coverage in (1.0, 0.5):
            start(demo_ir, tmp_path, attention=AttentionConfig("native", True, coverage=coverage))
        for density in (0.5, 0.25):
            start(demo_ir, tmp_path, ffn=FfnConfig("native", density=density))
        for budget in (TOP_K, TOP_K + 1):
            start(moe_ir, tmp_path, experts=ExpertConfig("native", budget))
        assert len(entries(tmp_path)) == 3

    def test_numbers_are_checked(self, demo_ir: Path, moe_ir: Path, tmp_path: Path) -> None:
        start(moe_ir, tmp_path, experts=ExpertConfig("native", TOP_K))
        start(demo_ir, tmp_path, ffn=FfnConfig("native", density=0.5))
        with pytest.raises(ValueError, match="expert budget 999"):
            start(moe_ir, tmp_path, experts=ExpertConfig("native", 999))
        with pytest.raises(ValueError, match="ffn density holds 1 values"):
            start(demo_ir, tmp_path, ffn=FfnConfig("native", density=(0.5,)))

    def test_settings_lie_side_by_side(self, demo_ir: Path, tmp_path: Path, said: Said) -> None:
        folder = demo_ir / "draft"
        settings: list[dict[str, Any]] = [
            {},
            {"attention": AttentionConfig("native", True)},
            {"attention": AttentionConfig("native", True, None, Selection("paper"))},
            {"attention": AttentionConfig("native", True, (0,), Selection("paper"))},
            {"properties": {"KV_CACHE_PRECISION": "u8"}},
        ]
        for setting in settings:
            start(folder, tmp_path, **dict(setting))
        kept = entries(tmp_path)
        assert len(kept) == len(settings)
        for setting in settings:
            start(folder, tmp_path, **dict(setting))
        assert entries(tmp_path) == kept and not said()

    def test_a_kept_model_outlives_its_file(
        self, place: Path, compiled: NDArray[np.float32], demo_ir: Path
    ) -> None:
        runner = start(demo_ir / "draft", place)
        shutil.rmtree(place)
        assert np.array_equal(logits(runner), compiled)


class TestOutdated:
    def test_other_weights_of_the_same_size_and_time(self, tmp_path: Path, demo_ir: Path, said: Said) -> None:
        sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
        shape = replace(get_shape("qwen3-0.6b", 2, 500), intermediate_size=96, **sizes)
        folder, place = copy_of(demo_ir, tmp_path / "model"), tmp_path / "cache"
        (folder / "ovspec_config.json").unlink(missing_ok=True)
        (folder / "config.json").write_text(json.dumps(asdict(shape)), encoding="utf-8")
        found = []
        for seed in (1, 2):
            model = build_model(shape, "fp32", seed=seed)
            # Nodes are numbered through the process, so their names differ; the weights lie alike.
            graph = folder / f"openvino_model{'' if seed == 1 else seed}.xml"
            ov.save_model(model, graph, compress_to_fp16=False)
            graph.with_suffix(".bin").replace(folder / "openvino_model.bin")
            os.utime(folder / "openvino_model.bin", (0, 0))
            found.append(logits(start(folder, place)))
            assert np.array_equal(found[-1], logits(start(folder, None)))
        assert not np.array_equal(*found)
        [line] = said()
        assert "it was made with another weights;" in line
        assert len(entries(place)) == 1

    def test_one_byte_of_the_weights(self, tmp_path: Path, demo_ir: Path, said: Said) -> None:
        folder, place = copy_of(demo_ir, tmp_path / "model"), tmp_path / "cache"
        start(folder, place)
        flip_one_byte(folder / "openvino_model.bin")
        expected = logits(start(folder, None))
        assert np.array_equal(logits(start(folder, place)), expected)
        [line] = said()
        assert "it was made with another weights;" in line

    def test_a_copy_of_the_weights_is_the_same_model(self, tmp_path: Path, demo_ir: Path, said: Said) -> None:
        folder, place = copy_of(demo_ir, tmp_path / "model"), tmp_path / "cache"
        start(folder, place)
        kept = entries(place)
        shutil.copy(folder / "openvino_model.bin", tmp_path / "copy")
        (tmp_path / "copy").replace(folder / "openvino_model.bin")
        start(folder, place)
        assert entries(place) == kept and not said()

    @pytest.mark.parametrize("part", ["graph", "configuration", "ovspec", "OpenVINO", "native library"])
    def test_every_part_counts(
        self, part: str, place: Path, compiled: NDArray[np.float32], demo_ir: Path, said: Said
    ) -> None:
        folder = demo_ir / "draft"
        [(entry, written)] = entries(place).items()
        record = json.loads((entry / "entry.json").read_text(encoding="utf-8"))
        record["identity"][part] = "another"
        (entry / "entry.json").write_text(json.dumps(record), encoding="utf-8")
        assert np.array_equal(logits(start(folder, place)), compiled)
        [line] = said()
        assert f"another {part};" in line and "\n" not in line
        assert list(entries(place)) == [entry] and entries(place)[entry] != written
        start(folder, place)
        assert not said()


def flip_one_byte(file: Path) -> None:
    """Change a byte in the middle of a file, and give it its time back."""
    stat = file.stat()
    with file.open("r+b") as opened:
        opened.seek(stat.st_size // 2 + 12_345)
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 1]))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def cut(entry: Path) -> None:
    with (entry / "model.blob").open("r+b") as file:
        file.truncate(100_000)


def flip(entry: Path) -> None:
    with (entry / "model.blob").open("r+b") as file:
        file.seek(-500, os.SEEK_END)
        file.write(bytes(100))


def replace_record(text: str) -> Callable[[Path], None]:
    return lambda entry: (entry / "entry.json").write_text(text, encoding="utf-8") and None


DAMAGE: dict[str, Callable[[Path], None]] = {
    "cut": cut,
    "changed": flip,
    "one byte": lambda entry: flip_one_byte(entry / "model.blob"),
    "empty": lambda entry: os.truncate(entry / "model.blob", 0),
    "no blob": lambda entry: (entry / "model.blob").unlink(),
    "no record": lambda entry: (entry / "entry.json").unlink(),
    "record is empty": replace_record(""),
    "record is no object": replace_record("[1]"),
    "record lacks fields": replace_record("{}"),
}


class TestDamaged:
    @pytest.mark.parametrize("damage", DAMAGE)
    def test_is_dropped_with_a_line(
        self, damage: str, place: Path, compiled: NDArray[np.float32], demo_ir: Path, said: Said
    ) -> None:
        folder = demo_ir / "draft"
        [entry] = entries(place)
        DAMAGE[damage](entry)
        assert np.array_equal(logits(start(folder, place)), compiled)
        [line] = said()
        assert str(entry) in line and "is damaged" in line and "\n" not in line
        kept = entries(place)
        assert np.array_equal(logits(start(folder, place)), compiled)
        assert entries(place) == kept and not said()

    def test_what_openvino_refuses_is_dropped_too(
        self, place: Path, compiled: NDArray[np.float32], demo_ir: Path, said: Said
    ) -> None:
        """A blob whose checksum holds, as another processor of the same name might have left it."""
        [entry] = entries(place)
        cut(entry)
        record = json.loads((entry / "entry.json").read_text(encoding="utf-8"))
        record["checksum"] = checksum(entry / "model.blob")
        (entry / "entry.json").write_text(json.dumps(record), encoding="utf-8")
        assert np.array_equal(logits(start(demo_ir / "draft", place)), compiled)
        [line] = said()
        assert f"{entry} is not used, OpenVINO does not read it" in line

    def test_what_openvino_never_reads_is_not_written_again(
        self, moe_ir: Path, tmp_path: Path, said: Said
    ) -> None:
        """It reads its own fused experts back from no file."""
        expected = logits(start(moe_ir, None, experts=ExpertConfig("stock")))
        for _ in range(2):
            assert np.array_equal(logits(start(moe_ir, tmp_path, experts=ExpertConfig("stock"))), expected)
            [line] = said()
            assert "OpenVINO does not read it (Cannot create GatherMatmul" in line and "\n" not in line
            [(entry, written)] = entries(tmp_path).items()
            assert {path.name for path in entry.iterdir()} == {"checksums.json", "entry.json"}
        assert entries(tmp_path)[entry] == written


class TestPlaces:
    def test_one_that_cannot_be_made(self, compiled: NDArray[np.float32], demo_ir: Path, said: Said) -> None:
        runner = start(demo_ir / "draft", Path("/proc/ovspec/cache"))
        [line] = said()
        assert "CACHE_DIR=/proc/ovspec/cache can't be written" in line and "\n" not in line
        assert np.array_equal(logits(runner), compiled)

    def test_one_that_takes_no_new_folder(
        self,
        tmp_path: Path,
        compiled: NDArray[np.float32],
        demo_ir: Path,
        said: Said,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """One that is there, and mounted to be read."""

        def refuse(**where: object) -> str:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr("ovspec_models.export.new_folder.tempfile.mkdtemp", refuse)
        runner = start(demo_ir / "draft", tmp_path)
        [line] = said()
        assert f"CACHE_DIR={tmp_path} can't be written (Read-only file system)" in line
        assert np.array_equal(logits(runner), compiled)

    def test_one_that_is_only_read(
        self, place: Path, compiled: NDArray[np.float32], demo_ir: Path, said: Said
    ) -> None:
        kept = entries(place)
        for path in (*kept, place):
            path.chmod(0o555)
        try:
            assert np.array_equal(logits(start(demo_ir / "draft", place)), compiled)
        finally:
            for path in (place, *kept):
                path.chmod(0o755)
        assert entries(place) == kept and not said()

    def test_refusals(self, tmp_path: Path, demo_ir: Path) -> None:
        folder, file = demo_ir / "draft", tmp_path / "file"
        file.touch()
        with pytest.raises(ValueError, match=f"CACHE_DIR={file}: is no folder"):
            start(folder, file)
        with pytest.raises(ValueError, match=r"CACHE_DIR='': expected the name of a folder"):
            start(folder, None, properties={"CACHE_DIR": ""})
        for setting in ({"CACHE_MODE": "OPTIMIZE_SIZE"}, {"ENABLE_WEIGHTLESS": True}):
            with pytest.raises(ValueError, match="without its weights"):
                start(folder, tmp_path, properties=setting)
        with pytest.raises(ValueError, match="only the model of a folder"):
            ModelRunner(ov.Core().read_model(folder / "openvino_model.xml"), properties={"CACHE_DIR": "x"})
        with pytest.raises(ValueError, match=r"does not exist|no OpenVINO model"):
            start(tmp_path / "none", tmp_path)
        assert list(tmp_path.iterdir()) == [file]

    def test_nothing_is_kept_of_a_model_that_is_refused(self, tmp_path: Path, demo_ir: Path) -> None:
        with pytest.raises(ValueError, match="KV_CACHE_PRECISION"):
            start(
                demo_ir / "draft",
                tmp_path / "cache",
                properties={"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "bf16"},
            )
        assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())

"""`ovspec generate --image`: answers about pictures, and one line for what can't be answered."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import ovspec as command
from settings import F32
from tiny_pictures import PICTURES, without_pixels

import ovspec
from ovspec.bundle.bundle import copy_model

OPTIONS = ("--max-new-tokens", "12", "--ignore-eos", "--drafter", "none", "-p", "What is it?")
PROPERTIES = [part for name, value in F32.items() for part in ("--property", f"{name}={value}")]


@pytest.fixture(scope="module")
def folder(visual_family: Callable[[str], Path]) -> Path:
    return visual_family("Qwen2.5-VL")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("files")
    paths = [root / "shapes.png", root / "grey.webp"]
    PICTURES[0].save(paths[0])
    PICTURES[4].save(paths[1], lossless=True)
    return paths


def test_answers_are_those_of_the_pipeline(folder: Path, files: list[Path]) -> None:
    pipeline = ovspec.VLMPipeline(folder, "CPU", drafter="none", **F32)
    images = [part for file in files for part in ("--image", str(file))]
    found = command("generate", "-m", str(folder), *OPTIONS, *PROPERTIES, *images, "--json")
    expected = pipeline.generate("What is it?", images=PICTURES[0:5:4], max_new_tokens=12, ignore_eos=True)
    assert json.loads(found.stdout)["text"] == expected.texts[0]


def test_a_bundle_has_all_graphs(folder: Path, tmp_path: Path) -> None:
    """Of pictures too, and those of the text, which the bundled `ovspec generate` runs without any."""
    copy_model(folder, tmp_path / "model")
    options = {"images": PICTURES[:1], "max_new_tokens": 4, "ignore_eos": True}
    found, expected = (
        ovspec.VLMPipeline(of, "CPU", drafter="none", **F32).generate("What is it?", **options).texts
        for of in (tmp_path / "model", folder)
    )
    assert found == expected


def refused(folder: Path, file: Path) -> str:
    """The one line of a command that is refused."""
    found = command("generate", "-m", str(folder), *OPTIONS, "--image", str(file))
    assert found.returncode == 2
    (line,) = found.stderr.strip().splitlines()
    return line


def damaged(root: Path, what: str) -> tuple[Path, str]:
    file = root / "given.png"
    if what == "no picture":
        file.write_text("hello")
        return file, "is no picture that can be read (of no known format)"
    if what == "cut":
        PICTURES[0].save(file)
        file.write_bytes(file.read_bytes()[:1000])
        return file, "is no picture that can be read"
    if what == "long":
        PICTURES[0].resize((2000, 3)).save(file)
        return file, "one side may be 200 times the other, cut it"
    if what == "empty":
        file.touch()
        return file, "is no picture that can be read"
    if what == "no pixels":
        file.write_bytes(without_pixels("PNG"))
        return file, f"picture '{file}': has no pixels (0 x 0); give one that has some"
    return root / "missing.png", "missing.png"


@pytest.mark.parametrize("what", ["no picture", "cut", "long", "empty", "no pixels", "missing"])
def test_a_bad_picture_is_one_line(folder: Path, tmp_path: Path, what: str) -> None:
    file, message = damaged(tmp_path, what)
    line = refused(folder, file)
    assert message in line


def test_a_text_model_reads_no_pictures(demo_ir: Path, files: list[Path]) -> None:
    line = refused(demo_ir, files[0])
    assert "is a text model (model_type 'qwen3'), which reads no pictures" in line


@pytest.mark.parametrize(
    "part", ["openvino_vision_embeddings_merger_model.xml", "preprocessor_config.json", "config.json"]
)
def test_a_folder_without_a_part_is_refused(
    folder: Path, files: list[Path], tmp_path: Path, part: str
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / part).unlink()
    line = refused(copy, files[0])
    assert part in line


@pytest.mark.parametrize("options", [[], ["--idle-unload", "9"]], ids=["a text model", "unloaded"])
def test_a_folder_of_pictures_that_nobody_reads(
    demo_ir: Path, folder: Path, tmp_path: Path, options: list[str]
) -> None:
    model = folder if options else demo_ir
    found = command("serve", "-m", str(model), "--allowed-local-media-path", str(tmp_path), *options)
    assert found.returncode == 2 and found.stderr.count("\n") == 1
    why = "--ray and --idle-unload take text alone" if options else "the model reads no pictures"
    assert f"--allowed-local-media-path {tmp_path}: {why}; leave it out" in found.stderr


def test_a_folder_of_pictures_that_is_none(demo_ir: Path, files: list[Path]) -> None:
    for path in (files[0], files[0].parent / "missing"):
        found = command("serve", "-m", str(demo_ir), "--allowed-local-media-path", str(path))
        assert found.returncode == 2 and found.stderr.count("\n") == 1
        assert f"--allowed-local-media-path {path}: is no folder; give that of the pictures" in found.stderr

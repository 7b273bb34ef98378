"""Files beside a model that say how it reads pictures: each is followed, or refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from settings import F32

from ovspec.vision.vision_of import read_vision

_PREPROCESSOR, _CONFIG = "preprocessor_config.json", "config.json"
QWEN: tuple[tuple[str, dict[str, Any], str], ...] = (
    (_PREPROCESSOR, {"do_rescale": False}, "do_rescale is False, only true is supported"),
    (_PREPROCESSOR, {"do_normalize": False}, "do_normalize is False, only true"),
    (_PREPROCESSOR, {"do_resize": 0}, "do_resize is 0, only true"),
    (_PREPROCESSOR, {"rescale_factor": "1/255"}, "rescale_factor is '1/255', expected a positive number"),
    (_PREPROCESSOR, {"rescale_factor": 0}, "rescale_factor is 0, expected a positive number"),
    (
        _PREPROCESSOR,
        {"patch_size": 16},
        "patch_size is 16, but patch_size of vision_config in config.json is 14",
    ),
    (_PREPROCESSOR, {"merge_size": 4}, "merge_size is 4, but spatial_merge_size of vision_config"),
    (
        _PREPROCESSOR,
        {"min_pixels": 10**7, "max_pixels": 10**6},
        "at least 10000000 and at most 1000000 pixels",
    ),
    (
        _CONFIG,
        {"vision_config.num_heads": 0},
        "vision_config.num_heads is 0, expected a number of at least 1",
    ),
    (_CONFIG, {"vision_config.hidden_size": None}, "vision_config.hidden_size is None, expected a number"),
    (_CONFIG, {"vision_config.window_size": 20}, "window_size is 20, expected a number of at least 28"),
    (_CONFIG, {"vision_config": None}, "vision_config.num_heads is None, expected a number"),
)


def changed(folder: Path, place: Path, file: str, changes: dict[str, Any]) -> Path:
    """A copy of a folder with other settings in one of its files."""
    shutil.copytree(folder, place, copy_function=lambda one, other: Path(other).symlink_to(one))
    config = json.loads((folder / file).read_text())
    for name, value in changes.items():
        *sections, last = name.split(".")
        inner = config
        for section in sections:
            inner = inner[section]
        inner[last] = value
    (place / file).unlink()
    (place / file).write_text(json.dumps(config))
    return place


@pytest.mark.parametrize(("file", "changes", "said"), QWEN)
def test_settings_of_qwen(
    visual_family: Callable[[str], Path], file: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = changed(visual_family("Qwen2.5-VL"), tmp_path / "ir", file, changes)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        read_vision(folder, "CPU", F32)
    assert said in str(caught.value)


@pytest.mark.slow
def test_a_size_that_gemma_does_not_read(visual_family: Callable[[str], Path], tmp_path: Path) -> None:
    changes = {"size": {"height": 112, "width": 224}}
    folder = changed(visual_family("Gemma 3"), tmp_path / "ir", _PREPROCESSOR, changes)
    with pytest.raises(
        ValueError, match=r"size is 224, but image_size of vision_config in config.json is 112"
    ):
        read_vision(folder, "CPU", F32)

"""An export that is killed, or runs out of room, leaves nothing that is taken for a model."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ovspec_models import ModelInfo

pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

# Killed when a step begins, at moments that an export of any speed has.
_EXPORT = """
import os, signal, sys
from ovspec_models import export_model
def progress(step):
    print(step, flush=True)
    if sys.argv[3] and step.startswith(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
export_model(sys.argv[1], sys.argv[2], weight_format="int8", progress=progress)
"""


def export(model: Path, out: Path, killed_at: str = "", **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _EXPORT, str(model), str(out), killed_at]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)


def check_nothing_to_take(folder: Path) -> None:
    """No folder of a plain name, and in the hidden one no model."""
    for path in folder.iterdir():
        assert path.name.startswith(".out.ovspec-")
        with pytest.raises(ValueError, match="missing"):
            ModelInfo.read(path)


def run_again(model: Path, folder: Path) -> None:
    process = export(model, folder / "out")
    assert process.wait(timeout=300) == 0
    assert [path.name for path in folder.iterdir()] == ["out"]
    assert ModelInfo.read(folder / "out").weight_format() == "int8"


def test_killed_and_run_again(tmp_path: Path, demo_draft: Path) -> None:
    process = export(demo_draft, tmp_path / "out", killed_at="exporting")
    assert process.wait(timeout=300) == -9
    assert not (tmp_path / "out").exists()
    check_nothing_to_take(tmp_path)
    run_again(demo_draft, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(12))
def test_killed_at_random_moments(tmp_path: Path, demo_draft: Path, seed: int) -> None:
    """From the start to about the end; one that was done before the signal is a whole model."""
    process = export(demo_draft, tmp_path / "out")
    time.sleep(random.Random(seed).uniform(0.5, 25.0))
    process.kill()
    process.wait()
    if (tmp_path / "out").exists():
        assert ModelInfo.read(tmp_path / "out").weight_format() == "int8"
        return
    assert all(path.name.startswith(".out.ovspec-") for path in tmp_path.iterdir())
    run_again(demo_draft, tmp_path)


@pytest.mark.parametrize("room", [100_000, 1_000_000])
def test_no_room_for_the_files(tmp_path: Path, demo_draft: Path, room: int) -> None:
    """A limit on the size of a file fails a write as a full disk does."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    command = [str(Path(sys.executable).with_name("ovspec")), "export", "-m", str(demo_draft)]
    done = subprocess.run(
        [*command, str(tmp_path / "out"), "--weight-format", "int8"],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert list(tmp_path.iterdir()) == []

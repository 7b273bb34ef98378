"""An export that is killed, or runs out of room, leaves nothing that is taken for a model."""

from __future__ import annotations

import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from commands import refusal

from ovspec.cli import main
from ovspec_models import ModelInfo, export_model

pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

_OTHER_FILE_SYSTEM = Path("/dev/shm")

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


def export(model: Path, out: Path, killed_at: str = "") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _EXPORT, str(model), str(out), killed_at]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def run_again(model: Path, folder: Path) -> None:
    export_model(model, folder / "out", weight_format="int8")
    assert [path.name for path in folder.iterdir()] == ["out"]
    assert ModelInfo.read(folder / "out").weight_format() == "int8"


@pytest.mark.slow
def test_killed_and_run_again(tmp_path: Path, demo_draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run again with the folder for temporary files on another file system, where Linux has one."""
    process = export(demo_draft, tmp_path / "out", killed_at="writing")
    assert process.wait(timeout=300) == -9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".out.ovspec-")
    assert (left / "openvino_model.bin").is_file() and not (left / "ovspec_config.json").exists()
    if _OTHER_FILE_SYSTEM.is_dir():
        monkeypatch.setattr(tempfile, "tempdir", str(_OTHER_FILE_SYSTEM))
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


_CLI = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import ovspec.cli as c; "
_SWALLOWED = """
import ovspec_models.export.export as e
export_one = e._export_one
def swallow(*arguments):
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        pass
    export_one(*arguments)
e._export_one = swallow
"""


def export_command(model: Path, out: Path, first: str = "") -> subprocess.Popen[str]:
    arguments = ["export", "-m", str(model), str(out), "--weight-format", "int8"]
    return subprocess.Popen(
        [sys.executable, "-c", f"{_CLI}\n{first}\nc.main()", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.0, 0.7, 1.5])
def test_ctrl_c_is_quiet_and_leaves_nothing(tmp_path: Path, demo_draft: Path, after: float) -> None:
    """Pressed while optimum-intel, torch and NNCF work, which swallow a KeyboardInterrupt or abort at one."""
    process = export_command(demo_draft, tmp_path / "new" / "out")
    assert process.stderr is not None
    steps = []
    for line in process.stderr:
        steps.append(line)
        if "exporting the target" in line:
            break
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    rest = [line for line in process.stderr if not line.startswith("ovspec: ")]
    assert process.wait(120) == 130 and not "".join(rest).strip(), rest
    assert not any("error" in line for line in steps) and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_that_a_library_swallows(tmp_path: Path, demo_draft: Path) -> None:
    process = export_command(demo_draft, tmp_path / "new" / "out", first=_SWALLOWED)
    error = process.communicate(timeout=120)[1]
    assert process.returncode == 130 and "writing" not in error, error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("room", [pytest.param(100_000, marks=pytest.mark.sweep), 500_000])
def test_no_room_for_the_files(
    tmp_path: Path,
    demo_draft: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    room: int,
) -> None:
    """A limit on the size of a file fails a write as a full disk does."""
    command = ["ovspec", "export", "-m", str(demo_draft), str(tmp_path / "out"), "--weight-format", "int8"]
    monkeypatch.setattr("sys.argv", command)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    error = capsys.readouterr().err
    assert ended.value.code == 2, error
    assert len(refusal(error)) == 1 and "make room there" in error, error
    assert list(tmp_path.iterdir()) == []

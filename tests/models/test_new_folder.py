"""Folders are complete or absent, whatever happens to the process that writes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ovspec_models.export.new_folder import check_new_folder, new_folder

_WORK = """
import sys, time
from pathlib import Path
from ovspec_models.export.new_folder import new_folder
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "openvino_model.xml").write_text("half")
    print("at work", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def at_work(tmp_path: Path) -> subprocess.Popen[str]:
    """A process that has written half of ``tmp_path/out``."""
    process = subprocess.Popen(
        [sys.executable, "-c", _WORK, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "at work\n"
    yield process
    process.kill()
    process.wait()


def test_whole(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a" / "out") as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "a" / "out").exists()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]
    assert (tmp_path / "a" / "out").stat().st_mode & 0o777 == 0o755


def test_the_folder_before_a_folder_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "deep")
    out = tmp_path / "link" / ".." / "out"
    with new_folder(out) as folder:
        (folder / "file").write_text("x")
    assert (out / "file").is_file() and (tmp_path / "far" / "out" / "file").is_file()


def test_a_place_that_takes_no_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^out '/proc/out' cannot be made \(.*\); choose another$"):
        new_folder(Path("/proc/out")).__enter__()


@pytest.mark.parametrize("target", ["link", "nowhere"])
def test_a_link_to_no_folder_takes_no_folders(target: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / target)
    with pytest.raises(ValueError, match=r"link' is no folder that can be written; choose another$"):
        check_new_folder(tmp_path / "link" / "out")


def test_nothing_after_an_error(tmp_path: Path) -> None:
    def interrupted() -> None:
        with new_folder(tmp_path / "a" / "out") as folder:
            (folder / "file").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed(tmp_path: Path, at_work: subprocess.Popen[str]) -> None:
    os.kill(at_work.pid, signal.SIGKILL)
    at_work.wait()
    assert not (tmp_path / "out").exists()
    assert len(list(tmp_path.iterdir())) == 1  # hidden, under another name
    (tmp_path / ".output.ovspec-other").mkdir()
    with new_folder(tmp_path / "out") as folder:
        (folder / "file").write_text("x")
        assert {path.name for path in tmp_path.iterdir()} == {".output.ovspec-other", folder.name}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".output.ovspec-other", "out"]


def test_another_process_at_work_is_left_alone(tmp_path: Path, at_work: subprocess.Popen[str]) -> None:
    theirs = set(tmp_path.iterdir())
    with new_folder(tmp_path / "out") as folder:
        assert set(tmp_path.iterdir()) == {*theirs, folder}
    assert theirs < set(tmp_path.iterdir()) and at_work.poll() is None


def test_what_was_left_is_named(tmp_path: Path, at_work: subprocess.Popen[str]) -> None:
    os.kill(at_work.pid, signal.SIGKILL)
    at_work.wait()
    (left,) = tmp_path.iterdir()
    lines: list[str] = []
    with new_folder(tmp_path / "out", lines.append):
        pass
    assert lines == [f"removed {left.name} (0.0 MB), which an export that was killed had left"]


def test_the_first_of_two_to_end_has_the_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def second() -> None:
        with new_folder(out) as later:
            (later / "file").write_text("second")
            with new_folder(out) as first:
                (first / "file").write_text("first")

    with pytest.raises(ValueError, match="was filled by another process meanwhile"):
        second()
    assert (out / "file").read_text() == "first" and [path.name for path in tmp_path.iterdir()] == ["out"]


_MANY = """
import sys
from contextlib import suppress
from pathlib import Path
from ovspec_models.export.new_folder import new_folder
for number in range(60):
    folder = Path(sys.argv[1]) / f".out.ovspec-left{number}"
    with suppress(FileExistsError):  # exist_ok fails where another process removes the folder meanwhile
        folder.mkdir()
    try:
        with new_folder(Path(sys.argv[1]) / "out") as staging:
            (staging / "file").write_text("x")
    except ValueError as error:
        assert "meanwhile" in str(error), error
"""


def test_processes_that_clean_up_at_once_do_not_stumble(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _MANY, str(tmp_path)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [process.communicate()[1] for process in processes]
    assert not any(process.returncode for process in processes), errors
    assert "out" in {path.name for path in tmp_path.iterdir()}

"""Workers share what takes long to make."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest
from made_once import made_once


def _make(folder: Path) -> None:
    time.sleep(0.2)  # the other workers ask for it while this one makes it
    (folder / "file").write_text("whole")
    with (folder.parent / "log").open("a") as log:
        log.write("made\n")


def _ask(root: Path) -> None:
    assert (made_once(root, "model", _make) / "file").read_text() == "whole"


def test_one_of_several_processes_makes_it(tmp_path: Path) -> None:
    processes = [
        multiprocessing.get_context("spawn").Process(target=_ask, args=(tmp_path,)) for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "made\n"


def test_what_was_not_finished_is_made_anew(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        made_once(tmp_path, "model", fail)
    folder = made_once(tmp_path, "model", lambda folder: (folder / "file").touch())
    assert [path.name for path in folder.iterdir()] == ["file"]

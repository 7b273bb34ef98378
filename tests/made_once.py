"""Folders that take long to make, such as exported models: made by one process, read by all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

MakeOnce: TypeAlias = Callable[[str, Callable[[Path], object]], Path]


def made_once(root: Path, name: str, make: Callable[[Path], object]) -> Path:
    """Folder `name` below `root`, filled by `make(folder)` unless it is there.

    Processes that ask for one folder wait for the first of them. A folder that `make` did not finish is made
    anew. Tests must not change what they get.
    """
    folder, part = root / name, root / f"{name}.part"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            make(part)
            part.rename(folder)
    return folder


def common_root(worker_root: Path) -> Path:
    """The temporary folder of a test run, of which each worker of pytest-xdist has a part."""
    return worker_root.parent if "PYTEST_XDIST_WORKER" in os.environ else worker_root

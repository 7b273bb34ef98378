"""Atomic creation of folders."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path


class FilledMeanwhileError(OSError, ValueError):
    """Another process filled the folder that this one was making."""

    def __str__(self) -> str:
        return str(self.strerror)


class CannotMakeError(OSError, ValueError):
    """The place of a new folder can't be written."""

    def __init__(self, out: Path, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self._out = out

    def __str__(self) -> str:
        return f"out '{self._out}' cannot be made ({self.strerror}); choose another"


def check_new_folder(out: Path) -> None:
    """Raise ValueError unless `out` does not exist, or is an empty folder."""
    if out.is_symlink() or out.exists():
        if not out.is_dir() or out.is_symlink():
            raise ValueError(f"out '{out}' exists and is no folder; give the name of a new folder")
        if any(out.iterdir()):
            raise ValueError(
                f"out '{out}' is not empty; give a new folder, or delete it first: `rm -r {out}`"
            )
    parent = next(folder for folder in out.absolute().parents if os.path.lexists(folder))
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ValueError(
            f"out '{out}' cannot be made: '{parent}' is no folder that can be written; choose another"
        )


@contextmanager
def new_folder(out: Path, warn: Callable[[str], None] = lambda line: None) -> Iterator[Path]:
    """Yield a temporary sibling of `out`; rename it to `out` at the end, or remove every trace.

    What a killed process left of an earlier attempt at `out` is removed first, and `warn` called with its
    name and size. Of two processes that make the same `out`, the first to end has it; the other is refused.

    Raises ValueError where no folder can be made beside `out`, or `out` was filled in the meantime.
    """
    # Resolve like the system: `..` after a symbolic link is not the folder that holds the link.
    out = Path(os.path.realpath(out.absolute().parent)) / out.name
    traces = _Traces([folder for folder in out.parents if not folder.exists()])
    _UNFINISHED.append(traces)
    with ExitStack() as held:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(out, warn)
            traces.staging = _new_staging(out, held)
            traces.staging.chmod(0o755)  # mkdtemp makes it private
            yield traces.staging
            _rename(traces.staging, out)
        except BaseException:
            traces.remove()
            raise
        finally:
            _UNFINISHED.remove(traces)


def remove_unfinished() -> None:
    """Remove every trace of the folders that `new_folder` is filling; for a process that ends itself."""
    for traces in _UNFINISHED:
        traces.remove()


@dataclass(eq=False)
class _Traces:
    """What was made for a folder that is not done: parents of it, the nearest first, and a temporary one."""

    parents: list[Path]
    staging: Path | None = None

    def remove(self) -> None:
        if self.staging is not None and self.staging.exists():
            shutil.rmtree(self.staging)
        for folder in self.parents:
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()


_UNFINISHED: list[_Traces] = []


def _prefix(out: Path) -> str:
    return f".{out.name}.ovspec-"


def _new_staging(out: Path, held: ExitStack) -> Path:
    """A temporary sibling of `out`, locked as long as `held` is open."""
    while True:
        try:
            staging = Path(tempfile.mkdtemp(prefix=_prefix(out), dir=out.parent))
        except OSError as error:
            raise CannotMakeError(out, error) from error
        try:
            held.enter_context(_locked(staging))
        except (BlockingIOError, FileNotFoundError):
            continue  # another process removed it as abandoned before it was locked
        if staging.exists():
            return staging


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock `folder` for this process; the system releases the lock when the process ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _remove_abandoned(out: Path, warn: Callable[[str], None]) -> None:
    for folder in out.parent.glob(f"{glob.escape(_prefix(out))}*"):
        try:
            with _locked(folder):
                size = sum(path.lstat().st_size for path in folder.rglob("*"))
                shutil.rmtree(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # another process works in it, or removed it first
        warn(f"removed {folder.name} ({size / 1e6:,.1f} MB), which an export that was killed had left")


def _rename(staging: Path, out: Path) -> None:
    """Rename to `out`, which does not exist or is empty; one system call, so nobody sees half of it."""
    try:
        staging.rename(out)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FilledMeanwhileError(
                errno.ENOTEMPTY,
                f"out '{out}' was filled by another process meanwhile; give another folder, or delete it",
            ) from error
        raise

"""Atomic creation of folders."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


def check_new_folder(out: Path) -> None:
    """Raise ValueError unless `out` does not exist, or is an empty folder."""
    if out.is_symlink() or out.exists():
        if not out.is_dir() or out.is_symlink():
            raise ValueError(f"out '{out}' exists and is no folder; give the name of a new folder")
        if any(out.iterdir()):
            raise ValueError(
                f"out '{out}' is not empty; give a new folder, or delete it first: `rm -r {out}`"
            )
    parent = next(folder for folder in (out.absolute().parent, *out.absolute().parents) if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ValueError(
            f"out '{out}' cannot be made: '{parent}' is no folder that can be written; choose another"
        )


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `out`; rename it to `out` at the end, or remove it after a failure.

    Remains of a killed process that wrote the same `out` are removed first.

    Raises ValueError where no folder can be made beside `out`.
    """
    # Resolve like the system: `..` after a symbolic link is not the folder that holds the link.
    out = out.absolute().parent.resolve() / out.name
    made = [folder for folder in out.parents if not folder.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(out)
        with ExitStack() as held:
            staging = _new_staging(out, held)
            try:
                staging.chmod(0o755)  # mkdtemp makes it private
                yield staging
                if out.exists():
                    out.rmdir()  # empty: checked at the start, and rmdir refuses otherwise
                staging.rename(out)
            except BaseException:
                shutil.rmtree(staging)
                raise
    except BaseException:
        for folder in made:
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()
        raise


def _prefix(out: Path) -> str:
    return f".{out.name}.ovspec-"


def _new_staging(out: Path, held: ExitStack) -> Path:
    """A temporary sibling of `out`, locked as long as `held` is open."""
    while True:
        try:
            staging = Path(tempfile.mkdtemp(prefix=_prefix(out), dir=out.parent))
        except OSError as error:
            raise ValueError(f"out '{out}' cannot be made ({error.strerror}); choose another") from error
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


def _remove_abandoned(out: Path) -> None:
    for folder in out.parent.glob(f"{glob.escape(_prefix(out))}*"):
        try:
            with _locked(folder):
                shutil.rmtree(folder)
        except BlockingIOError:
            continue  # another process uses it

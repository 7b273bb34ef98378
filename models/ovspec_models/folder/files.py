"""Atomic writing of files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def at_home(path: str | Path) -> Path:
    """A path whose "~" is the user's home; where nobody knows that home it stays, as in a shell."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically: the file is complete or unchanged.

    A device or a pipe is written to: a file put in its place would be one that nobody reads.

    Raises:
        OSError: it can't be written; it names `path`.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            # mkstemp makes the file private; give it the usual permissions.
            umask = os.umask(0)
            os.umask(umask)
            Path(temporary).chmod(0o666 & ~umask)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error

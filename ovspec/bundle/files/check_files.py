#!/usr/bin/env python3
"""Compares a bundle with its manifest; standard library only, as it runs before the installation.

python3 check_files.py              are all files there, unchanged, and no others? Reads all of them.
python3 check_files.py --machine    and do they fit this Python and this machine?
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

FORMAT = 1
MANIFEST = "manifest.json"
CHECKED = "checked.json"
VENV = "venv"  # install.sh installs here; pip has checked these files
_CHUNK = 1 << 20
# Any value may be of any type, a number too large, and a file nested too deeply.
_DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


def sha256(path: Path) -> str:
    """The checksum of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def relative_files(folder: Path) -> set[str]:
    """Every file below `folder` that belongs in a manifest, as a path with slashes; links count as files."""
    found: set[str] = set()
    for root, folders, names in os.walk(folder):
        here = Path(root)
        if here == folder:
            folders[:] = [name for name in folders if name != VENV]
            names = [name for name in names if name != MANIFEST]
        links = [name for name in folders if (here / name).is_symlink()]
        found.update((here / name).relative_to(folder).as_posix() for name in [*names, *links])
    return found


def this_machine() -> dict[str, str]:
    """System, processor family and Python release, on which wheels with native code depend."""
    version = ".".join(platform.python_version_tuple()[:2])
    return {"system": platform.system(), "machine": platform.machine(), "python": version}


def signature(path: Path) -> list[int]:
    """What the system changes when a file is written, replaced or copied: size, times, inode."""
    stat = path.lstat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def known_signatures(folder: Path, digest: str) -> dict[str, list[int]]:
    """Signatures of the files whose content was compared before with the manifest of this `digest`."""
    try:
        known = json.loads((folder / VENV / CHECKED).read_text(encoding="utf-8"))
        return dict(known["files"]) if known["manifest"] == digest else {}
    except _DAMAGED:
        return {}  # nothing was compared yet, or the note about it is damaged: all files are read


def keep_signatures(folder: Path, digest: str, files: dict[str, list[int]]) -> None:
    """Note what was compared; a bundle that can't be written, or is not installed, is read every time."""
    part = folder / VENV / f"{CHECKED}.{os.getpid()}"
    try:
        part.write_text(json.dumps({"manifest": digest, "files": files}), encoding="utf-8")
        part.replace(folder / VENV / CHECKED)
    except OSError:
        return


def check_files(folder: Path, everything: bool = True) -> dict[str, Any]:
    """Return the manifest of the bundle in `folder`.

    The content of a file is compared with the manifest once; after that a file that has the size, times and
    inode that it had is taken for the same, unless `everything` is to be read.

    Raises ValueError, in one line, naming a file that is missing, changed or not in the manifest, or the
    manifest, where it can't be read or is of another format.
    """
    path, remedy = folder / MANIFEST, "copy the bundle again"
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {repr(manifest['format'])[:80]}, this script reads {FORMAT}")
        if not all(isinstance(manifest[name], str) for name in this_machine()):
            raise ValueError("it does not say for which machine the bundle is")
        if not isinstance(manifest["draft_model"], (str, type(None))):
            raise ValueError(f"draft_model {repr(manifest['draft_model'])[:80]}")
        listed: dict[str, dict[str, Any]] = manifest["files"]
        wanted = {name: (int(entry["size"]), str(entry["sha256"])) for name, entry in listed.items()}
    except _DAMAGED as error:
        raise ValueError(f"{path} can't be read ({type(error).__name__}: {error}); {remedy}") from None
    present = relative_files(folder)
    for name in sorted(wanted.keys() - present):
        raise ValueError(f"{folder / name[:200]!s} is missing; {remedy}".replace("\n", " "))
    for name in sorted(present - wanted.keys()):
        raise ValueError(f"{folder / name} is not a file of this bundle; remove it, or {remedy}")
    own = sha256(path)
    known = known_signatures(folder, own)
    now = {name: signature(folder / name) for name in wanted}
    for name, (size, digest) in sorted(wanted.items()):
        file = folder / name
        if not everything and known.get(name) == now[name]:
            continue
        if file.is_symlink() or file.stat().st_size != size or sha256(file) != digest:
            raise ValueError(f"{file} was changed: its SHA-256 is not the manifest's; {remedy}")
    if known != now:
        keep_signatures(folder, own, now)
    return manifest


def check_machine(manifest: dict[str, Any]) -> None:
    """Raise ValueError, in one line, if the bundle was made for another Python or processor."""
    for name, here in this_machine().items():
        if manifest[name] != here:
            made_for = ascii(manifest[name])[1:-1][:80]
            remedy = (
                f"PYTHON=python{made_for} ./install.sh"
                if name == "python"
                else "make the bundle on such a machine"
            )
            raise ValueError(f"the bundle is for {name} {made_for}, this is {here}; {remedy}")


def main() -> int:
    """Check the bundle of this file; return 0, or 2 after one line that states the problem."""
    try:
        manifest = check_files(Path(__file__).resolve().parent)
        if "--machine" in sys.argv[1:]:
            check_machine(manifest)
    except (ValueError, OSError) as error:
        print(f"ovspec bundle: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

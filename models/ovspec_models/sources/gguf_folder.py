"""A GGUF file -> a folder of OpenVINO IR, in the user's cache or where the user says."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ovspec_models.export.new_folder import FilledMeanwhileError, new_folder
from ovspec_models.folder.config import OvspecConfig
from ovspec_models.folder.files import at_home
from ovspec_models.folder.ir_facts import IrFacts
from ovspec_models.folder.model_info import ModelInfo
from ovspec_models.sources.gguf_config import check_readable, config_of, generation_config_of, warnings_of
from ovspec_models.sources.gguf_file import GgufFile, parts_of

_READER = Path(__file__).with_name("genai_reader.py")
_WRITTEN = ("openvino_model", "openvino_tokenizer", "openvino_detokenizer")
_CHUNK = 1 << 24
Say = Callable[[str], None]


def user_cache() -> Path:
    """The folder in which ovspec keeps what it made or fetched for a user.

    Raises:
        ValueError: the user has no home, and XDG_CACHE_HOME names no folder.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(base) if base.startswith("/") else at_home("~/.cache")
    if not cache.is_absolute():
        raise ValueError("this user has no home folder for ovspec's cache: set XDG_CACHE_HOME to a folder")
    return cache / "ovspec"


def gguf_folder(path: Path, report: Say, warn: Say) -> Path:
    """The folder of IR that a GGUF file makes, in the user's cache: made now, or by an earlier call.

    Args:
        report, warn: as of `write_gguf`.

    Raises:
        ValueError: as `write_gguf`, or the cache can't be written.
        RuntimeError: as `write_gguf`.
    """
    parts, cache = parts_of(path), user_cache() / "gguf"
    note = _note(parts, cache)
    digest = _noted(note)
    file = _readable(path) if digest is None else None  # so that no file is hashed for nothing
    try:
        if digest is None:
            digest = _digest(parts)
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(digest, encoding="ascii")
        kept = cache / f"{digest}-{version('openvino-genai')}"
        made = sorted(kept.glob("[!.]*")) if kept.is_dir() else []
        if made:
            return made[0]
        out = kept / path.stem
        with new_folder(out, warn) as staging:
            write_gguf(file or _readable(path), staging, report, warn)
    except FilledMeanwhileError:
        return out
    except OSError as error:
        raise ValueError(
            f"'{path}' can't be kept as OpenVINO IR in {cache} ({error.strerror}): make room there, or set "
            "XDG_CACHE_HOME to another folder"
        ) from error
    return out


def export_gguf(path: Path, out: Path, report: Say, warn: Say) -> Path:
    """Write the IR of a GGUF file to the new folder `out`, and return that.

    Args:
        report, warn: as of `write_gguf`.

    Raises:
        ValueError: as `write_gguf`, or `out` can't be made.
        RuntimeError: as `write_gguf`.
    """
    file = _readable(path)
    with new_folder(out, warn) as staging:
        write_gguf(file, staging, report, warn)
    return out


def _readable(path: Path) -> GgufFile:
    file = GgufFile.read(path)
    check_readable(file)
    return file


def write_gguf(file: GgufFile, folder: Path, report: Say, warn: Say) -> None:
    """Write model, tokenizers and configuration of a GGUF file to a folder without IR.

    openvino_genai reads the weights, in a process of its own: it holds all of them, and ends the process
    where a file is damaged in ways that it does not look for.

    Args:
        report: called with what is done, before it is.
        warn: called with what the user should know of the file.

    Raises:
        ValueError: a number of the file's metadata is missing.
        RuntimeError: openvino_genai could not read the file.
    """
    for line in warnings_of(file):
        warn(line)
    config = config_of(file)
    report(f"reading {file.path.name} into OpenVINO IR")
    # The reader writes beside the file, and knows it by its ending; parts by their names.
    links = [folder / (part.name if len(file.parts) > 1 else "model.gguf") for part in file.parts]
    for link, part in zip(links, file.parts, strict=True):
        link.symlink_to(part.resolve())
    done = subprocess.run(
        [sys.executable, str(_READER), str(links[0])], capture_output=True, text=True, errors="replace"
    )
    for link in links:
        link.unlink()
    _check_written(file, folder, done)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation_config_of(file))
    section = ModelInfo.read(folder).section(file.path.name)
    from ovspec_models.export.export import package_versions

    OvspecConfig(created_by=package_versions(), model=section).save(folder)


def _check_written(file: GgufFile, folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode < 0:
        raise RuntimeError(
            f"openvino_genai's reader crashed at '{file.path}' (signal {-done.returncode}): the file may be "
            "damaged; get it again"
        )
    faults = [] if done.returncode else _faults(folder)
    if (done.returncode or faults) and shutil.disk_usage(folder).free < sum(
        part.stat().st_size for part in file.parts
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder.parent))
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason"]
        raise RuntimeError(f"openvino_genai can't read '{file.path}': {lines[-1].strip()}")
    if faults:
        raise RuntimeError(f"openvino_genai's reader wrote of '{file.path}' {faults[0]}")


def _faults(folder: Path) -> list[str]:
    """What is wrong with the files that the reader wrote."""
    pairs = [(folder / f"{name}.xml", folder / f"{name}.bin") for name in _WRITTEN]
    found = {
        xml.name: IrFacts.read(xml).fault if xml.is_file() and weights.is_file() else "it is missing"
        for xml, weights in pairs
    }
    return [f"{name} not whole ({fault})" for name, fault in found.items() if fault is not None]


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _note(parts: Sequence[Path], cache: Path) -> Path:
    """Where the digest of these files is kept, by names, sizes and times: a start need not read them."""
    states = [(part, part.stat()) for part in (part.resolve() for part in parts)]
    text = "".join(
        f"{part}\0{s.st_size}\0{s.st_mtime_ns}\0{s.st_ino}\0{s.st_ctime_ns}\0" for part, s in states
    )
    return cache / "digests" / hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _noted(note: Path) -> str | None:
    digest = note.read_text(encoding="ascii", errors="replace") if note.is_file() else ""
    return digest if len(digest) == 64 else None


def _digest(parts: Sequence[Path]) -> str:
    """SHA-256 of all parts, one after the other."""
    digest = hashlib.sha256()
    for part in parts:
        with part.open("rb") as opened:
            while chunk := opened.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()

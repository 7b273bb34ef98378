"""Compiled models in the user's CACHE_DIR; a later start maps them and does not compile again."""

from __future__ import annotations

import errno
import json
import logging
import mmap
import os
import shutil
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.devices.huge_pages import advise_huge_pages
from ovspec.graphs import checksums
from ovspec.graphs.compile import compile_paged, takes_one_thread
from ovspec.graphs.graph_facts import GraphFacts
from ovspec.graphs.model_identity import entry_name, identity
from ovspec.operations.backends import Backends
from ovspec_models.export.new_folder import new_folder
from ovspec_models.folder.graph_files import graphs_of, weights_of
from ovspec_transforms import PagedAttentionReader, last_line

_LOG = logging.getLogger(__name__)
_BLOB, _RECORD, _CHECKSUMS = "model.blob", "entry.json", "checksums.json"
_HEADER_BYTES = 4096
_MAPPED: dict[tuple[int, int, int], NDArray[np.uint8]] = {}
_READING = weakref.WeakSet[ov.Core]()  # cores that read paged attention
_READING_BYTES = 16 << 20  # that reading a model takes at least: stacks of threads, its graph
# Texts of the system's errors where memory, threads or open files run out.
_SHORT = ("bad_alloc", *map(os.strerror, (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)))

Build = Callable[[], tuple[ov.Model, GraphFacts]]
Probe = Callable[[ov.CompiledModel, GraphFacts], NDArray[np.float32]]


class _UnusableError(Exception):
    """Reason why an entry can't be used; `final` means that a new entry would not help."""

    def __init__(self, reason: str, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


class _ShortageError(_UnusableError):
    """A shortage of memory or files prevents reading for now; the entry itself may be good."""


class ModelCache:
    """The entry in CACHE_DIR of one model, transformed and compiled for one set of choices.

    An entry is a folder `ovspec-*`, there whole or not at all: the compiled model as OpenVINO exports it, and
    `entry.json` with what it was made of, its checksum, and the facts that a runner needs beside it.
    `checksums.json` says by which signature a later start knows the files, and need not read them whole.
    Entries of OpenVINO and OpenVINO GenAI may lie beside it.

    Args:
        core: with the operations that the model holds.
        backends: what computes it, on a CPU, with CACHE_DIR among the properties.

    Raises:
        ValueError: a CACHE_DIR that is no folder, or a property that contradicts it.
    """

    def __init__(self, core: ov.Core, folder: Path, backends: Backends) -> None:
        self._core, self._device, settings = core, backends.device, backends.properties
        self._settings = {name: value for name, value in settings.items() if name != "CACHE_DIR"}
        _check(settings)
        self._place = Path(str(settings["CACHE_DIR"]))
        one = backends.linear == "stock" and takes_one_thread(core, self._settings)
        chosen = {"graph": backends.graph, "properties": self._settings, "one_thread": one}
        self._entry = self._place / entry_name(folder, backends.device, chosen)
        self._weights = [weights_of(graph) for graph in graphs_of(folder)]
        checksums.remember(self._entry / _CHECKSUMS)
        self._identity = identity(folder)

    def holds(self) -> bool:
        """Whether there is an entry, made of the current model by the current code."""
        return self._refusal() == (None,)

    def refuses(self) -> bool:
        """Whether an earlier start recorded that this compiled model can't be kept."""
        return self._refusal() not in ((), (None,))

    def _refusal(self) -> tuple[str | None, ...]:
        """The recorded reason why the entry is not used, or `None`; empty without a current entry."""
        try:
            record = json.loads((self._entry / _RECORD).read_text(encoding="utf-8"))
            return (record["refused"],) if record["identity"] == self._identity else ()
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return ()

    def compile(self, build: Build, probe: Probe) -> tuple[ov.CompiledModel, GraphFacts]:
        """Return the compiled model and its facts from the entry, or build, compile and keep them.

        Args:
            build: makes the model behind its transforms.
            probe: what a compiled model computes; by it a model is known to be read back as it was.

        Raises:
            ValueError: as `build`, or as `ovspec.graphs.compile.compile_paged`.
        """
        keep = True
        if self._entry.exists():
            try:
                return self._read()
            except _UnusableError as error:
                self._say_unused(error)
                keep = not error.final
        model, facts = build()
        compiled = self._keep(model, facts, probe) if keep else None
        return compiled or compile_paged(self._core, model, self._device, self._settings), facts

    def _read(self) -> tuple[ov.CompiledModel, GraphFacts]:
        """Map the compiled model of the entry.

        Raises:
            _UnusableError: it is outdated or damaged, or OpenVINO does not read what it has written.
        """
        try:
            record = json.loads((self._entry / _RECORD).read_text(encoding="utf-8"))
            facts = GraphFacts.from_json(record["facts"])
            for name, now in self._identity.items():
                if record["identity"].get(name) != now:
                    raise _UnusableError(f"it was made with another {name}")
            if record["refused"] is not None:
                raise _UnusableError(record["refused"], final=True)
            if checksums.checksum(self._entry / _BLOB) != record["checksum"]:
                raise _UnusableError(f"it is damaged ({_BLOB} was changed)")
            with suppress(OSError):  # the next start reads the files again
                checksums.keep(self._entry / _CHECKSUMS, [*self._weights, self._entry / _BLOB])
            return self._import(self._entry / _BLOB), facts
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _UnusableError(f"it is damaged ({last_line(error)})") from error

    def _import(self, blob: Path) -> ov.CompiledModel:
        try:
            exported = ov.Tensor(_mapped(blob), shared_memory=True)
            if self._core not in _READING:  # a core keeps each extension as often as it is added
                self._core.add_extension(PagedAttentionReader)
                _READING.add(self._core)
            return self._core.import_model(exported, self._device, self._settings)
        except (RuntimeError, MemoryError, OSError) as error:
            told = isinstance(error, MemoryError) or any(words in str(error) for words in _SHORT)
            if told or _is_short_of_memory():
                raise _ShortageError(f"it can't be read now ({last_line(error)})", final=True) from error
            if isinstance(error, OSError):
                raise
            raise _UnusableError(f"OpenVINO does not read it ({last_line(error)})") from error

    def _keep(self, model: ov.Model, facts: GraphFacts, probe: Probe) -> ov.CompiledModel | None:
        """Compile the model and write the entry, or say why it can't be written; returns as `_fill`."""
        compiled: ov.CompiledModel | None = None
        try:
            self._place.mkdir(parents=True, exist_ok=True)
            if self._entry.exists():
                shutil.rmtree(self._entry)
            _check_room(self._place, model)
            with new_folder(self._entry) as staging:
                compiled = self._fill(staging, model, facts, probe)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:  # another process was faster
                _LOG.warning(
                    "ovspec: CACHE_DIR=%s can't be written (%s); the next start compiles the model again",
                    self._place,
                    error.strerror or error,
                )
        return compiled

    def _fill(
        self, staging: Path, model: ov.Model, facts: GraphFacts, probe: Probe
    ) -> ov.CompiledModel | None:
        """Write the entry, and check that it can be read back.

        Returns:
            The model as it is read back: weights that a transform has made are mapped then, and not held in
            memory. `None` where it is not read, or not as it was written.
        """
        # OpenVINO writes it piece by piece, where export_model would hold it in memory several times.
        settings = {**self._settings, "CACHE_DIR": str(staging)}
        compiled = compile_paged(self._core, model, self._device, settings)
        written = list(staging.glob("*.blob"))
        if len(written) != 1:  # OpenVINO removes what it could not write, and says nothing
            raise OSError(errno.EIO, "OpenVINO could not write the compiled model")
        blob = written[0].replace(staging / _BLOB)
        record: dict[str, object] = {"identity": self._identity, "facts": asdict(facts), "refused": None}
        back: ov.CompiledModel | None = None
        try:
            back = self._import(blob)
            expected = probe(compiled, facts)
            del compiled  # `probe` lets go of it too, before both have packed their weights
            if not np.array_equal(expected, probe(back, facts), equal_nan=True):
                back = None
                raise _UnusableError("OpenVINO reads it with other results")
            record["checksum"] = checksums.checksum(blob)
        except _ShortageError as error:
            raise OSError(errno.ENOMEM, str(error)) from error
        except _UnusableError as error:
            self._say_unused(error)
            record["refused"] = str(error)
            blob.unlink()
        (staging / _RECORD).write_text(json.dumps(record), encoding="utf-8")
        checksums.keep(staging / _CHECKSUMS, [*self._weights, *([blob] if blob.exists() else [])])
        return back

    def _say_unused(self, reason: _UnusableError) -> None:
        _LOG.warning("ovspec: %s is not used, %s; the model is compiled", self._entry, reason)


def _check(settings: Mapping[str, object]) -> None:
    place = settings["CACHE_DIR"]
    if not isinstance(place, (str, os.PathLike)) or not str(place):
        raise ValueError(f"CACHE_DIR={place!r}: expected the name of a folder")
    if Path(place).exists() and not Path(place).is_dir():
        raise ValueError(f"CACHE_DIR={place}: is no folder; give the name of one, or leave it out")
    if "OPTIMIZE_SIZE" in str(settings.get("CACHE_MODE", "")) or _is_on(settings.get("ENABLE_WEIGHTLESS")):
        raise ValueError(
            f"CACHE_DIR={place}: OpenVINO reads no model with our operations back without its weights; leave "
            "CACHE_MODE and ENABLE_WEIGHTLESS at their defaults"
        )


def _is_on(switch: object) -> bool:
    return str(switch or "").upper() not in ("", "NO", "FALSE", "0", "NONE")


def _check_room(place: Path, model: ov.Model) -> None:
    """Raise OSError where the weights alone do not fit."""
    constants = (node for node in model.get_ops() if node.get_type_name() == "Constant")
    needed, free = sum(node.get_byte_size() for node in constants), shutil.disk_usage(place).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"{needed / 1e6:,.1f} MB are needed, {free / 1e6:,.1f} MB are free")


def _mapped(path: Path) -> NDArray[np.uint8]:
    """What OpenVINO exported to `path`, behind its header of one line, as u8 `[bytes]`.

    It stays mapped as long as the process runs: OpenVINO takes no part in keeping it, and its requests and
    weights may outlive whoever holds the model. Every entry is mapped once.
    """
    with path.open("rb") as file:
        begin = len(file.readline(_HEADER_BYTES))
        stat = os.fstat(file.fileno())
        key = (stat.st_dev, stat.st_ino, stat.st_mtime_ns)
        if key not in _MAPPED:
            # Copy on write: a tensor wants memory that could be written, the file is not to be.
            _MAPPED[key] = np.memmap(file, np.uint8, "c", offset=begin)
            # Huge pages of a file exist only on some file systems.
            advise_huge_pages(ov.Tensor(_MAPPED[key], shared_memory=True))
    return _MAPPED[key]


def _is_short_of_memory() -> bool:
    """Whether memory can't be had now; OpenVINO's reader calls the model incorrect at any failure."""
    try:
        mmap.mmap(-1, _READING_BYTES).close()
    except OSError:
        return True
    return False

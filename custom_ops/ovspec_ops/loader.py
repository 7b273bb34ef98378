"""Finds, checks and loads the native operations, and creates their nodes."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openvino
from openvino.utils.node_factory import NodeFactory

_LIBRARY = "libovspec_ops.so"
_BUILD_INFO = "_build_info.json"
_REBUILD = "reinstall ovspec, or build custom_ops against this openvino and set OVSPEC_EXTENSION_LIB"
_LOADED = weakref.WeakKeyDictionary[openvino.Core, set[str]]()


def extension_path() -> Path:
    """Absolute path of the native library: OVSPEC_EXTENSION_LIB, or the one installed with this package.

    The file need not exist: `load` checks that.
    """
    override = os.environ.get("OVSPEC_EXTENSION_LIB")
    return Path(override).absolute() if override else Path(__file__).resolve().parent / _LIBRARY


def build_info() -> dict[str, str]:
    """What the library was built with: `openvino_version`, `compiler`, `processor`, `sanitize`, `developer`.

    Read from the file next to the library, so that a library of another OpenVINO is never loaded to ask it.
    Raises RuntimeError where the library or the file is missing or unreadable.
    """
    library = extension_path()
    if not library.is_file():
        raise RuntimeError(f"ovspec_ops: no native library at {library}; {_REBUILD}")
    path = library.with_name(_BUILD_INFO)
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): str(value) for key, value in info.items()}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise RuntimeError(f"ovspec_ops: cannot read {path} ({error}); {_REBUILD}") from error


def _release(version: str) -> str:
    return " ".join(version.split("-", 1)[0].split())[:40]  # out of a file that may be damaged


def check_versions() -> None:
    """Raises RuntimeError, in one line, unless the library was built for the OpenVINO release that runs."""
    built, running = build_info().get("openvino_version", "unknown"), openvino.get_version()
    if _release(built) != _release(running):
        raise RuntimeError(
            f"ovspec_ops: {extension_path()} was built for OpenVINO {_release(built)}, but OpenVINO "
            f"{_release(running)} runs; install openvino=={_release(built)}, or {_REBUILD}"
        )


@functools.lru_cache(maxsize=4)
def _library(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    strings = ("openvino_version", "last_error", "available_isas", "isas_for_tests", "active_isa")
    for name in (*strings, "end_step_times", "last_fault"):
        function = getattr(library, f"ovspec_{name}")
        function.restype, function.argtypes = ctypes.c_char_p, []
    library.ovspec_fault_count.restype, library.ovspec_fault_count.argtypes = ctypes.c_uint64, []
    library.ovspec_set_isa.restype, library.ovspec_set_isa.argtypes = ctypes.c_int, [ctypes.c_char_p]
    return library


def _native() -> ctypes.CDLL:
    check_versions()
    return _library(str(extension_path()))


def _last_error() -> RuntimeError:
    return RuntimeError(f"ovspec_ops: {_native().ovspec_last_error().decode()}")


def available_isas() -> list[str]:
    """Instruction sets that the library can run here, best first.

    They are of "amx", "avx512vnni", "avx512", "avx2vnni", "avx2" and "plain".
    """
    names: str = _native().ovspec_available_isas().decode()
    return names.split(",")


def isas_for_tests() -> list[str]:
    """Instruction sets for tests that this processor can run: other sets' code with instructions emulated.

    Only a developer's build holds them (`OVSPEC_DEVELOPER` in CMakeLists.txt, which explains each one).
    """
    names: str = _native().ovspec_isas_for_tests().decode()
    return names.split(",") if names else []


def active_isa() -> str:
    """The instruction set in use: the best available, or OVSPEC_ISA.

    Raises RuntimeError where OVSPEC_ISA names one that is unknown or that this processor lacks.
    """
    name: bytes | None = _native().ovspec_active_isa()
    if name is None:
        raise _last_error()
    return name.decode()


def set_isa(name: str) -> None:
    """Switches every following inference of this process to `name`, for tests and comparisons.

    `name` is one of `available_isas` or `isas_for_tests`. Raises RuntimeError where it is unknown or this
    processor lacks it.
    """
    if _native().ovspec_set_isa(name.encode()) != 0:
        raise _last_error()


def fault_counter() -> Callable[[], int]:
    """A function that says how many calls of operations have failed in this process.

    With one thread OpenVINO's CPU plugin drops an exception of an operation: inference returns, and its
    outputs are those of the inference before.
    """
    counter: Callable[[], int] = _native().ovspec_fault_count
    return counter


def last_fault() -> str:
    """Why the last call of an operation failed."""
    message: bytes = _native().ovspec_last_fault()
    return message.decode()


@contextmanager
def step_times() -> Iterator[dict[str, float]]:
    """Measures the steps of DecoderLayers, and the operations beside it, of all passes of the process.

    The operations of this library count as the step of their kind. Two blocks must not overlap.

    Yields:
        Microseconds by kind of step, such as "linear" or "attention", summed over layers and passes. Empty
        until the block has ended.
    """
    library, found = _native(), dict[str, float]()
    library.ovspec_begin_step_times()
    try:
        yield found
    finally:
        for line in library.ovspec_end_step_times().decode().splitlines():
            kind, microseconds = line.split()
            found[kind] = float(microseconds)


def load(core: openvino.Core) -> None:
    """Adds the operations to `core`, so that it reads, compiles and caches models that hold them.

    Raises RuntimeError, in one line, where the library is missing, was built for another OpenVINO release, or
    OVSPEC_ISA cannot be met.
    """
    active_isa()
    # A core keeps each extension as often as it is added.
    path, loaded = str(extension_path()), _LOADED.setdefault(core, set())
    if path not in loaded:
        core.add_extension(path)
        loaded.add(path)


@functools.lru_cache(maxsize=4)
def _factory(path: str) -> NodeFactory:
    active_isa()  # raises here, with its own message, where OVSPEC_ISA can't be met
    factory = NodeFactory()
    factory.add_extension(path)
    return factory


def create(
    op_type: str, inputs: Sequence[openvino.Node | openvino.Output], attributes: Mapping[str, Any]
) -> openvino.Node:
    """A node of the operation `op_type`: "VerifyAttention", "CacheWrite", "KeySummary", "BlockSelect",
    "SparseMoE", "ExpertBudget", "GatedMLP" or "Linear".

    `inputs` and `attributes` as in the README of the operation's folder. Raises RuntimeError where the
    library does not load, ValueError where the inputs' types or shapes or an attribute do not fit.
    """
    return _factory(str(extension_path())).create(op_type, list(inputs), dict(attributes))

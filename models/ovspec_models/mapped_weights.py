"""Pages of a mapped weight file that a process gives back as soon as it is done with them."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_MAPS = Path("/proc/self/maps")  # of Linux


@contextmanager
def released_when_compressed(weights: Path) -> Iterator[None]:
    """Let NNCF give back the pages of `weights`, an IR's `.bin`, after every matrix that it compressed.

    OpenVINO maps the file, and each page that was read stays resident while the compressed weights grow
    beside it: without this an export's peak is the floating-point weights and the compressed ones together.
    The weights that come out are the same; what is needed again is read from the file again. As long as the
    context lasts; on systems other than Linux nothing changes.
    """
    # Not public: NNCF has no hook between two weights.
    from nncf.quantization.algorithms.weight_compression.openvino_backend import (
        OVWeightCompressionAlgoBackend,
    )

    original = OVWeightCompressionAlgoBackend.transform_model

    def transform_model(
        backend: Any,
        model: Any,
        graph: Any,
        weight_compression_parameters: Iterable[Any],
        *rest: Any,
        **named: Any,
    ) -> Any:
        each = _with_step_after(weight_compression_parameters, lambda: release_pages(weights))
        return original(backend, model, graph, each, *rest, **named)

    OVWeightCompressionAlgoBackend.transform_model = transform_model
    try:
        yield
    finally:
        OVWeightCompressionAlgoBackend.transform_model = original


def release_pages(file: Path) -> None:
    """Give back this process's resident pages of `file` where it is mapped for reading only.

    Pages that could differ from the file, those of private mappings that can be written, are left alone.
    """
    if not _MAPS.exists():
        return
    path = os.path.realpath(file)
    libc = ctypes.CDLL(None, use_errno=True)
    for line in _MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or fields[5] != path or "w" in fields[1]:
            continue
        start, end = (int(address, 16) for address in fields[0].split("-"))
        if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(file))


def _with_step_after(items: Iterable[Any], step: Callable[[], None]) -> Iterator[Any]:
    for item in items:
        yield item
        step()

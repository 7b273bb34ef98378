"""The sanitizers of a native library: how a Python that loads it is started, and what they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

# Python holds none of libstdc++, which the address sanitizer looks into at its start.
_PRELOADED = {"address": ("libasan.so", "libstdc++.so"), "thread": ("libtsan.so",), "undefined": ()}
_OPTIONS = {
    # The library of operations is loaded by a Python that never frees all; freed memory is kept for a while.
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=16:handle_segv=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:ignore_noninstrumented_modules=1",
}
_SAID = re.compile(r"runtime error: .*|(?:ERROR|WARNING): \w+Sanitizer: [\w-]+(?: [a-z]+)*")
_FRAME = re.compile(r"#\d+ .*?(ovspec::[\w:]+)")


def sanitized(library: Path | None) -> list[str]:
    """What stands before the command of a Python that loads a native library; `None`: that of the package."""
    if library is None:
        return []
    info = json.loads(library.with_name("_build_info.json").read_text(encoding="utf-8"))
    kinds = [kind for kind in info["sanitize"].split(",") if kind]
    compiler, preloaded = os.environ.get("CXX", "c++"), []
    for name in (name for kind in kinds for name in _PRELOADED[kind]):
        found = subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        )
        preloaded.append(str(Path(found.stdout.strip()).resolve()))
    # The thread sanitizer wants its memory at places where the system, by chance, puts something else.
    fixed = ["setarch", "-R"] if "thread" in kinds else []
    options = (f"{key}={value}" for key, value in _OPTIONS.items())
    library_path = f"OVSPEC_EXTENSION_LIB={library.absolute()}"
    return ["env", library_path, f"LD_PRELOAD={' '.join(preloaded)}", *options, *fixed]


def said_by_sanitizer(text: str) -> str | None:
    """The first line and place of a sanitizer's report."""
    found = _SAID.search(text)
    if found is None:
        return None
    frame = _FRAME.search(text, found.end())
    return f"{found[0][:200]}{f' in {frame[1]}' if frame else ''}"

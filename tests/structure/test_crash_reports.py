"""The report of a worker that crashes ends the output of its run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_CRASHES = """
import ctypes, mmap

class Stack(ctypes.Structure):
    _fields_ = [("begin", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

def test_a_freed_stack():
    # As OpenVINO leaves it: a stack for signals that can't be written.
    c = ctypes.CDLL(None)
    c.mmap.restype, size = ctypes.c_void_p, 1 << 16
    place = c.mmap(None, ctypes.c_size_t(size), 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert c.sigaltstack(ctypes.byref(Stack(place, 0, size)), None) == 0

def test_crash():
    ctypes.string_at(0)
"""


def test_a_crash_is_reported_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_CRASHES)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    workers = ["--numprocesses", "1", "--max-worker-restart", "0", "-p", "crash_reports"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *workers, "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        # Not that of a worker which may run this test.
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert run.returncode == 1 and "1 failed, 1 passed" in run.stdout, run.stdout
    _, _, end = run.stdout.partition("gw0 crashed ==")
    assert "Fatal Python error: Segmentation fault" in end and "test_crash" in end, run.stdout + run.stderr

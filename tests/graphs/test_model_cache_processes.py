"""CACHE_DIR and other processes: one that is killed, two at once, a full disk, little memory."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from graphs.kept_models import Said, entries, logits, start
from numpy.typing import NDArray
from tiers import by_tier

START = """
import sys
from pathlib import Path
from ovspec.runner.model_runner import ModelRunner
properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}
ModelRunner(sys.argv[1], "CPU", properties={**properties, "CACHE_DIR": sys.argv[2]})
"""


def process(folder: Path, place: Path, before: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", before + START, str(folder), str(place)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class TestProcesses:
    @pytest.mark.parametrize("name", by_tier(["compile_paged", "checksums.keep"], ["checksums.keep"]))
    def test_killed_while_it_writes(
        self, name: str, tmp_path: Path, compiled: NDArray[np.float32], demo_ir: Path, said: Said
    ) -> None:
        """Before the blob is there, and between the blob and the record."""
        folder = demo_ir / "draft"
        kill = (
            "import os\nimport ovspec.graphs.model_cache as cache\n"
            f"cache.{name} = lambda *a: os.kill(os.getpid(), 9)\n"
        )
        killed = process(folder, tmp_path, kill)
        assert killed.wait() == -signal.SIGKILL
        assert not entries(tmp_path) and len(list(tmp_path.iterdir())) == 1
        assert np.array_equal(logits(start(folder, tmp_path)), compiled)
        kept = entries(tmp_path)
        assert list(tmp_path.iterdir()) == list(kept)
        start(folder, tmp_path)
        assert entries(tmp_path) == kept and not said()

    def test_two_at_once(
        self, tmp_path: Path, compiled: NDArray[np.float32], demo_ir: Path, said: Said
    ) -> None:
        folder = demo_ir / "draft"
        for started in [process(folder, tmp_path) for _ in range(2)]:
            assert started.communicate()[1] == "" and started.returncode == 0
        kept = entries(tmp_path)
        assert len(kept) == 1 and list(tmp_path.iterdir()) == list(kept)
        assert np.array_equal(logits(start(folder, tmp_path)), compiled)
        assert entries(tmp_path) == kept and not said()

    def test_a_disk_that_takes_no_more(self, tmp_path: Path, demo_ir: Path) -> None:
        limit = (
            "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))\n"
        )
        assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] != 1 << 16
        started = process(demo_ir / "draft", tmp_path, limit)
        said = started.communicate()[1].splitlines()
        assert started.returncode == 0 and len(said) == 1
        assert f"CACHE_DIR={tmp_path} can't be written" in said[0]
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("room", by_tier([0, 3 << 20], [3 << 20]))
    def test_a_machine_that_is_short_of_memory_for_now(
        self, room: int, tmp_path: Path, compiled: NDArray[np.float32], demo_ir: Path, said: Said
    ) -> None:
        """While a model is read back only `room` bytes more are free; the entry is not at fault."""
        folder = demo_ir / "draft"
        limit = (
            "import re, resource\nimport ovspec.graphs.model_cache as cache\n"
            "read, (_, most) = cache.ModelCache._import, resource.getrlimit(resource.RLIMIT_AS)\n"
            "def short(*arguments):\n"
            "    status = open('/proc/self/status').read()\n"
            f"    room = {room} + 1024 * int(re.search(r'VmSize:\\s+(\\d+)', status)[1])\n"
            "    resource.setrlimit(resource.RLIMIT_AS, (room, most))\n"
            "    try:\n        return read(*arguments)\n"
            "    finally:\n        resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
            "cache.ModelCache._import = short\n"
        )
        started = process(folder, tmp_path, limit)
        [line] = started.communicate()[1].splitlines()
        assert started.returncode == 0 and not list(tmp_path.iterdir())
        assert f"CACHE_DIR={tmp_path} can't be written (it can't be read now (" in line
        assert np.array_equal(logits(start(folder, tmp_path)), compiled)
        kept = entries(tmp_path)
        assert len(kept) == 1 and not said()
        started = process(folder, tmp_path, limit)
        [line] = started.communicate()[1].splitlines()
        assert started.returncode == 0 and entries(tmp_path) == kept
        assert "is not used, it can't be read now (" in line and "the model is compiled" in line

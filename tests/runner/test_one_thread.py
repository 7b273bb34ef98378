"""Models whose gated MLPs are OpenVINO's run with one thread too, also where there is AMX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from transforms.ffn_models import LAYERS, tiny_dense

from ovspec_transforms import keep_mlps_apart

RUN = """
import sys
import numpy as np
from ovspec.operations.attention_config import AttentionConfig
from ovspec.cache.cache import CachedSequence
from ovspec.runner.model_runner import ModelRunner
from ovspec.passes.tables import Rows

properties = dict(setting.split("=") for setting in sys.argv[2:])
runner = ModelRunner(sys.argv[1], "CPU", AttentionConfig("stock"), properties, linear="stock")
runner.forward([Rows(CachedSequence(), np.arange(1, 9), sampled=8)])
print(int(runner.compiled.get_property("INFERENCE_NUM_THREADS")))
"""


def run(folder: Path, *settings: str, cores: int | None = None) -> int:
    """Threads of a model that was compiled and run in a process of its own, on so many cores."""

    def limit() -> None:
        if cores is not None:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])

    command = [sys.executable, "-c", RUN, str(folder), *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize("settings", [["INFERENCE_NUM_THREADS=1"], ["PERFORMANCE_HINT=THROUGHPUT"]])
def test_it_runs(demo_ir: Path, settings: list[str]) -> None:
    run(demo_ir, *settings)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process is kept on a core on Linux only")
def test_a_kept_model_is_read_on_fewer_cores(demo_ir: Path, tmp_path: Path) -> None:
    kept = f"CACHE_DIR={tmp_path}"
    run(demo_ir, kept)
    assert run(demo_ir, kept, cores=1) == 1


def test_mlps_apart_compute_the_same() -> None:
    rows, exact = np.arange(24)[None] % 96, {"INFERENCE_PRECISION_HINT": "f32"}

    def logits(model: ov.Model) -> np.ndarray:
        request = ov.Core().compile_model(model, "CPU", exact).create_infer_request()
        given = {"input_ids": rows, "attention_mask": np.ones_like(rows), "position_ids": np.arange(24)[None]}
        return np.array(request.infer({**given, "beam_idx": np.zeros(1, np.int32)})["logits"])

    model = tiny_dense()
    expected = logits(model)
    assert keep_mlps_apart(model).count == LAYERS and keep_mlps_apart(model).count == 0
    np.testing.assert_array_equal(logits(model), expected)

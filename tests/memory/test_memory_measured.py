"""The memory plan against what processes take: never less than they do, and not much more."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from ovspec_models import demo_pair_path
from ovspec_models.shapes import get_shape
from ovspec_models.synthetic import build_model

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")

CONTEXT = 1024
# Processors differ in what their kernels lay out, and libraries in what they keep.
MOST = 1.4
LIBRARIES = 80_000_000  # mapped after the start
# Two threads, as each has buffers of its own.
THREADS = {"INFERENCE_NUM_THREADS": 2}
F32_F16 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f16"}

CHILD = """
import json, sys
from pathlib import Path
import numpy as np, openvino as ov
import ovspec

def held():
    lines = Path("/proc/self/status").read_text().splitlines()
    return {l.split(":")[0]: 1024 * int(l.split()[1]) for l in lines if l.startswith(("VmHWM", "Rss"))}

folder, context, settings = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
if "draft_model" in settings:
    settings["draft_model"] = ovspec.draft_model(settings["draft_model"])
if "verify" in settings:
    settings["verify"] = ovspec.SparseVerify(**settings["verify"])
before = held()
pipe = ovspec.LLMPipeline(folder, "CPU", max_context=context, **settings)
started = held()
ids = np.random.default_rng(0).integers(1, 1000, (1, context - 16))
pipe.generate(ov.Tensor(ids), max_new_tokens=8, ignore_eos=True)
plan = pipe.memory_plan
print(json.dumps([before, started, held(), plan.total, plan.as_json()]))
"""


def folder_of(folder: Path, layers: int, weight_format: str, shape_name: str) -> Path:
    """A model of random weights, large enough that they count beside the process."""
    shape = get_shape(shape_name, layers, 16_000)
    folder.mkdir()
    model = build_model(shape, weight_format)
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    for path in demo_pair_path().glob("openvino_*tokenizer.*"):
        shutil.copy(path, folder)
    (folder / "config.json").write_text(json.dumps({**asdict(shape), "eos_token_id": 0}))
    return folder


# Layers, weights and shape.
MODELS = {
    "int8": (6, "int8", "qwen3-0.6b"),
    "int4": (6, "int4", "qwen3-0.6b"),
    "fp16": (6, "fp16", "qwen3-0.6b"),
    "two layers": (2, "int8", "qwen3-0.6b"),
    "moe": (4, "int8", "qwen3-moe-64x8"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """One of `MODELS`, made when it is asked for first."""
    place = tmp_path_factory.mktemp("models")
    return functools.cache(lambda name: folder_of(place / name, *MODELS[name]))


def compare(
    folder: Path, drops_pages: bool = False, context: int = CONTEXT, **settings: Any
) -> dict[str, Any]:
    """Run a pipeline in a process of its own, and hold its plan to what it took.

    Args:
        drops_pages: whether the process unmaps a file on the way; its peak is not known then.
    """
    command = [sys.executable, "-c", CHILD, str(folder), str(context), json.dumps({**THREADS, **settings})]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    before, started, after, total, plan = json.loads(done.stdout.splitlines()[-1])
    peak = max(started["RssAnon"], after["RssAnon"])
    if not drops_pages:  # what was resident at the peak beyond the pages of files was anonymous
        peak = max(peak, after["VmHWM"] - after["RssFile"])
    most = total if drops_pages else MOST * peak
    assert peak <= total <= most, (
        f"plan {total / 1e6:.0f} MB, measured {peak / 1e6:.0f} MB: {plan}; at the start {started}, "
        f"then {after}"
    )
    parts = [plan["target"], *([plan["draft"]] if plan["draft"] else [])]
    mapped = sum(part["mapped"] for part in parts)
    assert after["VmHWM"] <= total + mapped + before["RssFile"] + LIBRARIES
    return plan


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "linear"), list(product(["int8", "int4"], ["native", "stock"])))
def test_compressed_weights(folder: Callable[[str], Path], weights: str, linear: str) -> None:
    compare(folder(weights), linear=linear)


@pytest.mark.slow
def test_a_long_context_is_not_copied(folder: Callable[[str], Path]) -> None:
    """OpenVINO's attention lays it out anew for every pass of a prompt; ours reads it where it is.

    In f32: in bf16 its copy of this context is smaller than the 32 MB of partial results that ours may hold.
    """
    f32 = {"INFERENCE_PRECISION_HINT": "f32"}
    ours = compare(folder("two layers"), context=6144, **f32)
    theirs = compare(folder("two layers"), context=6144, attention="stock", **f32)
    assert theirs["target"]["working"] > ours["target"]["working"] + 10_000_000


@pytest.mark.slow
@pytest.mark.parametrize("context", [12288, 16384])
def test_buffers_that_grew(folder: Callable[[str], Path], context: int) -> None:
    """What the cache and attention held before they grew is not left with the C library."""
    compare(folder("two layers"), context=context)


@pytest.mark.slow
def test_floating_point_weights_and_cache(folder: Callable[[str], Path]) -> None:
    compare(folder("fp16"), **F32_F16)


@pytest.mark.slow
def test_stock_attention_and_a_draft(folder: Callable[[str], Path]) -> None:
    plan = compare(folder("int8"), attention="stock", draft_model=str(folder("int4")), drafter="assistant")
    assert plan["draft"]["weights"] > 40_000_000


@pytest.mark.slow
def test_experts_stay_mapped(folder: Callable[[str], Path]) -> None:
    ours = compare(folder("moe"))
    theirs = compare(folder("moe"), experts="stock")
    assert theirs["target"]["weights"] > 3 * ours["target"]["weights"]


@pytest.mark.slow
def test_channels_limited_by_our_operation(folder: Callable[[str], Path]) -> None:
    compare(folder("int8"), ffn="native", linear="stock")


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["int8", "fp16"])
def test_a_kept_model_is_mapped(folder: Callable[[str], Path], tmp_path: Path, weights: str) -> None:
    made = compare(folder(weights), drops_pages=True, linear="native", CACHE_DIR=str(tmp_path))
    kept = compare(folder(weights), linear="native", CACHE_DIR=str(tmp_path))
    assert made["target"]["start"] > 80_000_000 and kept["target"]["start"] == 0
    assert kept["target"]["weights"] < 30_000_000
    assert kept["target"]["mapped"] == made["target"]["mapped"]

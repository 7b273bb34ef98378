"""The memory of a deleted pipeline is free again."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from pathlib import Path

import pytest
from commands import command
from settings import F32

import ovspec

TESTS = Path(__file__).parents[1]

# Runs in its own process: what other tests leave behind hides growth. Reference counts alone must free it.
CODE = """
import gc, os, sys
import ovspec
from ovspec_models import demo_pair_path
from settings import F32

gc.disable()
target, verify, attention, count, place = sys.argv[1:]
draft = ovspec.draft_model(demo_pair_path() / "draft") if place == "none" else None
kept = {} if place == "none" else {"CACHE_DIR": place}
for number in range(int(count)):
    pipeline = ovspec.LLMPipeline(
        target, "CPU", draft_model=draft, verify=verify, attention=attention, **kept, **F32
    )
    pipeline.generate("Once upon a time", max_new_tokens=8)
    del pipeline
    if number in (19, int(count) - 1):
        pages = int(open("/proc/self/statm").read().split()[1])
        print(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
"""

# The prompts come again, as what is learned of each length of pass is kept. After 2,000 calls each length
# that there is has come so often that it has its graph (`FixedGraphs`).
CALLS = """
import os, sys
import ovspec
from ovspec_models import demo_pair_path
from settings import F32

drafter = sys.argv[1]
draft = ovspec.draft_model(demo_pair_path() / "draft") if drafter == "assistant" else None
pipeline = ovspec.LLMPipeline(demo_pair_path(), "CPU", draft_model=draft, drafter=drafter, **F32)
for number in range(10_000):
    pipeline.generate(f"Once upon a time number {number % 50} there was", max_new_tokens=4)
    if number in (1_999, 9_999):
        pages = int(open("/proc/self/statm").read().split()[1])
        print(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
"""


def grown(code: str, *arguments: object) -> float:
    """Growth of a process between the two sizes that it prints, in MB."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
    }
    run = command(sys.executable, "-c", code, *map(str, arguments), env=environment, timeout=None)
    assert run.returncode == 0, run.stderr
    early, late = map(float, run.stdout.split())
    return late - early


def test_nothing_of_a_pipeline_holds_it(demo_ir: Path) -> None:
    gc.disable()
    try:
        pipeline = ovspec.LLMPipeline(
            demo_ir, "CPU", draft_model=ovspec.draft_model(demo_ir / "draft"), **F32
        )
        pipeline.generate("Once upon a time", max_new_tokens=8)
        parts = [weakref.ref(part) for part in (pipeline, pipeline._target)]
        del pipeline
        assert [part() for part in parts] == [None, None]
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verify", "attention"), [("sparse", "native"), ("sparse", "stock"), ("dense", "native")]
)
def test_fifty_pipelines_need_the_memory_of_one(demo_ir: Path, verify: str, attention: str) -> None:
    assert grown(CODE, demo_ir, verify, attention, 50, "none") < 5


@pytest.mark.slow
def test_twenty_more_pipelines_from_cache_dir(demo_ir: Path, tmp_path: Path) -> None:
    """A reader of compiled models that OpenVINO keeps would hold 1.3 MB of each."""
    assert grown(CODE, demo_ir, "dense", "native", 40, tmp_path) < 5


@pytest.mark.sweep
@pytest.mark.parametrize("kept", [False, True])
def test_two_hundred_pipelines(demo_ir: Path, tmp_path: Path, kept: bool) -> None:
    assert grown(CODE, demo_ir, "dense", "native", 200, tmp_path if kept else "none") < 5


@pytest.mark.sweep
@pytest.mark.parametrize("drafter", ["none", "assistant", "prompt_lookup"])
def test_ten_thousand_short_generations(drafter: str) -> None:
    assert grown(CALLS, drafter) < 1

"""The memory of a deleted pipeline is free again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from commands import command

TESTS = Path(__file__).parents[1]

# Runs in its own process: what other tests leave behind hides growth. Reference counts alone must free it.
CODE = """
import gc, os, sys
import ovspec
from ovspec_models import demo_pair_path
from settings import F32

gc.disable()
target, verify, attention = sys.argv[1:]
draft = demo_pair_path() / "draft"
for number in range(50):
    pipeline = ovspec.LLMPipeline(
        target, "CPU", draft_model=ovspec.draft_model(draft), verify=verify, attention=attention, **F32
    )
    pipeline.generate("Once upon a time", max_new_tokens=8)
    del pipeline
    if number in (19, 49):
        pages = int(open("/proc/self/statm").read().split()[1])
        print(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verify", "attention"), [("sparse", "native"), ("sparse", "stock"), ("dense", "native")]
)
def test_fifty_pipelines_need_the_memory_of_one(demo_ir: Path, verify: str, attention: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
    }
    run = command(sys.executable, "-c", CODE, demo_ir, verify, attention, env=environment)
    assert run.returncode == 0, run.stderr
    after_20, after_50 = map(float, run.stdout.split())
    assert after_50 - after_20 < 5, f"{after_20:.0f} MB, then {after_50:.0f} MB"

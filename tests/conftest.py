"""Fixtures that every folder of tests may use."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_once import MakeOnce, common_root, made_once
from settings import F32

import ovspec
from ovspec_models import demo_pair_path

pytest_plugins = ("crash_reports",)

# Pipelines of the demo pair that a worker keeps at most; one takes 50 to 90 MB.
KEPT_PIPELINES = 4


def pytest_configure() -> None:
    """Prepare the process, and those that tests start."""
    # Tests press Ctrl-C; a shell starts its background jobs, and what they start, with it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The telemetry of OpenVINO and NNCF forks this process for each event: half the time of a small export.
    # It is silent in CI. This sign of CI, unlike others, changes no settings of hypothesis.
    os.environ.setdefault("JENKINS_URL", "none")
    # torch's threads wait for each other in loops, and a tiny model's export takes three times as long where
    # workers share cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Commands buffer what they print, and find their modules compiled, as they do for users.
    for name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
        os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def collected_garbage() -> Iterator[None]:
    """Freeze older objects during a test, since exporters collect often; then collect what it leaves."""
    gc.freeze()
    yield
    gc.collect()
    gc.unfreeze()


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> MakeOnce:
    """Give a folder by its name, made by the first worker that asks for it; see `made_once`."""
    return functools.partial(made_once, common_root(tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="session")
def measured_once() -> Iterator[None]:
    """Benchmarks check the operations and measure the bandwidth at every start; here once per worker."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ovspec.cli.options.bench.self_check", "ovspec.bench.verify.read_bandwidth"):
            module, _, function = name.rpartition(".")
            patch.setattr(name, functools.cache(getattr(importlib.import_module(module), function)))
        yield


@pytest.fixture(scope="session")
def demo_ir() -> Path:
    """Folder of the embedded demo target; the draft lies below it."""
    return demo_pair_path()


@pytest.fixture(scope="session")
def moe_ir(make_once: MakeOnce, demo_ir: Path) -> Path:
    """A mixture of experts with the demo's tokenizer, which no test changes."""
    from transforms.moe_models import moe_folder

    return make_once("moe", lambda folder: moe_folder(folder / "model", demo_ir)) / "model"


@pytest.fixture(scope="session")
def make_pipeline(demo_ir: Path) -> Callable[..., ovspec.LLMPipeline]:
    """Pipelines of the demo pair in f32, plain or with the draft model alone; the last few are kept."""

    @functools.lru_cache(KEPT_PIPELINES)
    def kept(draft: bool, verify: Any, attention: str) -> ovspec.LLMPipeline:
        return ovspec.LLMPipeline(
            demo_ir,
            "CPU",
            draft_model=ovspec.draft_model(demo_ir / "draft") if draft else None,
            drafter="assistant" if draft else "none",
            verify=verify,
            attention=attention,
            **F32,
        )

    def make(draft: bool = False, verify: Any = "dense", attention: str = "native") -> ovspec.LLMPipeline:
        return kept(draft, verify, attention)

    return make

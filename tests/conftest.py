"""Fixtures that every folder of tests may use."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from settings import F32

import ovspec
from ovspec_models import demo_pair_path


def pytest_configure() -> None:
    """Tests press Ctrl-C; a shell starts its background jobs, and what they start, with it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def demo_ir() -> Path:
    """Folder of the embedded demo target; the draft lies below it."""
    return demo_pair_path()


@pytest.fixture(scope="session")
def make_pipeline(demo_ir: Path) -> Callable[..., ovspec.LLMPipeline]:
    """Pipelines of the demo pair in f32, each made once per session."""
    made: dict[tuple[Any, ...], ovspec.LLMPipeline] = {}

    def make(draft: bool = False, verify: Any = "dense", attention: str = "native") -> ovspec.LLMPipeline:
        key = (draft, verify, attention)
        if key not in made:
            made[key] = ovspec.LLMPipeline(
                demo_ir,
                "CPU",
                draft_model=ovspec.draft_model(demo_ir / "draft") if draft else None,
                verify=verify,
                attention=attention,
                **F32,
            )
        return made[key]

    return make

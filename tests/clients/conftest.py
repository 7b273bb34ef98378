"""A server of the demo pair for clients of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from serve.conftest import TEMPLATE, Served, serving

MODEL = "demo"


@pytest.fixture(scope="session")
def base_url(demo_ir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    template = tmp_path_factory.mktemp("clients") / "chat.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    served: Served
    with serving(demo_ir, "--chat-template", template, "--served-model-name", MODEL) as served:
        yield f"{served.url}/v1"

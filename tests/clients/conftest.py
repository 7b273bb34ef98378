"""A server of the demo pair for clients of every kind.

`make test-clients` has all of them, and a client that is missing is an error there. In another environment
these tests are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("instructor", reason="run by make test-clients")
# They ask no host but the server: litellm for prices, lm-eval for data sets.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["HF_HUB_OFFLINE"] = "1"

from serve.conftest import TEMPLATE, Served, serving

MODEL = "demo"


@pytest.fixture(scope="session")
def base_url(demo_ir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    template = tmp_path_factory.mktemp("clients") / "chat.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    served: Served
    with serving(demo_ir, "--chat-template", template, "--served-model-name", MODEL) as served:
        yield f"{served.url}/v1"

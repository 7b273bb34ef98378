"""The npm package ai, against a running server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from clients.conftest import MODEL

FOLDER = Path(__file__).parent / "node"


def test_ai(base_url: str) -> None:
    script = ["node", FOLDER / "client.mjs", base_url, MODEL]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["text"] and found["text"] == found["streamed"]
    for trip in (found["object"], *found["calls"]):
        assert trip["city"] in ("Rome", "Oslo") and 1 <= trip["days"] <= 9
    assert found["calls"]

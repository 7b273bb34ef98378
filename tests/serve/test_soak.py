"""Bad clients beside good ones, for a short time and for long (`tests/serve/soak.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from serve.soak import soak


@pytest.mark.slow
def test_no_answer_is_wrong_among_bad_clients(demo_ir: Path, tmp_path: Path) -> None:
    report = soak(demo_ir, tmp_path / "chat.jinja", clients=20, seconds=20.0)
    assert report["wrong"] == 0, report["first_wrong"]
    assert report["counts"]["asked: answered"] > 10 and report["counts"]["vanished"] > 0
    assert report["kv_cache_usage_at_end"] == 0


@pytest.mark.sweep
def test_ten_minutes_of_64_clients(demo_ir: Path, tmp_path: Path) -> None:
    report = soak(demo_ir, tmp_path / "chat.jinja", clients=64, seconds=600.0)
    assert report["wrong"] == 0, report["first_wrong"]
    assert report["growth_mb"] <= 0.01 * report["memory_mb"][-1]
    assert report["kv_cache_usage_at_end"] == 0

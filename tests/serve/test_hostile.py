"""Hostile clients beside honest ones (`tests/serve/hostile.py`, which is run by hand for figures)."""

from __future__ import annotations

import pytest
from serve.hostile import WAYS, measure


@pytest.mark.sweep
@pytest.mark.parametrize("way", [way for way in WAYS if way != "disconnects"])
def test_hostile_clients_cost_the_others_little(way: str) -> None:
    """With a loose bound: machines that run tests do other things too."""
    found = measure(10.0, [way])[way]
    assert set(found["answers"]) == {"200"} and found["ratio"] < 2.0

"""The check of a device, on the CPU: its patterns hold there too, and it sees a wrong attention."""

from __future__ import annotations

import pytest

from ovspec.bench import device_check
from ovspec.bench.device_check import check_device


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """In f32 only, which every device computes alike."""
    monkeypatch.setattr(device_check, "PRECISIONS", device_check.PRECISIONS[:1])


def test_every_pattern_is_numpys() -> None:
    checks = list(check_device("CPU"))
    assert len(checks) == 9
    assert all(check.ok for check in checks), checks


def test_a_device_that_refuses_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "PRECISIONS", (("f32", "bf16", 1.0),))
    (check,) = check_device("CPU")
    assert not check.ok
    assert check.failure


def test_a_wrong_attention_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "_attend", lambda query, text, read: query)
    assert not any(check.ok for check in check_device("CPU"))

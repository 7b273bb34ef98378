"""The check of a device, run on the CPU: all patterns pass, and it fails where attention is wrong."""

from __future__ import annotations

import pytest

from ovspec.bench import device_check
from ovspec.bench.device_check import PRECISIONS, check_device


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """In f32 only, which every device computes alike."""
    monkeypatch.setattr(device_check, "PRECISIONS", device_check.PRECISIONS[:1])


def test_every_pattern_is_numpys() -> None:
    checks = list(check_device("CPU"))
    assert len(checks) == 10
    assert all(check.ok for check in checks), checks


def test_a_tree_that_is_read_as_a_chain_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "tree_mask", lambda model: None)
    assert [check.pattern for check in check_device("CPU") if not check.ok] == ["trees of two sequences"]


def test_a_device_that_refuses_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "PRECISIONS", (("f32", "bf16", 1.0),))
    (check,) = check_device("CPU")
    assert not check.ok
    assert check.failure


@pytest.mark.parametrize("cache", ["f32", "u8"])
def test_a_block_that_is_left_out_is_seen(monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    """By the tolerance of the cache; a CPU takes u8 caches in f32 as well."""
    tolerance = {stored: allowed for _, stored, allowed in PRECISIONS}[cache]
    monkeypatch.setattr(device_check, "PRECISIONS", (("f32", cache, tolerance),))
    assert all(check.ok for check in check_device("CPU"))
    attend = device_check._attend
    monkeypatch.setattr(
        device_check,
        "_attend",
        lambda query, text, read: attend(query, text, read[32:] if len(read) > 32 else read),
    )
    assert not any(check.ok for check in check_device("CPU"))

"""`ovspec_channels.npz`: what is written can be read, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ovspec_models import CHANNELS_NAME, ChannelSets
from ovspec_transforms import GroupEstimate


def sets(grouped: bool = True) -> ChannelSets:
    orders = tuple(np.arange(size, dtype=np.int32)[::-1].copy() for size in (8, 12))
    if not grouped:
        return ChannelSets(orders)
    groups = tuple(np.arange(size, dtype=np.int32).reshape(2, -1) for size in (8, 12))
    estimates = tuple(
        GroupEstimate(np.array([0, 3], np.int32), np.ones((2, 2), np.float32), np.zeros(2, np.float32))
        for _ in orders
    )
    return ChannelSets(orders, groups, estimates)


@pytest.mark.parametrize("grouped", [False, True])
def test_round_trip(tmp_path: Path, grouped: bool) -> None:
    written = sets(grouped)
    assert written.save(tmp_path) == tmp_path / CHANNELS_NAME
    assert [path.name for path in tmp_path.iterdir()] == [CHANNELS_NAME]
    found = ChannelSets.load(tmp_path)
    assert found is not None and len(found.estimates) == len(found.groups) == (2 if grouped else 0)
    for mine, theirs in zip((*written.orders, *written.groups), (*found.orders, *found.groups), strict=True):
        assert mine.dtype == theirs.dtype and np.array_equal(mine, theirs)
    for estimate, other in zip(written.estimates, found.estimates, strict=True):
        for name in ("probes", "weights", "bias"):
            assert np.array_equal(getattr(estimate, name), getattr(other, name))


def test_absent_file_is_none(tmp_path: Path) -> None:
    assert ChannelSets.load(tmp_path) is None


ORDER, GROUPS = np.arange(4, dtype=np.int32), np.arange(4, dtype=np.int32).reshape(2, 2)
BAD: dict[str, dict[str, np.ndarray]] = {
    "nothing": {},
    "another array": {"order.0": ORDER, "labels.0": ORDER},
    "another type": {"order.0": ORDER.astype(np.int64)},
    "another shape": {"order.0": GROUPS},
    "a channel twice": {"order.0": np.zeros(4, np.int32)},
    "objects": {"order.0": np.array([{}], object)},
    "groups alone": {"order.0": ORDER, "groups.0": GROUPS},
    "a layer is missing": {"order.0": ORDER, "order.2": ORDER},
}


@pytest.mark.parametrize("name", BAD)
def test_what_calibration_did_not_write_is_refused(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / CHANNELS_NAME, **BAD[name])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not what calibration writes") as caught:
        ChannelSets.load(tmp_path)
    assert CHANNELS_NAME in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut short"])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CHANNELS_NAME).write_bytes(content)
    with pytest.raises(ValueError, match="not what calibration writes") as caught:
        ChannelSets.load(tmp_path)
    assert "\n" not in str(caught.value)

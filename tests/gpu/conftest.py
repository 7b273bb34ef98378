"""Tests that run on whatever OpenVINO lists as GPU."""

from __future__ import annotations

import pytest

from ovspec.devices.devices import openvino_core


@pytest.fixture(scope="session")
def gpu() -> str:
    """The device; the test is skipped where there is none."""
    devices = openvino_core().available_devices
    found = [name for name in devices if name.startswith("GPU")]
    if not found:
        pytest.skip(f"OpenVINO lists no GPU here: {', '.join(devices)}")
    return str(found[0])

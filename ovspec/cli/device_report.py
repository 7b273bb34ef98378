"""`ovspec info --self-check --device GPU`: what a device computes, in a file to report."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ovspec.bench.device_check import DeviceCheck, check_device, time_device
from ovspec.cli.options.output import print_rows
from ovspec.devices.devices import openvino_core
from ovspec.devices.properties import check_properties

_PROPERTIES = ("FULL_DEVICE_NAME", "DEVICE_TYPE", "GPU_DEVICE_TOTAL_MEM_SIZE", "OPTIMIZATION_CAPABILITIES")


def report_device(device: str, facts: dict[str, Any], as_json: bool) -> int:
    """Check a device, write the report, and return the exit code.

    Raises:
        ValueError: the device is not there, or the file can't be written.
    """
    core, path = openvino_core(), Path(f"ovspec-check-{device}.json")
    check_properties(core, device, {})
    checks: list[DeviceCheck] = []
    for check in check_device(device):
        checks.append(check)
        if not as_json:
            verdict = "ok" if check.ok else "FAILED"
            click.echo(f"{check.pattern}, {check.inference}, cache {check.cache}: {verdict}")
    report = {
        **facts,
        "device": {name: str(core.get_property(device, name)) for name in _PROPERTIES},
        "checks": [{**asdict(check), "ok": check.ok} for check in checks],
        "verdict": _verdict(device, checks),
        "milliseconds": _times(device),
    }
    text = json.dumps(report, indent=2, default=str)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} can't be written ({error.strerror}); call it in another folder") from error
    if as_json:
        click.echo(text)
    else:
        _show(checks, report["milliseconds"])
        click.echo(f"{path}: attach it to a report")
    if not as_json:
        click.echo(report["verdict"])
    return 1 if any(not check.ok for check in checks) else 0


def _verdict(device: str, checks: list[DeviceCheck]) -> str:
    failed = [f"{check.pattern} ({check.inference}, {check.cache})" for check in checks if not check.ok]
    if failed:
        return f"FAILED: on {device} these differ from NumPy: {', '.join(failed)}"
    return f"all {len(checks)} patterns of attention agree with NumPy on {device}"


def _times(device: str) -> list[dict[str, Any]]:
    try:
        return time_device(device)
    except (RuntimeError, ValueError) as error:  # the report says so
        return [{"failure": str(error)}]


def _show(checks: list[DeviceCheck], times: Any) -> None:
    rows = [
        (
            check.pattern,
            check.inference,
            check.cache,
            check.failure or f"{check.error:.1e}",
            f"{check.tolerance:.1e}",
            "ok" if check.ok else "FAILED",
        )
        for check in checks
    ]
    columns = ("pattern", "inference", "cache", "error", "tolerance", "ok")
    print_rows(columns, rows, "attention against NumPy")
    for one in times:
        click.echo(
            "; ".join(f"{name} {value:.3g}" if name != "failure" else value for name, value in one.items())
        )

"""The server's own OpenAPI document against the server, by Schemathesis: does it answer as it says?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hunts.fuzz_hunt import Report, save
from serve.conftest import TEMPLATE, serving

from ovspec_models import demo_pair_path

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)
#: Tokens of prompt and answer together, so that no answer takes long.
_CONTEXT = 64


def hunt_schema(seed: int, start: int, count: int, seconds: float, folder: Path, before: list[str]) -> Report:
    """Run Schemathesis against a server of its own.

    Args:
        start, before: have no meaning here.
        count: inputs of an operation at most.
        seconds: for all of them.
        folder: where what Schemathesis says of a finding is saved.
    """
    report, began = Report("schema", seed, start), time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        template, told = Path(place) / "chat.jinja", Path(place) / "report.json"
        template.write_text(TEMPLATE, encoding="utf-8")
        with serving(demo_pair_path(), "--chat-template", template, "--max-context", str(_CONTEXT)) as served:
            limits = {"max-time": max(1, round(seconds)), "max-examples": count, "seed": seed}
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json"),
                    *("--checks", ",".join(CHECKS), "--report", "json", "--report-json-path", str(told)),
                    *(f"--{name}={value}" for name, value in limits.items()),
                    *("--suppress-health-check", "all", "--continue-on-failure", "--no-color"),
                ],
                capture_output=True,
                text=True,
                env={
                    **os.environ,
                    "SCHEMATHESIS_HOOKS": str(Path(__file__).with_name("fuzz_schema_hooks.py")),
                },
            )
            status = Path(f"/proc/{served.process.pid}/status").read_text(encoding="ascii")
            report.peak_mb = int(status.partition("VmHWM:")[2].split()[0]) / 1024
        said: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    report.seconds = round(time.monotonic() - began, 1)
    count_inputs(report, said)
    if done.returncode:
        what = f"Schemathesis ended with code {done.returncode}: the file has its words"
        finding = {
            "number": 0,
            "what": what,
            "where": what,
            "trace": done.stdout + done.stderr,
            "input": None,
        }
        save(report, finding, folder)
    return report


def count_inputs(report: Report, said: dict[str, Any]) -> None:
    """Take over what Schemathesis counted."""
    report.inputs = int(said["test_cases"]["generated"])
    for rates in said["valid_rates"].values():
        for phase in rates.values():
            report.outcomes.update({name: count for name, count in phase.items() if count})

"""Running commands as a user does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner

from ovspec.cli import main


def command(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command; `options` are those of `subprocess.run`."""
    options = {"capture_output": True, "text": True, "timeout": 600, "check": False, **options}
    return subprocess.run([str(argument) for argument in arguments], **options)


def ovspec(
    *arguments: str | Path, input: str | bytes | None = None, cwd: str | Path = "."
) -> subprocess.CompletedProcess[str]:
    """Run an `ovspec` command in this process, from its arguments to its exit code.

    Importing OpenVINO in a process of its own takes a second. Tests of what belongs to a process (signals,
    closed streams, environment variables) call `installed_ovspec`.
    """
    words = ["ovspec", *map(str, arguments)]
    code: Any = 0
    before = Path.cwd()
    with CliRunner().isolation(input) as (output, errors, _), mock.patch.object(sys, "argv", words):
        os.chdir(cwd)
        try:
            main()
        except SystemExit as end:
            code = end.code
        finally:
            os.chdir(before)
        sys.stdout.flush()
        sys.stderr.flush()
        shown, told = (stream.getvalue().decode() for stream in (output, errors))
    return subprocess.CompletedProcess(words, code, shown, told)


def installed_ovspec(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the installed command; `options` are those of `subprocess.run`."""
    return command(Path(sys.executable).with_name("ovspec"), *arguments, **options)


def isolated(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command as on a fresh machine: without index, variables, and network where that can be had."""
    offline = (
        ["unshare", "-rn"]
        if shutil.which("unshare") and not command("unshare", "-rn", "true").returncode
        else []
    )
    environment = {"PATH": os.defpath, "HOME": "/nonexistent", "PIP_NO_INDEX": "1", "PYTHON": sys.executable}
    return command(*offline, *arguments, env=environment, cwd="/")


def one_line(run: subprocess.CompletedProcess[str]) -> str:
    """What a refusal prints."""
    assert run.returncode == 2, run.stderr
    assert len(refusal(run.stderr)) == 1 and not run.stdout
    return refusal(run.stderr)[0] + "\n"


def refusal(errors: str) -> list[str]:
    """Lines on standard error without those of the steps that were done before."""
    return [line for line in errors.splitlines() if not re.match("ovspec: (?!error|warning)", line)]

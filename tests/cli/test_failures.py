"""How commands end: exit codes, tracebacks on request, Ctrl-C, closed streams; a start without OpenVINO."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import command, one_line, ovspec
from tiers import by_tier

from ovspec_models import demo_pair_path

# One command passes an array to NumPy that it refuses. The other is interrupted inside a library that turns
# KeyboardInterrupt into another error.
_COMMANDS = """
import os, signal, sys
import click, numpy as np
from ovspec.cli import cli, main

@cli.command()
def broken():
    from ovspec.eval.divergence import log_softmax
    log_softmax(np.zeros(0, np.float32))

@cli.command()
def interrupted():
    try:
        signal.raise_signal(signal.SIGINT)
        sum(range(1000))
    except KeyboardInterrupt:
        raise RuntimeError("Check 'false' failed at src/frontend.cpp:1") from None

@cli.command()
def says():
    from ovspec.cli.generate import print_piece
    print_piece("caf\\xe9 \\udcff")
    click.echo("caf\\xe9 \\udcff", nl=False)

main()
"""


def scripted(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return command(sys.executable, "-c", _COMMANDS, *arguments, env={**os.environ, **environment})


def test_an_internal_fault_looks_like_one() -> None:
    run = scripted("broken")
    assert run.returncode == 70, run.stderr
    fault, report = run.stderr.splitlines()
    assert fault.startswith("ovspec: internal error: ValueError in divergence.py:")
    assert "report it with the output of the same command and --debug" in report


@pytest.mark.parametrize("wish", ["flag before", "flag behind", "variable"])
def test_debug_shows_the_traceback(wish: str) -> None:
    before, behind = ["--debug"] * (wish == "flag before"), ["--debug"] * (wish == "flag behind")
    run = scripted(*before, "broken", *behind, OVSPEC_DEBUG="1" if wish == "variable" else "0")
    assert run.returncode == 70
    assert "Traceback (most recent call last)" in run.stderr and "in log_softmax" in run.stderr


def test_debug_shows_where_a_users_error_was_found() -> None:
    arguments = ("generate", "-m", "/nowhere", "-p", "x")
    assert "'/nowhere' does not exist" in one_line(ovspec(*arguments))
    run = ovspec(*arguments, "--debug")
    assert run.returncode == 2 and "Traceback" in run.stderr
    assert run.stderr.splitlines()[-1].startswith("ovspec: error: ")


def test_ctrl_c_that_a_library_hides_ends_the_command() -> None:
    run = scripted("interrupted")
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")


@pytest.mark.parametrize("after", by_tier([0.05, 0.5, 1.5], [0.5]))
def test_ctrl_c_is_quiet_from_the_start(after: float) -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import ovspec.cli as c; "
    process = subprocess.Popen(
        [sys.executable, "-c", code + "print(flush=True); c.main()", "demo", "--embedded"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(after)
    process.send_signal(signal.SIGINT)
    errors = process.stderr.read()
    assert process.wait(60) == 130 and not errors.strip(), errors


def shell(line: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("ovspec")
    model = f"{program} generate -m {demo_pair_path()} --max-new-tokens 2"
    return command("sh", "-c", line.replace("GENERATE", model))


def test_closed_streams() -> None:
    assert "standard output is closed" in one_line(shell("GENERATE -p hi >&-"))
    assert "the prompt is empty" in one_line(shell("GENERATE <&-"))
    run = shell("GENERATE -p hi 2>&-")
    assert run.returncode == 0 and run.stdout.strip() and not run.stderr


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", "café ?".encode()), ("latin-1", b"caf\xe9 \\udcff"), ("utf-8", "café \\udcff".encode())],
)
def test_what_the_outputs_encoding_lacks_is_no_fault(encoding: str, shown: bytes) -> None:
    """Text of a model, and names of files that are no UTF-8. click writes UTF-8 where only ASCII is said."""
    run = command(
        *(sys.executable, "-c", _COMMANDS, "says"),
        env={**os.environ, "PYTHONIOENCODING": encoding},
        text=False,
    )
    assert (run.returncode, run.stdout) == (0, shown * 2), run.stderr


def test_the_version_needs_no_openvino() -> None:
    code = (
        "import sys; sys.argv = ['ovspec', '--version']\n"
        "from ovspec.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "heavy = {'openvino', 'openvino_genai', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    run = command(sys.executable, "-c", code)
    assert run.returncode == 0 and run.stdout.startswith("ovspec, version "), run.stderr


def test_every_public_name_is_there() -> None:
    code = (
        "import ovspec\n"
        "assert set(ovspec._MODULES) == set(ovspec.__all__)\n"
        "assert set(ovspec.__all__) <= set(dir(ovspec))\n"
        "for name in ovspec.__all__:\n    assert getattr(ovspec, name).__name__ == name, name\n"
        "assert ovspec.drafters.Suffix and not hasattr(ovspec, 'Frobnicate')"
    )
    run = command(sys.executable, "-c", code)
    assert run.returncode == 0, run.stderr

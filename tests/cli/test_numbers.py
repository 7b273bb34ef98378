"""Numbers in every option of every command: what is no number of its kind is refused by name, in one line."""

from __future__ import annotations

import click
import pytest
from commands import one_line, ovspec

from ovspec.cli import cli, flags_of
from ovspec.cli.options.failures import is_refusal, told
from ovspec.cli.options.help import subcommands
from ovspec_models import demo_pair_path

Options = list[tuple[str, click.ParamType]]
WHOLE, SHARE = (click.types.IntParamType, click.types.FloatParamType)


def numeric_options() -> dict[tuple[str, ...], Options]:
    """The options of every command that take numbers, as click knows them."""
    found: dict[tuple[str, ...], Options] = {}
    for path, command in subcommands((), cli):
        options = (parameter for parameter in command.params if isinstance(parameter, click.Option))
        kinds = ((option.opts[0], option.type) for option in options)
        numbers = [(name, kind) for name, kind in kinds if isinstance(kind, (WHOLE, SHARE))]
        if numbers and not isinstance(command, click.Group):
            found[path] = numbers
    return found


OPTIONS = numeric_options()


def test_the_options_are_found() -> None:
    assert len(OPTIONS) > 15 and ("bench", "verify") in OPTIONS
    assert "--temperature" in dict(OPTIONS["generate",]) and "--port" in dict(OPTIONS["serve",])


@pytest.mark.parametrize("path", OPTIONS, ids=" ".join)
def test_what_is_no_finite_number_is_refused(path: tuple[str, ...]) -> None:
    for option, kind in OPTIONS[path]:
        never = ["nan", "inf", "-inf", "1e999", "9" * 30, f"-{'9' * 30}", "", "four"]
        for value in [*never, "1.5"] if isinstance(kind, WHOLE) else never:
            line = one_line(ovspec(*path, option, value))
            assert f"'{option}'" in line or f"'{option}' / " in line, (option, value, line)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--num-assistant-tokens", "64"), "--num-assistant-tokens 64: expected at most 63"),
        (
            ("--tree-depth", "9", "--num-assistant-tokens", "4"),
            "--num-assistant-tokens 4: expected at least --t",
        ),
        (("--verify", "commit", "--commit-interval", "64"), "--commit-interval 64: expected"),
        (("--prefill", "sparse", "--prefill-rho", "2"), "--prefill-rho 2.0: expected"),
        (("--verify", "commit", "--prefill", "sparse"), "--verify commit with --prefill sparse"),
    ],
)
def test_a_refusal_has_the_words_of_the_command_line(words: tuple[str, ...], expected: str) -> None:
    line = one_line(ovspec("generate", "-m", demo_pair_path(), "-p", "Once", *words))
    assert expected in line and "=" not in line


@pytest.mark.parametrize(
    "words",
    [
        ("verify", "--shape", "qwen3-0.6b", "--layers", "29"),
        ("verify", "--shape", "qwen3-0.6b", "--vocab-size", str(2**62)),
        ("kernel", "--heads", str(2**62)),
        ("kernel", "--head-size", "0"),
        ("kernel", "--sequences", str(2**62)),
        ("host", "--vocab-size", str(2**62)),
        ("serve", "--num-prompts", str(2**62)),
    ],
)
def test_sizes_that_no_memory_holds_are_refused(words: tuple[str, ...]) -> None:
    assert words[-2] in one_line(ovspec("bench", *words))


def test_a_switch_has_no_value() -> None:
    error = RuntimeError("it failed; run with verbose=True for its full output")
    assert told(error, flags_of(cli, ["export"])) == "it failed; run with --verbose for its full output"


def test_folders_keep_their_names() -> None:
    """Sweeps name folders by their settings."""
    flags = {"seed": "--seed", "budget": "--budget"}
    for path in ("runs/seed=3/model", "/runs/seed=30,budget=4/model", "seed=3/model.xml", "C:\\seed=3"):
        assert told(ValueError(f"{path}: no such file; give seed=3"), flags) == (
            f"{path}: no such file; give --seed 3"
        )


def test_a_full_memory_is_no_fault_of_ours() -> None:
    error = RuntimeError("Exception from src/core/src/runtime/allocator.cpp:79: std::bad_alloc")
    assert is_refusal(error) and told(error, {}).startswith("the memory is full: ")
    assert told(MemoryError("Unable to allocate 2 TiB"), {}).startswith("the memory is full (Unable to")

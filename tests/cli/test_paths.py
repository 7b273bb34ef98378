"""Paths in every argument and option of every command: a wrong one is refused in one line, before work."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import click
import pytest
from commands import command, one_line, ovspec

from ovspec.cli import cli
from ovspec.cli.options.help import subcommands
from ovspec.rag import index
from ovspec_models import demo_pair_path

MODELS = {"model", "folder", "target", "draft_model", "include_path", "embedding_model"}
TEXTS = {
    *("prompts", "data", "requests", "prompt_file", "jsonl", "chat_template", "file", "prefix_cache"),
    *("suffix_corpus", "questions", "documents", "store", "trace", "suite", "filler"),
    *("json_schema", "grammar"),
}
OUTPUTS = {"answers", "output", "out", "json_path", "plot"}
# A folder of caches is made where there is none. Pictures need another model: tests/pictures.
ELSEWHERE = {"cache_dir", "images", "allowed_local_media_path"}
# Makes the store that others read.
MAKES_STORE = ("rag", "index")
# OUT is a folder, made with those that it lies in.
MAKE_FOLDERS = (("export",), ("bundle",), ("train-head",))
NOT_REFUSED = {
    *(("export", name) for name in ("model", "draft_model")),  # may be a name of the hub
    ("bench serve", "model"),  # is a name of the server's
    *((name, "prefix_cache") for name in ("generate", "chat", "serve")),  # left out with a warning
}
LINE = {
    "prompt": "Once",
    "text": "Once upon a time",
    "url": "/v1/completions",
    "body": {"prompt": "Once", "max_tokens": 2},
    "question": "Once?",
    "answers": ["a time"],
}

# What else a command needs to come as far as its paths.
RIGHT: dict[str, object] = {
    "tasks": "arc_easy",
    "shell": "bash",
    "question": "Once?",
    "documents": Path("right.txt"),
    "store": Path("right.db"),
}
NEEDS = {
    ("cache", "save"): ["--prompt", "Once"],
    ("eval", "tasks"): ["--needles", "300"],
    ("info",): ["--self-check"],
    ("rag", "ask"): ["--mode", "plain"],
}

Case = tuple[tuple[str, ...], click.Command, click.Parameter]


def parameters() -> list[Case]:
    """Everything that takes a path, as click knows it."""
    leaves = [pair for pair in subcommands((), cli) if not isinstance(pair[1], click.Group)]
    pairs = [(path, leaf, parameter) for path, leaf in leaves for parameter in leaf.params]
    return [case for case in pairs if is_path(case[2])]


def is_path(parameter: click.Parameter) -> bool:
    known = MODELS | TEXTS | OUTPUTS
    return parameter.name in known or isinstance(parameter.type, click.Path)


def is_output(path: tuple[str, ...], parameter: click.Parameter) -> bool:
    return parameter.name in OUTPUTS or (path == MAKES_STORE and parameter.name == "store")


def name_of(case: Case) -> str:
    return " ".join((*case[0], case[2].opts[-1]))


CASES = parameters()


def words(case: Case, value: Path, folder: Path) -> list[str]:
    """The command with `value` in its place, and with what is right in all other places that it needs."""
    path, leaf, wrong = case
    lines = (json.dumps(LINE | {"custom_id": name}) for name in "abc")
    (folder / "right.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "right.txt").write_text("Once upon a time")
    if "store" in {parameter.name for parameter in leaf.params} and not (folder / "right.db").exists():
        index(folder / "right.db", [folder / "right.txt"])
    arguments, options = [], []
    for parameter in leaf.params:
        right: object = None
        if parameter.required or (parameter.name == "model" and path[:1] == ("bench",)):
            right = RIGHT.get(str(parameter.name), folder / "right.jsonl")
            right = demo_pair_path() if parameter.name in MODELS else right
            right = folder / "new" if is_output(path, parameter) else right
            right = folder / right if isinstance(right, Path) else right
        if (given := value if parameter is wrong else right) is None:
            continue
        words = [str(given)] if isinstance(parameter, click.Argument) else [parameter.opts[-1], str(given)]
        (arguments if isinstance(parameter, click.Argument) else options).extend(words)
    names = {parameter.name for parameter in leaf.params}
    if "suffix_corpus" in names and wrong.name != "draft_model" and path != ("eval", "rag"):
        options += ["--drafter", "suffix"]
    options += NEEDS.get(path, [])
    return [*path, *options, *arguments]


def test_every_path_is_known() -> None:
    assert len(CASES) > 50
    unknown = {name_of(case) for case in CASES if case[2].name not in MODELS | TEXTS | OUTPUTS | ELSEWHERE}
    assert not unknown, "say in this file what these are"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_wrong_path_is_refused(case: Case, tmp_path: Path) -> None:
    name = str(case[2].name)
    file, empty, binary, circle = (tmp_path / name for name in ("empty.png", "folder", "binary", "circle"))
    file.write_bytes(b"")
    empty.mkdir()
    binary.write_bytes(b"\xff\xfe\x80")
    circle.symlink_to(circle)
    wrong = [tmp_path / "missing"]
    if name in MODELS:
        wrong += [empty, file, circle]
    elif name in TEXTS and not is_output(case[0], case[2]):
        wrong += [empty, file, binary, circle]
    else:
        wrong = [file / "x.png"]
        if case[0] not in MAKE_FOLDERS:
            wrong += [tmp_path / "missing" / "x.png", Path("/sys/x.png")]
    if (" ".join(case[0]), name) in NOT_REFUSED or name in ELSEWHERE:
        return
    before = sorted(tmp_path.iterdir())
    for value in wrong:
        line = one_line(ovspec(*words(case, value, tmp_path), input="Once\n"))
        if "pip install" in line:
            pytest.skip("a package is missing, which this command asks for first")
        assert str(value) in line or str(value.parent) in line, (value, line)
        assert "in a process of its own" not in line, "work has begun"
    assert sorted({*tmp_path.iterdir()} - {*before, *tmp_path.glob("right.*")}) == []


def is_text(path: tuple[str, ...], parameter: click.Parameter) -> bool:
    return parameter.required and parameter.name in TEXTS and not is_output(path, parameter)


@pytest.mark.parametrize(
    "case",
    [
        (path, leaf, parameter)
        for path, leaf, parameter in CASES
        if is_output(path, parameter) and path not in MAKE_FOLDERS
        if any(is_text(path, other) for other in leaf.params)
    ],
    ids=name_of,
)
def test_what_is_read_is_not_written_over(case: Case, tmp_path: Path) -> None:
    path, leaf, _ = case
    names = {RIGHT.get(str(read.name), "right.jsonl") for read in leaf.params if is_text(path, read)}
    for name in map(str, names):
        line = words(case, tmp_path / name, tmp_path)
        held = (tmp_path / name).read_bytes()
        refusal = one_line(ovspec(*line, input="Once\n"))
        assert name in refusal and "in a process of its own" not in refusal, refusal
        assert (tmp_path / name).read_bytes() == held


def test_no_suite_of_several_is_written_over(demo_ir: Path, tmp_path: Path) -> None:
    suites = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    for suite in suites:
        suite.write_text('{"prompt": "Once", "reference": "there was"}\n')
    given = [word for suite in suites for word in ("--suite", suite)]
    line = one_line(ovspec("eval", "tasks", "-m", demo_ir, *given, "--json", suites[1]))
    assert f"--json {suites[1]}: is the file that is read" in line
    assert suites[0].read_text() == suites[1].read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("measured_once")
def test_a_device_is_written_to_and_not_replaced() -> None:
    """`--json` into a full device and into a pipe."""
    bench = (
        "bench",
        "verify",
        "--model",
        demo_pair_path(),
        "--context",
        "16",
        "--tokens",
        "1",
        "--repeat",
        "1",
    )
    run = ovspec(*bench, "--backend", "stock", "--json", "/dev/full")
    assert run.returncode == 2 and "/dev/full can't be written (No space left on device)" in run.stderr
    assert '"records"' in run.stdout and Path("/dev/full").is_char_device()
    reader, writer = os.pipe()
    run = ovspec(*bench, "--backend", "stock", "--json", f"/dev/fd/{writer}")
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        assert run.returncode == 0 and '"records"' in pipe.read(), run.stderr


def test_a_full_standard_output_is_named() -> None:
    program = Path(sys.executable).with_name("ovspec")
    for words in ("info", f"generate -m {demo_pair_path()} -p Once"):
        line = one_line(command("sh", "-c", f"{program} {words} >/dev/full"))
        assert "standard output can't be written (No space left on device): make room" in line, words


@pytest.mark.parametrize("name", ["openvino_model.bin", "config.json"])
def test_no_file_of_the_model_is_written_over(name: str, demo_ir: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(demo_ir / "draft", tmp_path / "model"))
    before = (model / name).read_bytes()
    for words in (["cache", "save", "--prompt", "Once"], ["bench", "verify", "--json"]):
        line = one_line(ovspec(*words, str(model / name), "--model", str(model)))
        assert f"{model / name}: is the file that is read" in line
        assert (model / name).read_bytes() == before

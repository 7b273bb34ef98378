"""`ovspec chat`, a system message, and prompts and answers as JSON lines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import installed_ovspec, one_line, ovspec

from ovspec_models import demo_pair_path

TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
F32 = ("--property", "INFERENCE_PRECISION_HINT=f32", "--property", "KV_CACHE_PRECISION=f32")
OPTIONS = ("--max-new-tokens", "12", "--draft-model", "none", *F32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo target with a chat template and few positions."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(demo_pair_path(), folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 128}))
    return folder


def chat(model: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    return ovspec("chat", "-m", model, *OPTIONS, *options, input=text)


def test_what_was_said_is_remembered_until_a_reset(model: Path) -> None:
    tim, sad = "Once upon a time there was a dog named Tim.", "He was very sad, because"
    alone, again = chat(model, f"{tim}\n"), chat(model, f"{sad}\n")
    run = chat(model, f"{tim}\n{sad}\n/reset\n{tim}\n/exit\nnever read\n")
    assert run.returncode == 0 and not run.stderr, run.stderr
    assert run.stdout.startswith(alone.stdout) and run.stdout.endswith(alone.stdout)
    between = run.stdout[len(alone.stdout) : -len(alone.stdout)]
    assert between.strip() and between != again.stdout


def test_the_system_message_counts(model: Path) -> None:
    plain, told = chat(model, "Hello\n"), chat(model, "Hello\n", "--system", "Tell of a big red dog.")
    assert plain.stdout != told.stdout
    run = ovspec("generate", "-m", model, "-p", "Hello", "--system", "Tell of a big red dog.", *OPTIONS)
    assert run.stdout == told.stdout, run.stderr


def test_the_context_ends_as_was_chosen(model: Path) -> None:
    long = "\n".join(["Tell me a long story of a dog and a cat and a bird, please"] * 8) + "\n"
    dropped = chat(model, long)
    assert dropped.returncode == 0 and "the oldest turn is forgotten" in dropped.stderr, dropped.stderr
    stopped = chat(model, long, "--at-context-end", "stop")
    assert (
        stopped.returncode == 2 and "the chat has become longer than the model's positions" in stopped.stderr
    )
    assert stopped.stdout and dropped.stdout.startswith(stopped.stdout) and dropped.stdout != stopped.stdout
    huge = chat(model, "dog " * 300 + "\n")
    assert huge.returncode == 2 and "this message is longer than" in huge.stderr
    assert "drop" not in huge.stderr  # that is how it chats already


def test_an_answer_is_not_cut_as_long_as_something_can_be_forgotten(model: Path) -> None:
    """After the second message 16 of 128 positions are left; the answer needs 40."""
    text, options = "dog " * 25 + "\n", ("--max-new-tokens", "40", "--ignore-eos", "--figures")
    run = chat(model, text * 2, *options)
    assert "the oldest turn is forgotten" in run.stderr and run.stderr.count("[40 tokens") == 2, run.stderr
    run = chat(model, text * 2, *options, "--at-context-end", "stop")
    assert run.returncode == 2 and "--max-new-tokens 40 for the answer" in run.stderr
    # A message alone gets what positions there are.
    run = chat(model, "dog " * 50 + "\n", "--max-new-tokens", "100", "--figures")
    assert run.returncode == 0 and "forgotten" not in run.stderr, run.stderr


def test_without_a_template_there_is_no_chat() -> None:
    assert "has no chat template" in one_line(chat(demo_pair_path(), "Hello\n"))


def test_lines_in_and_out(tmp_path: Path) -> None:
    requests = [{"id": 7, "prompt": "Once upon a time"}, {"prompt": "The dog", "note": "ü"}]
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    (tmp_path / "in.jsonl").write_text(lines)
    run = ovspec("generate", "-m", demo_pair_path(), "--jsonl", tmp_path / "in.jsonl", *OPTIONS)
    assert run.returncode == 0, run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert [
        {key: answer[key] for key in request} for answer, request in zip(answers, requests, strict=True)
    ] == requests
    piped = ovspec("generate", "-m", demo_pair_path(), "--jsonl", "-", *OPTIONS, input=lines)
    assert [json.loads(line)["text"] for line in piped.stdout.splitlines()] == [a["text"] for a in answers]
    alone = ovspec("generate", "-m", demo_pair_path(), "-p", "The dog", *OPTIONS)
    assert alone.stdout == answers[1]["text"] + "\n"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "holds no line"),
        ("{", "line 1 is no JSON"),
        ('{"prompt": "a"}\n{"text": "b"}\n', "line 2 holds no prompt"),
        ("[1]", "line 1 holds no prompt"),
    ],
)
def test_bad_lines_are_named(text: str, part: str) -> None:
    assert part in one_line(ovspec("generate", "-m", demo_pair_path(), "--jsonl", "-", input=text))


def test_shells_complete_commands_and_options() -> None:
    for shell in ("zsh", "fish"):
        run = ovspec("completion", shell)
        assert run.returncode == 0 and "_OVSPEC_COMPLETE" in run.stdout, run.stderr
    words = {"_OVSPEC_COMPLETE": "zsh_complete", "COMP_WORDS": "ovspec generate --ma", "COMP_CWORD": "2"}
    run = installed_ovspec(env={**os.environ, **words})
    assert "--max-new-tokens" in run.stdout and "--max-context" in run.stdout, run.stderr


def test_a_message_that_is_not_utf8_is_one_line(model: Path) -> None:
    assert "is not UTF-8" in one_line(ovspec("chat", "-m", model, *OPTIONS, input=b"\xff\xfe\n"))


def test_a_prompt_may_hold_line_separators(tmp_path: Path) -> None:
    lines = json.dumps({"prompt": "One day,\u2028a dog\u0085ran"}, ensure_ascii=False) + "\n"
    run = ovspec("generate", "-m", demo_pair_path(), "--jsonl", "-", *OPTIONS, input=lines)
    assert run.returncode == 0 and len(run.stdout.splitlines()) >= 1, run.stderr

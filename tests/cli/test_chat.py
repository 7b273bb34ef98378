"""`ovspec chat`, a system message, answers that end early, and prompts and answers as JSON lines."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import installed_ovspec, one_line, ovspec

from ovspec import LLMPipeline
from ovspec.cli.chat import CUT, Turns
from ovspec.cli.options.interrupts import Interrupts
from ovspec_models import demo_pair_path

TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
F32 = ("--property", "INFERENCE_PRECISION_HINT=f32", "--property", "KV_CACHE_PRECISION=f32")
OPTIONS = ("--max-new-tokens", "12", "--drafter", "none", *F32)


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
    assert run.returncode == 0 and run.stderr.count("the answer was cut after 12 tokens") == 3, run.stderr
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('System role not supported') }}", "System role not supported"),
        ("{% for m in %}{{ m }}", "Expected value expression at row 1, column 12"),
    ],
)
@pytest.mark.parametrize("command", ["chat", "generate"])
def test_what_the_template_refuses_is_one_line(
    command: str, template: str, words: str, model: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    run = ovspec(command, "-m", folder, "--system", "Be kind.", *OPTIONS, input="Hello")
    assert f"messages: the model's chat template refused them ({words}); change" in one_line(run)


def test_without_a_template_there_is_no_chat() -> None:
    assert "has no chat template" in one_line(chat(demo_pair_path(), "Hello\n"))


@pytest.mark.slow
def test_an_answer_that_was_cut_says_so_and_how_to_go_on(model: Path, tmp_path: Path) -> None:
    many, few = (
        ("-p", "dog " * 100, "--max-new-tokens", "64", "--ignore-eos"),
        ("-p", "dog", "--max-new-tokens", "12"),
    )
    base = ("generate", "-m", model, *F32, "--drafter", "none")
    told = "the answer was cut after 12 tokens; give more than --max-new-tokens 12"
    assert told in ovspec(*base, *few).stderr
    found = ovspec(*base, *few, "--json")
    assert told in found.stderr and json.loads(found.stdout)["finish_reason"] == "length"
    assert re.search(r"fills the model's 128 positions; give a shorter", ovspec(*base, *many).stderr)
    assert "fills --max-context 120" in ovspec(*base, *many, "--max-context", "120").stderr
    (tmp_path / "in.jsonl").write_text('{"prompt": "dog"}\n' * 2)
    run = ovspec(*base, "--jsonl", tmp_path / "in.jsonl", "--max-new-tokens", "3")
    assert "2 of 2 answers were cut" in run.stderr, run.stderr
    ended = ovspec(*base, "-p", "dog", "--stop-string", "e", "--json")
    assert json.loads(ended.stdout)["finish_reason"] == "stop" and "cut" not in ended.stderr


class Terminal:
    """A command at a terminal of its own; `text` is what it has printed."""

    def __init__(self, *words: str | Path) -> None:
        program = Path(sys.executable).with_name("ovspec")
        self.text = ""
        self._process, self._screen = pty.fork()
        if self._process == 0:
            os.execv(program, [str(program), *map(str, words)])
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while piece := os.read(self._screen, 4096):
                self.text += piece.decode(errors="replace")
        except OSError:  # the other end is closed
            return

    def press(self, keys: str) -> None:
        self.press_bytes(keys.encode())

    def press_bytes(self, keys: bytes) -> None:
        os.write(self._screen, keys)

    def wait_for(self, shown: Callable[[str], object]) -> None:
        until = time.monotonic() + 120
        while not shown(self.text):
            assert time.monotonic() < until, self.text
            time.sleep(0.02)

    def exit_code(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])


def test_a_message_that_is_refused_does_not_end_a_chat_at_a_terminal(model: Path) -> None:
    terminal = Terminal("chat", "-m", model, *OPTIONS, "--figures")
    terminal.wait_for(lambda text: "> " in text)
    terminal.press("Once upon a time\n")
    terminal.wait_for(lambda text: text.count("[12 tokens") == 1)
    terminal.press("dog " * 300 + "\n")
    terminal.wait_for(lambda text: "this message is longer than the 128 positions" in text)
    terminal.press_bytes(b"caf\xe9\n")
    terminal.wait_for(lambda text: "a message is not UTF-8" in text)
    terminal.press("The dog\n")
    terminal.wait_for(lambda text: text.count("[12 tokens") == 2)
    terminal.press("/exit\n")
    assert terminal.exit_code() == 0 and "is forgotten" not in terminal.text, terminal.text
    piped = ovspec("chat", "-m", model, *OPTIONS, input=b"caf\xe9\n")
    assert "a message is not UTF-8" in one_line(piped)


def letters(text: str) -> int:
    """Letters on the screen, without bars and what draws them."""
    return sum(map(str.isalpha, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|reading the prompt", "", text)))


def test_ctrl_c_ends_the_answer_and_not_the_chat(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    long = model.parent / "long"
    shutil.copytree(model, long)
    (long / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    chat = Terminal("chat", "-m", long, "--ignore-eos", "--max-new-tokens", "8000", "--drafter", "none")
    chat.wait_for(lambda text: text.rstrip().endswith(">"))
    assert "loading long" in chat.text and "Ctrl-C ends an answer" in chat.text
    chat.press("Once upon a time there was a dog\n")
    chat.wait_for(lambda text: letters(text.partition("a dog")[2]) > 100)
    assert "reading the prompt" in chat.text
    chat.press("\x03")
    chat.wait_for(lambda text: "what came of the answer stays" in text and text.rstrip().endswith(">"))
    before = letters(chat.text)
    chat.press("The cat\n")
    chat.wait_for(lambda text: letters(text) > before + 100)
    chat.press("\x03")
    chat.wait_for(lambda text: text.count("what came of the answer stays") == 2)
    chat.press("\x03")
    assert chat.exit_code() == 130
    assert "Traceback" not in chat.text and "error" not in chat.text, chat.text


def press_ctrl_c() -> None:
    """Do what Python does on SIGINT; `Terminal` sends the signal itself, to a process of its own.

    The signal may end a worker: OpenVINO's CPU plugin sets a stack for signals, and frees it with a core.
    """
    handler = signal.getsignal(signal.SIGINT)
    assert callable(handler)
    handler(signal.SIGINT, None)


class PressesCtrlC(io.StringIO):
    """Standard output of somebody who presses Ctrl-C when the first words come."""

    def write(self, text: str) -> int:
        if text and not self.getvalue():  # once
            press_ctrl_c()
        return super().write(text)


class InterruptedPipeline(LLMPipeline):
    """A pipeline whose user presses Ctrl-C before its prompt is read."""

    def generate(self, *arguments: Any, **named: Any) -> Any:
        press_ctrl_c()
        return super().generate(*arguments, **named)


def test_an_answer_that_ctrl_c_ended_stays_in_the_history(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_new_tokens": 60, "do_sample": False, "ignore_eos": True}
    turns = Turns(LLMPipeline(model, "CPU"), None, settings, drops=True)
    with Interrupts(), monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", PressesCtrlC())
        cut = turns.answer("Once upon a time there was a dog", interactive=True)
    assert cut is not None and cut.perf_metrics.get_num_generated_tokens() < 60
    assert turns.messages[-1] == {"role": "assistant", "content": f"{cut}{CUT}"}
    assert turns.answer("The cat") is not None and len(turns.messages) == 4
    turns = Turns(InterruptedPipeline(model, "CPU"), None, settings, drops=True)
    with Interrupts():
        assert turns.answer("Once upon a time", interactive=True) is None
    assert turns.messages == []


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
    assert run.returncode == 0, run.stderr
    [line] = run.stdout.splitlines()
    assert json.loads(line)["prompt"] == "One day,\u2028a dog\u0085ran"

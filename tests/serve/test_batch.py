"""`ovspec batch`: OpenAI's batch format, and a run that was killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from adapter_files import random_adapter
from commands import installed_ovspec, one_line, ovspec
from serve.conftest import F32, Served
from settings import F32_CACHE

from ovspec import Adapter, AdapterConfig, LLMPipeline
from ovspec.serve.batch_file import BatchEntry, BatchOutput

PROMPT = "Once upon a time, there was a little girl named Lily. She"


def line(name: str, body: dict[str, Any], url: str = "/v1/completions") -> str:
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": {"model": "demo", **body}})


def requests(count: int, tokens: int) -> list[str]:
    prompts = [PROMPT, "Tom had a big red ball. One day", "The dog ran to the park and"]
    options = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True}
    return [
        line(f"r{i}", {"prompt": f"{prompts[i % 3]}{' very' * (i % 5)}", **options}) for i in range(count)
    ]


def arguments(folder: Path, *more: str | Path) -> list[str]:
    options = ("-m", folder, "--served-model-name", "demo", "--drafter", "none", *F32, *more)
    return ["batch", *map(str, options)]


def answers(path: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len({one["custom_id"] for one in lines}) == len(lines)
    return {one["custom_id"]: one["response"] for one in lines}


def test_answers_are_those_of_the_server(
    served: Served, demo_ir: Path, template: Path, tmp_path: Path
) -> None:
    asked, written = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    chat = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 16}
    more = [
        line("chat", chat, "/v1/chat/completions"),
        line("stop", {"prompt": PROMPT, "temperature": 0, "max_tokens": 60, "stop": [" eat"]}),
        line("sampled", {"prompt": PROMPT, "seed": 3, "n": 2, "max_tokens": 16, "temperature": 1}),
        line("wrong", {"prompt": PROMPT, "temperature": 9}),
        line("path", {"input": "x"}, "/v1/embeddings"),
    ]
    asked.write_text("\n".join([*requests(4, 12), "", *more]), encoding="utf-8")
    run = ovspec(*arguments(demo_ir, asked, written, "--chat-template", template))
    assert run.returncode == 3, run.stderr
    assert "7 answered (none lossy), 2 refused; " in run.stderr.splitlines()[-1]
    found = answers(written)
    assert len(found) == 9
    assert found["wrong"]["status_code"] == 400 and found["path"]["status_code"] == 404
    assert found["wrong"]["body"]["error"]["param"] == "temperature"
    for text in asked.read_text(encoding="utf-8").splitlines():
        if not text or (entry := json.loads(text))["custom_id"] in ("wrong", "path"):
            continue
        _, expected = served.post(entry["url"], entry["body"])
        got = found[entry["custom_id"]]
        assert got["status_code"] == 200
        assert got["body"]["choices"] == expected["choices"] and got["body"]["usage"] == expected["usage"]


@pytest.mark.slow
def test_lines_name_adapters_as_their_model(demo_ir: Path, tmp_path: Path) -> None:
    """Beside lines for the model itself, and as a call with that adapter; another name is an error."""
    files = [random_adapter(tmp_path / f"{seed}.safetensors", demo_ir, 4, seed, 3.0) for seed in (1, 2)]
    asked, written = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 16, "ignore_eos": True}
    names = ("demo", "one", "two", "three")
    asked.write_text("\n".join(line(name, {**body, "model": name}) for name in names), encoding="utf-8")
    adapters = [f"--adapter={name}={file}" for name, file in zip(names[1:], files, strict=False)]
    run = installed_ovspec(*arguments(demo_ir, asked, written, *adapters))
    assert run.returncode == 3 and "3 answered (none lossy), 1 refused" in run.stderr
    found = answers(written)
    assert "this server has 'demo', 'one', 'two'" in found["three"]["body"]["error"]["message"]
    options = {"max_new_tokens": 16, "ignore_eos": True, "apply_chat_template": False}
    pipeline = LLMPipeline(demo_ir, "CPU", drafter="none", adapters=AdapterConfig(), **F32_CACHE)
    texts = []
    for name, config in zip(names, ((), *(Adapter(file) for file in files)), strict=False):
        assert found[name]["body"]["model"] == name
        texts.append(found[name]["body"]["choices"][0]["text"])
        assert texts[-1] == str(pipeline.generate(PROMPT, adapters=AdapterConfig(config), **options))
    assert len(set(texts)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--adapter", "one"), "--adapter one: expected NAME=FILE"),
        (
            ("--adapter", "one=/nowhere"),
            "/nowhere: No such file or directory; give the file",
        ),
        (("--adapter", "one={}", "--ray"), "a cluster has none; leave it or --ray out"),
        (("--adapter", "one={}", "--memory-limit", "1MB"), "reading it takes up to "),
        (("--adapter", "one={}", "--memory-limit", "40MB"), "adapters 0.0"),
    ],
)
def test_adapters_that_a_batch_refuses(
    demo_ir: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    """Before it loads, and without a file of answers."""
    file, asked = random_adapter(tmp_path / "a.safetensors", demo_ir), tmp_path / "in.jsonl"
    asked.write_text("\n".join(requests(1, 1)), encoding="utf-8")
    given = [option.format(file) for option in options]
    assert message in one_line(ovspec(*arguments(demo_ir, asked, tmp_path / "out.jsonl", *given)))
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was(demo_ir: Path, tmp_path: Path) -> None:
    asked, written, whole = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "whole.jsonl"))
    # The long one keeps the run from its end where this process gets little time.
    asked.write_text("\n".join([*requests(11, 40), requests(12, 700)[-1]]), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("ovspec")), *arguments(demo_ir, asked, written)]
    process = subprocess.Popen([*command, "--max-num-seqs", "2"], stderr=subprocess.DEVNULL)
    ends = time.monotonic() + 120
    while not (written.is_file() and written.read_bytes().count(b"\n") >= 3):
        assert process.poll() is None and time.monotonic() < ends
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = written.read_bytes()
    assert 3 <= before.count(b"\n") < 12
    kept = before[: before.rfind(b"\n") + 1]
    # The kill may also have come in the middle of a line.
    written.write_bytes(kept + b'{"id": "batch_req_x", "custom')
    run, count = ovspec(*arguments(demo_ir, asked, written)), len(kept.splitlines())
    assert run.returncode == 0 and f"{count} are answered already" in run.stderr
    assert written.read_bytes().startswith(kept)
    assert ovspec(*arguments(demo_ir, asked, whole)).returncode == 0
    texts = [{k: v["body"]["choices"] for k, v in answers(path).items()} for path in (written, whole)]
    assert texts[0] == texts[1] and len(texts[0]) == 12
    again = ovspec(*arguments(demo_ir, asked, written))
    assert again.returncode == 0 and "12 are answered already" in again.stderr


BAD = {
    "no file": (None, "can be read"),
    "empty": ("\n", "holds no request"),
    "no json": ("{", "line 1 is no JSON"),
    "no request": ('{"custom_id": 1}', "line 1 is no request"),
    "twice": ("\n".join(requests(1, 1) * 2), "line 2: custom_id 'r0' comes twice"),
    "method": (json.dumps({**json.loads(requests(1, 1)[0]), "method": "GET"}), "method='GET'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_line(demo_ir: Path, tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    if content is not None:
        (tmp_path / "in.jsonl").write_text(content, encoding="utf-8")
    assert message in one_line(ovspec(*arguments(demo_ir, tmp_path / "in.jsonl", tmp_path / "out.jsonl")))


def test_answers_of_another_batch_are_kept(demo_ir: Path, tmp_path: Path) -> None:
    asked, written = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    asked.write_text("\n".join(requests(2, 4)), encoding="utf-8")
    for content, message in (
        ('{"custom_id": "z", "response": {}}\n', "'z', which is not asked"),
        ("notes\n", "no answer of a batch"),
        ("[" * 100_000 + "\n", "no answer of a batch"),
        ('{"custom_id": ["r0"], "response": {}}\n', "no answer of a batch"),
        ("notes without an end", "last line is no answer of a batch"),
    ):
        written.write_text(content, encoding="utf-8")
        assert message in one_line(ovspec(*arguments(demo_ir, asked, written)))
        assert written.read_text(encoding="utf-8") == content


def test_an_answer_is_one_line_for_every_reader(tmp_path: Path) -> None:
    with BatchOutput(tmp_path / "out.jsonl", [BatchEntry("r0", "/v1/completions", {})]) as output:
        output.write("r0", 200, {"text": "a\u2028b\u2029c\x85d"})
    assert answers(tmp_path / "out.jsonl")["r0"]["body"] == {"text": "a\u2028b\u2029c\x85d"}


def test_a_file_that_only_grows_is_no_other_run(tmp_path: Path) -> None:
    """What a killed run left of its last line can't be cut off there."""
    written, entries = tmp_path / "out.jsonl", [BatchEntry("r0", "/v1/completions", {})]
    written.write_text('{"id": "batch_req_')
    if subprocess.run(["chattr", "+a", written], capture_output=True).returncode:
        pytest.skip("needs files that only grow")
    try:
        with pytest.raises(ValueError, match=r"out\.jsonl: Operation not permitted; give a file that can be"):
            BatchOutput(written, entries)
    finally:
        subprocess.run(["chattr", "-a", written], check=True)
    with BatchOutput(written, entries), pytest.raises(ValueError, match="another run writes it; wait for it"):
        BatchOutput(written, entries)

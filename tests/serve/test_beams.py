"""`use_beam_search`: the best beams over HTTP and in batches."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from commands import ovspec as command
from prompts import PROMPTS
from serve.conftest import Served
from serve.test_batch import answers, arguments, line

import ovspec

BODY: dict[str, Any] = {"model": "demo", "prompt": PROMPTS[0], "max_tokens": 20}
BEAMS: dict[str, Any] = {**BODY, "use_beam_search": True, "n": 3}


def answered(served: Served, **fields: Any) -> dict[str, Any]:
    status, answer = served.post("/v1/completions", {**BEAMS, **fields})
    assert status == 200, answer
    return answer


def texts(answer: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


@pytest.fixture(scope="module")
def want(make_pipeline: Callable[..., ovspec.LLMPipeline]) -> Callable[..., list[str]]:
    """The texts of the pipeline."""

    def generated(prompts: list[str], **options: Any) -> list[str]:
        given = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 20, **options}
        return list(make_pipeline().generate(prompts, **given).texts)

    return generated


def test_answers_are_the_beams_of_the_pipeline(served: Served, want: Callable[..., list[str]]) -> None:
    answer = answered(served)
    assert texts(answer) == want([PROMPTS[0]])
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 60
    assert answer["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    short = want([PROMPTS[0]], length_penalty=-2.0, stop_strings={"."})
    assert texts(answered(served, length_penalty=-2, stop=".")) == short


def test_several_prompts_and_the_best_of_beams(served: Served, want: Callable[..., list[str]]) -> None:
    prompts = [PROMPTS[0], PROMPTS[7]]
    answer = answered(served, prompt=prompts, n=2, best_of=3)
    assert texts(answer) == want(prompts, num_return_sequences=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]


def test_chats_beside_sampled_requests(served: Served) -> None:
    chat = {"messages": [{"role": "user", "content": PROMPTS[0]}], "use_beam_search": True, "n": 2}
    bodies = [
        ("/v1/chat/completions", {**chat, "max_tokens": 16}),
        ("/v1/completions", {**BODY, "temperature": 1, "seed": 4}),
        ("/v1/completions", BEAMS),
    ]

    def messages(path: str, body: dict[str, Any]) -> list[Any]:
        status, answer = served.post(path, body)
        assert status == 200, answer
        return [choice.get("message", choice.get("text")) for choice in answer["choices"]]

    alone = [messages(*one) for one in bodies]
    with ThreadPoolExecutor(9) as pool:
        assert list(pool.map(lambda one: messages(*one), bodies * 3)) == alone * 3
    assert [len(found) for found in alone] == [2, 1, 3]


def test_log_probabilities_of_beams_are_the_models(served: Served) -> None:
    found = answered(served, logprobs=1)["choices"]
    sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in found]
    assert sums == sorted(sums, reverse=True) and len(set(sums)) == 3  # all have 20 tokens
    prompt = PROMPTS[0] + found[1]["text"]
    read = served.post(
        "/v1/completions", {**BODY, "prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 0}
    )[1]["choices"][0]["logprobs"]["token_logprobs"]
    assert found[1]["logprobs"]["token_logprobs"] == pytest.approx(read[-20:], abs=1e-3)


def test_batches_know_beams(demo_ir: Path, tmp_path: Path, want: Callable[..., list[str]]) -> None:
    asked, written = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    fields = {key: value for key, value in BEAMS.items() if key != "model"}
    asked.write_text("\n".join([line("beams", fields), line("plain", {**BODY, "temperature": 0})]))
    run = command(*arguments(demo_ir, asked, written))
    assert run.returncode == 0, run.stderr
    found = answers(written)
    assert texts(found["beams"]["body"]) == want([PROMPTS[0]])
    assert len(texts(found["plain"]["body"])) == 1


@pytest.mark.parametrize(
    ("fields", "begin"),
    [
        ({"n": 1}, "use_beam_search"),
        ({"stream": True}, "use_beam_search"),
        ({"temperature": 0.7}, "temperature=0.7"),
        ({"best_of": 2}, "best_of=2"),
        ({"use_beam_search": False, "temperature": 1, "length_penalty": 2}, "length_penalty=2"),
        ({"length_penalty": 1000}, "length_penalty"),
        ({"repetition_penalty": 1.2}, "repetition_penalty=1.2"),
        ({"presence_penalty": 1}, "presence_penalty=1"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"num_assistant_tokens": 3}, "num_assistant_tokens=3"),
        ({"tree_depth": 2}, "tree_depth=2"),
        ({"n": 17}, "n"),
        ({"max_tokens": 0, "echo": True}, "max_tokens=0"),
    ],
)
def test_what_can_not_be_searched_is_refused(served: Served, fields: dict[str, Any], begin: str) -> None:
    status, answer = served.post("/v1/completions", {**BEAMS, **fields})
    assert status == 400, answer
    message = answer["error"]["message"]
    assert message.startswith(begin) and "\n" not in message
    assert answer["error"]["param"] == re.split("[=:]", begin)[0]

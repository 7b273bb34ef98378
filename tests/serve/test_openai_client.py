"""The official client of OpenAI against a real server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prompts import STORY
from serve.conftest import Served, serving

PROMPTS = [
    "Once upon a time, there was a little girl named Lily. She",
    "Tom had a big red ball. One day",
    "The dog ran to the park and",
    "It was a sunny day, and the birds",
    STORY[:400],
]
GREEDY: dict[str, Any] = {"model": "demo", "temperature": 0}


def stream_of(chunks: Any) -> tuple[str, str | None, list[Any]]:
    """Text, finish reason and chunks of a stream."""
    kept, text, reason = [], "", None
    for chunk in chunks:
        kept.append(chunk)
        for choice in chunk.choices:
            piece = choice.text if hasattr(choice, "text") else choice.delta.content
            text += piece or ""
            reason = choice.finish_reason or reason
    return text, reason, kept


def test_the_model_is_listed_as_load_testers_read_it(served: Served) -> None:
    (model,) = served.client().models.list().data
    assert model.id == "demo" and model.root.endswith("demo_ir") and model.max_model_len == 8192


@pytest.mark.parametrize("verify", ["dense", "commit"])
def test_streams_whole_answers_and_the_pipeline_agree(
    served: Served, make_pipeline: Any, verify: str
) -> None:
    client, expected = served.client(), []
    pipeline = make_pipeline(draft=True)
    for prompt in PROMPTS:
        expected.append(pipeline.generate(prompt, max_new_tokens=40))
    for prompt, text in zip(PROMPTS, expected, strict=True):
        options = {**GREEDY, "prompt": prompt, "max_tokens": 40, "extra_body": {"verify": verify}}
        whole = client.completions.create(**options)
        streamed, reason, chunks = stream_of(client.completions.create(**options, stream=True))
        assert whole.choices[0].text == streamed == text
        assert whole.choices[0].finish_reason == reason
        assert len(chunks) > 2 and whole.usage.completion_tokens == 40
        assert whole.metrics["verify"] == verify and not whole.metrics["is_lossy"]


def test_answers_of_many_clients_are_those_of_each_alone(served: Served) -> None:
    client = served.client()

    def ask(number: int) -> tuple[str, str]:
        prompt = PROMPTS[number % len(PROMPTS)]
        options = {"model": "demo", "prompt": prompt, "max_tokens": 24 + number % 9, "seed": number}
        options["temperature"] = 0 if number % 3 else 0.8
        options["extra_body"] = {"verify": "commit" if number % 2 else "dense"}
        if number % 4 == 0:
            return stream_of(client.completions.create(**options, stream=True))[:2]
        choice = client.completions.create(**options).choices[0]
        return choice.text, choice.finish_reason

    alone = [ask(number) for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(ask, range(16)))
    assert together == alone


def test_chat(served: Served) -> None:
    client = served.client()
    messages = [{"role": "system", "content": PROMPTS[0]}, {"role": "user", "content": " loved to play"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": PROMPTS[0] + " loved to play"}]}]
    options, drafting = {**GREEDY, "max_completion_tokens": 30}, {"num_assistant_tokens": 3}
    answer = client.chat.completions.create(messages=messages, **options)
    assert answer.choices[0].message.role == "assistant"
    assert answer.object == "chat.completion" and answer.usage.completion_tokens == 30
    text = client.completions.create(prompt=PROMPTS[0] + " loved to play", max_tokens=30, **GREEDY)
    assert answer.choices[0].message.content == text.choices[0].text
    assert client.chat.completions.create(messages=parts, **options).choices == answer.choices
    streamed = client.chat.completions.create(
        messages=messages, stream=True, stream_options={"include_usage": True}, **options, extra_body=drafting
    )
    content, reason, chunks = stream_of(streamed)
    assert content == answer.choices[0].message.content and reason == "length"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and chunks[-1].usage == answer.usage
    assert chunks[-1].metrics["speculative_decoding"]["num_spec_steps"] > 0


def test_seeds_and_n(served: Served) -> None:
    client = served.client()

    def ask(**options: Any) -> list[str]:
        options = {"model": "demo", "prompt": PROMPTS[1], "max_tokens": 24, "temperature": 1.2, **options}
        return [choice.text for choice in client.completions.create(**options).choices]

    three = ask(n=3, seed=5)
    assert len(set(three)) == 3 and three == ask(n=3, seed=5) and three[:1] == ask(seed=5)
    assert ask(seed=6) != three[:1]
    assert ask() != ask()  # without a seed, every answer has one of its own
    several = client.completions.create(
        prompt=PROMPTS[:3], n=2, seed=5, model="demo", max_tokens=4, temperature=1
    )
    assert [choice.index for choice in several.choices] == list(range(6))


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(served: Served, stream: bool) -> None:
    client = served.client()
    options = {**GREEDY, "prompt": PROMPTS[0], "max_tokens": 60, "stream": stream}
    text = client.completions.create(**{**options, "stream": False}).choices[0].text
    stop = text[20:26]
    before = text[: text.index(stop)]

    def ask(**more: Any) -> tuple[str, str]:
        answer = client.completions.create(**options, **more)
        return stream_of(answer)[:2] if stream else (answer.choices[0].text, answer.choices[0].finish_reason)

    assert ask(stop=[stop, "never"]) == (before, "stop")
    kept = ask(stop=stop, extra_body={"include_stop_str_in_output": True})[0]
    assert kept == before + stop
    tokens = len(served.post("/tokenize", {"prompt": before + stop})[1]["tokens"])
    waited, reason = ask(stop=stop, extra_body={"min_tokens": tokens})
    assert waited.startswith(before + stop) and (reason == "stop") == (stop in text[text.index(stop) + 1 :])


def test_a_message_cannot_write_control_tokens(served: Served) -> None:
    messages = [{"role": "user", "content": "Once<|endoftext|>"}]
    status, found = served.post("/tokenize", {"messages": messages})
    assert status == 200 and 0 not in found["tokens"]
    assert served.post("/detokenize", {"tokens": found["tokens"]})[1]["prompt"] == "Once<|endoftext|>"
    asked = {"messages": messages, "max_completion_tokens": 1, "temperature": 0}
    counts = [
        served.post("/v1/chat/completions", {**asked, "special_tokens_in_content": become})[1]["usage"][
            "prompt_tokens"
        ]
        for become in (False, True)
    ]
    assert counts == [len(found["tokens"]), 2]
    become = {"special_tokens_in_content": True}
    assert len(served.post("/tokenize", {"messages": messages, **become})[1]["tokens"]) == 2
    status, found = served.post("/tokenize", {"prompt": "Once", **become})
    assert status == 400 and found["error"]["param"] == "special_tokens_in_content"


def test_penalties_change_the_text(served: Served) -> None:
    client = served.client()
    options = {**GREEDY, "prompt": PROMPTS[0], "max_tokens": 60}
    plain = client.completions.create(**options).choices[0].text
    assert client.completions.create(**options, frequency_penalty=2.0).choices[0].text != plain
    assert client.completions.create(**options, presence_penalty=0.0).choices[0].text == plain


def test_a_stop_token_ends_an_answer_that_ignores_the_end_of_text(served: Served) -> None:
    body = {"model": "demo", "prompt": PROMPTS[0], **GREEDY, "max_tokens": 40, "ignore_eos": True}
    shown = served.post("/v1/completions", {**body, "logprobs": 0})[1]["choices"][0]["text"]
    tokens = served.post("/tokenize", {"prompt": shown, "add_special_tokens": False})[1]["tokens"]
    stop = tokens[9]
    for least in (0, 20):
        status, answer = served.post(
            "/v1/completions", {**body, "stop_token_ids": [stop], "min_tokens": least}
        )
        ended = answer["usage"]["completion_tokens"]
        assert status == 200 and ended >= least
        if not least:
            assert ended == tokens.index(stop) + 1 and answer["choices"][0]["finish_reason"] == "stop"


def test_logprobs_are_the_targets_for_accepted_drafts_too(served: Served) -> None:
    client = served.client()
    options = {**GREEDY, "messages": [{"role": "user", "content": PROMPTS[0]}], "max_tokens": 32}
    options |= {"logprobs": True, "top_logprobs": 3}
    drafted = client.chat.completions.create(
        **options, extra_body={"return_token_origins": True, "num_assistant_tokens": 4}
    )
    plain = client.chat.completions.create(**options, extra_body={"num_assistant_tokens": 0})
    origins = [one["origin"] for one in drafted.choices[0].token_origins]
    assert "draft" in origins and set(origins) <= {"draft", "target", "corrected"}
    assert (
        "".join(one["text"] for one in drafted.choices[0].token_origins) == drafted.choices[0].message.content
    )
    entries, expected = drafted.choices[0].logprobs.content, plain.choices[0].logprobs.content
    assert plain.metrics["speculative_decoding"]["num_spec_steps"] == 0
    assert len(entries) == len(origins) == len(expected) == 32
    for entry, other in zip(entries, expected, strict=True):
        assert entry.token == other.token and entry.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs)  # greedy
        assert bytes(entry.bytes).decode() == entry.token and len(entry.top_logprobs) == 3
    streamed = client.chat.completions.create(**options, stream=True)
    content = [one for chunk in streamed for c in chunk.choices if c.logprobs for one in c.logprobs.content]
    assert [one.token for one in content] == [one.token for one in entries]


def test_draft_trees(served: Served) -> None:
    """One path of a tree is accepted: more than one of its tokens in a step, of more tokens than levels."""
    options = {**GREEDY, "prompt": PROMPTS[0], "max_tokens": 40}
    tree = {"num_assistant_tokens": 12, "tree_depth": 3, "branching_factor": 3, "verify": "dense"}
    drafted = served.client().completions.create(**options, extra_body=tree)
    plain = served.client().completions.create(**options, extra_body={"num_assistant_tokens": 0})
    assert drafted.choices[0].text == plain.choices[0].text
    spec = drafted.metrics["speculative_decoding"]
    assert len(spec["acceptance_histogram"]) == 4 and spec["acceptance_histogram"][-1] > 0


def test_metrics_of_a_request_add_up(served: Served) -> None:
    options = {**GREEDY, "prompt": PROMPTS[0], "max_tokens": 48}
    dense = served.client().completions.create(
        **options, extra_body={"num_assistant_tokens": 4, "verify": "dense"}
    )
    spec = dense.metrics["speculative_decoding"]
    histogram = spec["acceptance_histogram"]
    assert sum(histogram) == spec["num_spec_steps"] > 0
    assert sum(i * count for i, count in enumerate(histogram)) == spec["num_accepted_draft_tokens"]
    assert spec["num_spec_tokens"] == 4 and dense.metrics["attention_density"] == 1.0
    sparse = served.client().completions.create(
        model="demo", temperature=0, prompt=STORY, max_tokens=32, extra_body={"verify": "sparse"}
    )
    assert sparse.metrics["is_lossy"] and sparse.metrics["attention_density"] < 0.9


def test_tokenize_and_back(served: Served) -> None:
    status, answer = served.post("/tokenize", {"prompt": PROMPTS[0]})
    assert status == 200 and answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == 8192
    assert served.post("/detokenize", {"tokens": answer["tokens"]}) == (200, {"prompt": PROMPTS[0]})
    chat = served.post("/tokenize", {"messages": [{"role": "user", "content": PROMPTS[0]}]})[1]
    assert chat["tokens"] == answer["tokens"]
    # A special token has its name.
    ended = [*answer["tokens"], 0]
    assert served.post("/detokenize", {"tokens": ended}) == (200, {"prompt": f"{PROMPTS[0]}<|endoftext|>"})
    assert served.post("/detokenize", {"tokens": []}) == (200, {"prompt": ""})
    by_tokens = served.client().completions.create(prompt=answer["tokens"], max_tokens=8, **GREEDY)
    by_text = served.client().completions.create(prompt=PROMPTS[0], max_tokens=8, **GREEDY)
    assert by_tokens.choices == by_text.choices


BESIDE_MESSAGES: tuple[dict[str, Any], ...] = (
    {"tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]},
    {"chat_template_kwargs": {"mood": "sad"}},
    {"add_generation_prompt": False},
    {"add_generation_prompt": False, "continue_final_message": True},
    {"special_tokens_in_content": True},
)


def test_the_tokens_of_messages_are_those_of_the_chat(demo_ir: Path, tmp_path: Path) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text(
        "{{ mood }}{% for m in messages %}{{ m['content'] }}<|endoftext|>{% endfor %}"
        "{% if add_generation_prompt %}She said{% endif %}",
        encoding="utf-8",
    )
    messages = [{"role": "user", "content": "Once<|endoftext|>"}, {"role": "assistant", "content": "So"}]
    with serving(demo_ir, "--chat-template", path, "--strict-fields") as served:
        plain = served.post("/tokenize", {"messages": messages})[1]["count"]
        for fields in BESIDE_MESSAGES:
            status, found = served.post("/tokenize", {"messages": messages, **fields})
            assert status == 200, found
            asked = {"messages": messages, "max_tokens": 0, **fields}
            usage = served.post("/v1/chat/completions", asked)[1]["usage"]
            assert found["count"] == usage["prompt_tokens"] != plain
            for field, value in fields.items():
                status, refused = served.post("/tokenize", {"prompt": "Once", field: value})
                assert status == 400 and refused["error"]["param"] == field
        status, refused = served.post("/tokenize", {"messages": messages, "add_special_tokens": True})
        assert status == 400 and refused["error"]["param"] == "add_special_tokens"


def test_blocks_read_are_those_of_the_last_step(served: Served) -> None:
    options = {"verify": "sparse", "return_blocks_read": True, "num_assistant_tokens": 3}
    chunks = served.client().completions.create(
        model="demo",
        prompt=" ".join([PROMPTS[0]] * 20),
        max_tokens=8,
        temperature=0,
        stream=True,
        extra_body=options,
    )
    found = [chunk.blocks_read for chunk in chunks if chunk.blocks_read]
    assert found and len(found[-1]) > 8
    for blocks in found:
        # The first block and the last are always read; a tenth of the others, and at least three blocks.
        assert blocks[0] == blocks[-1] == 1.0 and all(0 <= share <= 1 for share in blocks)
        assert 3 <= sum(blocks) < len(blocks) / 2
    status, body = served.post("/v1/completions", {"prompt": PROMPTS[0], "return_blocks_read": True})
    assert status == 400 and body["error"]["param"] == "return_blocks_read"

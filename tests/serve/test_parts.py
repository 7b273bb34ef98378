"""Parts of the server that need no process: token texts, joined outputs, choices, counts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import openvino_genai
import pytest
from openvino_genai import GenerationConfig, GenerationFinishReason

import ovspec
from ovspec.engine.requests.request import Request, RequestMetrics, RequestOutput, TokenLogprobs
from ovspec.errors import InvalidValueError, NoRoomError
from ovspec.generation.generation_config import resolve
from ovspec.generation.token_text import TokenText
from ovspec.sampling.constraint import GrammarError
from ovspec.serve.answering import refusal
from ovspec.serve.counts import AnswerClock, Counts
from ovspec.serve.door import Door
from ovspec.serve.output.choice import Choice, Delta
from ovspec.serve.output.message_parser import MessageParser, MessageStream
from ovspec.serve.output.objects import ChatObjects, CompletionObjects, metrics_of
from ovspec.serve.requests.api_error import ApiError
from ovspec.serve.requests.bodies import CompletionBody
from ovspec.serve.server_limits import Admission, ServerLimits
from ovspec.serve.stream import Mailbox, OutputStream, joined
from ovspec_models import demo_pair_path

TOKENIZER = openvino_genai.Tokenizer(str(demo_pair_path()))
TEXT = TokenText(TOKENIZER)


def test_long_bodies_leave_time_to_short_ones_and_to_answers() -> None:
    """Work of a long body is followed by a rest of 19 times that while answers are in work."""

    def work(seconds: float) -> float:
        ends = time.thread_time() + seconds
        while time.thread_time() < ends:
            continue
        return time.monotonic()

    async def ask(busy: bool) -> list[float]:
        door = Door(lambda: busy)
        long = [door.run(2**20, lambda: work(0.03)) for _ in range(2)]
        short = door.run(100, lambda: work(0.0))
        *ended, quick = await asyncio.gather(*long, short)
        return [ended[1] - ended[0], quick - ended[0]]

    rest, quick = asyncio.run(ask(busy=True))
    assert rest > 0.55 and quick < 0.3
    assert asyncio.run(ask(busy=False))[0] < 0.5


@pytest.mark.parametrize("kind", [{"has_grammar": True}, {"has_pictures": True}])
def test_who_has_no_grammar_and_no_pictures_waits_for_none(kind: dict[str, bool]) -> None:
    async def ask() -> list[int]:
        door, ended = Door(lambda: True), list[int]()
        slow = door.run(100, lambda: (time.sleep(0.1), ended.append(0)), **kind)
        await asyncio.gather(slow, door.run(100, lambda: ended.append(1)))
        return ended

    assert asyncio.run(ask()) == [1, 0]


def test_a_door_takes_so_many_and_no_more() -> None:
    async def ask() -> list[object]:
        door = Door(lambda: False)
        asked = [door.run(2**20, lambda: time.sleep(0.01)) for _ in range(9)]
        return list(await asyncio.gather(*asked, return_exceptions=True))

    *taken, refused = asyncio.run(ask())
    assert taken == [None] * 8 and isinstance(refused, ApiError) and refused.status == 429


class NoBytes:
    """A tokenizer whose text is not the bytes of its vocabulary, as with SentencePiece."""

    def get_vocab(self) -> dict[bytes, int]:
        return {"▁the".encode(): 0, b"<s>": 1}

    def decode(self, tokens: list[object], skip_special_tokens: bool = True) -> object:
        rows = tokens if tokens and isinstance(tokens[0], list) else [tokens]
        texts = ["".join("the" if token == 0 else "" for token in row) for row in rows]
        return texts if rows is tokens else texts[0]


def test_other_vocabularies_are_left_to_the_tokenizer() -> None:
    text = TokenText(NoBytes())
    assert text._bytes is None and text.decode([0, 0]) == "thethe"
    assert text.pieces([], [0]) == [("the", b"the")]


def output(
    tokens: list[int], ends: bool = False, logprobs: Sequence[TokenLogprobs] = (), **counts: object
) -> RequestOutput:
    reason = GenerationFinishReason.LENGTH if ends else GenerationFinishReason.NONE
    writers = ["target"] * len(tokens)
    return RequestOutput("r", tokens, writers, list(logprobs), reason, RequestMetrics(**counts))


@pytest.mark.parametrize("token_by_token", [False, True])
def test_a_choice_ends_at_its_stop_string(token_by_token: bool) -> None:
    tokens = TOKENIZER.encode("She had a cat and a dog and").input_ids.data.reshape(-1).tolist()
    choice = Choice(TEXT, (" and",), token_by_token=token_by_token)
    first = choice.add(output(tokens[:2]))
    rest = choice.add(output(tokens[2:]))
    assert first.text + rest.text == choice.text == "She had a cat" and rest.finish_reason == "stop"
    assert choice.num_tokens == 5 == len(first.tokens + rest.tokens)
    assert choice.add(output([5, 6], ends=True)).tokens == []
    if token_by_token:
        assert "".join(piece for piece, _ in first.pieces + rest.pieces) == "She had a cat"


def encoded(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).input_ids.data.reshape(-1).tolist()


@pytest.mark.parametrize("steps", [1, 3, 100])
def test_log_probabilities_have_their_place_in_the_text(steps: int) -> None:
    tokens = encoded("a 🙂 is not a bird")
    named = [TokenLogprobs(-1.0, ((token, -1.0), (7, -2.0))) for token in tokens]
    choice, whole = Choice(TEXT, logprobs=2), Delta()
    for at in range(0, len(tokens), steps):
        part = slice(at, at + steps)
        delta = choice.add(output(tokens[part], at + steps >= len(tokens), named[part]))
        whole.extend(delta)
    assert len(whole.logprobs) == len(tokens) and choice.text == "a 🙂 is not a bird"
    found = CompletionObjects("m", 2).whole([choice], [whole], {}, {})["choices"][0]["logprobs"]
    for token, name, offset in zip(tokens, found["tokens"], found["text_offset"], strict=True):
        if name.startswith("bytes:"):
            assert offset in (1, 2) and TEXT.decode([token]).endswith("�")
        else:
            assert choice.text.startswith(name, offset) and name == TEXT.decode([token])
    entries = ChatObjects("m", 2, lambda: MessageStream(MessageParser({}, False, False))).whole(
        [choice], [whole], {}, {}
    )["choices"][0]["logprobs"]["content"]
    assert bytes(value for entry in entries for value in entry["bytes"]).decode() == choice.text


def test_tokens_of_one_name_keep_their_log_probabilities() -> None:
    """Two tokens of the demo's vocabulary that add the same text."""
    top = ((5, -0.5), (5, -1.0), (6, -2.0))
    choice = Choice(TEXT, logprobs=3)
    delta = choice.add(output([5], True, [TokenLogprobs(-0.5, top)]))
    found = CompletionObjects("m", 3).chunk(0, delta)[0]["choices"][0]["logprobs"]["top_logprobs"][0]
    assert found == {TEXT.decode([5]): -0.5, "token_id:5": -1.0, TEXT.decode([6]): -2.0}


def test_a_completions_token_is_among_those_it_might_have_been() -> None:
    """As of OpenAI: one more than asked for, where it is none of the most probable."""
    top = ((5, -0.5), (6, -1.0))
    for token, logprob in ((9, -3.0), (6, -1.0)):
        choice = Choice(TEXT, logprobs=2)
        delta = choice.add(output([token], True, [TokenLogprobs(logprob, top)]))
        found = CompletionObjects("m", 2).chunk(0, delta)[0]["choices"][0]["logprobs"]["top_logprobs"][0]
        assert found == {TEXT.decode([5]): -0.5, TEXT.decode([6]): -1.0, TEXT.decode([token]): logprob}


def test_stop_strings_count_from_min_tokens_on() -> None:
    tokens = encoded("She had a cat and a dog and a bird and")
    choice = Choice(TEXT, (" and",), min_tokens=5)
    assert choice.add(output(tokens)).text == "She had a cat and a dog" and choice.finish_reason == "stop"


def test_a_kept_stop_string_ends_the_text() -> None:
    choice = Choice(TEXT, (" a c",), include_stop_string=True)
    assert choice.add(output(encoded("She had a cat and"))).text == choice.text == "She had a c"
    assert choice.num_tokens == 4


def test_a_reader_that_is_late_gets_one_output() -> None:
    first, second = output([1, 2], num_drafts=1), output([3], ends=True, num_drafts=2)
    whole = joined(first, second)
    assert whole.token_ids == [1, 2, 3] and len(whole.writers) == 3 and whole.finished
    assert whole.metrics.num_drafts == 2 and first.token_ids == [1, 2]

    async def run() -> None:
        ready: asyncio.Queue[OutputStream | Exception] = asyncio.Queue()
        counts, admission = Counts("m", {}), Admission(ServerLimits())
        (slot,) = admission.admit(1)
        # It came ten seconds ago, and its body was read since.
        asked = Request(
            "r",
            [1, 2, 3],
            resolve(GenerationConfig(max_new_tokens=4), (), False),
            arrival_time=time.perf_counter() - 10,
        )
        stream = OutputStream(0, ready, AnswerClock(counts, asked), slot)
        mailbox = Mailbox(asyncio.get_running_loop())
        for one in (output([1, 2]), output([3]), output([4], ends=True)):
            mailbox.post(stream, one)
        assert (await ready.get()) is stream and ready.empty()
        assert stream.take().token_ids == [1, 2, 3, 4] and admission.in_work == 0
        assert b'vllm:generation_tokens_total{model_name="m"} 4.0' in counts.text()
        assert b'vllm:time_to_first_token_seconds_bucket{le="10.0",model_name="m"} 0.0' in counts.text()

    asyncio.run(run())


def test_prompts_without_an_answer_and_all_beams_are_counted() -> None:
    counts = Counts("m", {})
    settings = resolve(GenerationConfig(max_new_tokens=4), (), False)
    beams = output([1, 2], ends=True)
    beams.beams = [output([1, 2], ends=True), output([3, 4, 5], ends=True)]
    ends = (output([], ends=True), beams, RequestOutput("r", error=RuntimeError("never read")))
    for number, last in enumerate(ends):
        clock = AnswerClock(counts, Request(str(number), [1, 2, 3], settings))
        clock.output(last)
        clock.end("length")
    text = counts.text().decode()
    for name, count in (("prompt_tokens", 6), ("prefix_cache_queries", 6), ("generation_tokens", 5)):
        assert f'vllm:{name}_total{{model_name="m"}} {count}.0' in text, name
    assert 'vllm:time_to_first_token_seconds_count{model_name="m"} 1.0' in text


def test_admission_counts_answers() -> None:
    admission = Admission(ServerLimits(max_num_seqs=2, max_queued=1))
    slots = admission.admit(2)
    with pytest.raises(ApiError) as many:
        admission.admit(2)
    assert many.value.status == 429 and many.value.retry_after == 1
    slots[0].free()
    slots[0].free()
    assert admission.in_work == 1 and len(admission.admit(2)) == 2
    with pytest.raises(ApiError) as never:
        admission.admit(4)
    assert never.value.status == 400


def test_histogram_of_accepted_tokens() -> None:
    one = RequestMetrics(4, 12, 5, (3, 2), 100.0, 200.0)
    other = RequestMetrics(1, 3, 0, (0,), 50.0, 50.0, is_lossy=True)
    found = metrics_of([one, other], "sparse", 3)
    spec = found["speculative_decoding"]
    assert spec["acceptance_histogram"] == [2, 1, 2] and spec["num_spec_steps"] == 5
    assert spec["mean_acceptance_length"] == 2.0 and spec["draft_acceptance_rate"] == pytest.approx(1 / 3)
    assert found["attention_density"] == 0.75 and found["is_lossy"]


@pytest.mark.parametrize("wrong", ['{"prompt": [%s]}', '{"prompt": "a", %s}'])
def test_one_fault_of_many_is_collected(wrong: str) -> None:
    """A body of many faults must not take many times its own memory."""
    many = ",".join(["-1"] * 100_000 if "[" in wrong else [f'"f{number}": 1' for number in range(100_000)])
    body = (wrong % many).encode()
    tracemalloc.start()
    with pytest.raises(ApiError):
        CompletionBody.parse(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * len(body)


def without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in an environment that lacks a module."""
    hidden = f"import sys; sys.modules[{module!r}] = None; sys.argv[0] = 'ovspec'"
    command = [sys.executable, "-c", f"{hidden}; import ovspec.cli; ovspec.cli.main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("module", "extra", "arguments"),
    [
        ("starlette", "serve", ["serve", "-m", "x"]),
        ("pydantic", "serve", ["batch", "a", "b", "-m", "x"]),
        ("lm_eval", "eval", ["eval", "lm", "-m", "x", "--tasks", "t"]),
    ],
)
def test_a_missing_extra_is_named_in_one_line(module: str, extra: str, arguments: list[str]) -> None:
    run = without(module, *arguments)
    assert run.returncode == 2 and run.stderr.count("\n") == 1
    assert f"pip install 'ovspec[{extra}]'" in run.stderr


def test_help_needs_no_extra() -> None:
    run = without("starlette", "serve", "--help")
    assert run.returncode == 0 and "--port" in run.stdout


def test_a_prompt_that_the_cache_has_no_room_for_is_the_clients() -> None:
    found = refusal(NoRoomError("the prompt has 64 tokens"))
    assert (found.status, found.code) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("error", "message", "param"),
    [
        ("tree_depth=2: drafter 'auto' can't draft trees", "tree_depth=2: drafter", "tree_depth"),
        ("num_return_sequences=3: 1 answers were found", "n=3: 1 answers were found", "n"),
        ("response_format.schema: too many states", "response_format.schema: too", "response_format"),
        ("the KV cache is full", "the KV cache is full", None),
    ],
)
def test_what_the_engine_refuses_names_the_clients_field(error: str, message: str, param: str | None) -> None:
    found = refusal(InvalidValueError(error))
    assert found.status == 400 and found.message.startswith(message) and found.param == param


def test_a_grammar_that_takes_too_long_is_the_clients() -> None:
    found = refusal(GrammarError("the grammar can't be followed: too many states"))
    assert found.status == 400 and found.message.startswith("the grammar can't be followed: ")


@pytest.mark.parametrize("max_context", [64, 256])
def test_a_cache_smaller_than_a_pass_warms_up(demo_ir: Path, max_context: int) -> None:
    pipeline = ovspec.LLMPipeline(demo_ir, "CPU", max_context=max_context)
    assert pipeline.bound_cache(max_num_seqs=1) < 512
    pipeline.engine.engine.warm_up()
    assert len(pipeline.generate(pipeline.get_tokenizer().encode("Once"), max_new_tokens=40).tokens[0]) > 1

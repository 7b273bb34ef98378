"""Faults inside the server: whoever is not at fault is answered, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openvino_genai import GenerationConfig, GenerationFinishReason
from settings import F32

import ovspec
from ovspec.engine.requests.request import Request, RequestMetrics, RequestOutput
from ovspec.generation.generation_config import resolve
from ovspec.generation.token_text import TokenText
from ovspec.passes.tables import Rows
from ovspec.serve.answering import Answering
from ovspec.serve.app import Server
from ovspec.serve.backend import in_this_process
from ovspec.serve.batch import BatchModel
from ovspec.serve.batch_file import BatchEntry
from ovspec.serve.counts import AnswerClock, Counts
from ovspec.serve.output.choice import Choice
from ovspec.serve.requests.api_error import ApiError
from ovspec.serve.served_model import ServedModel
from ovspec.serve.server_limits import Admission, ServerLimits
from ovspec.serve.stream import Mailbox, OutputStream

POISON = 777  # the first token of the prompts whose logits become no numbers
BODY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
PROMPTS = [[5, 6, 7], [POISON, 6, 7], [8, 9, 10, 11], [20, 21]]


@pytest.fixture
def pipeline(demo_ir: Path) -> ovspec.LLMPipeline:
    return ovspec.LLMPipeline(demo_ir, "CPU", drafter="prompt_lookup", **F32)


@pytest.fixture
def spoils(pipeline: ovspec.LLMPipeline, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make the logits of such prompts no numbers, so many times."""

    def spoil(times: int) -> None:
        forward, left = pipeline.runner.forward, [times]

        def spoiling(batch: Sequence[Rows]) -> Any:
            result, begin = forward(batch), 0
            for rows in batch:
                if left[0] and rows.sampled and rows.tokens[0] == POISON:
                    result.logits[begin] = np.nan
                    left[0] -= 1
                begin += rows.sampled
            return result

        monkeypatch.setattr(pipeline.runner, "forward", spoiling)

    return spoil


def text(pipeline: ovspec.LLMPipeline, prompt: list[int]) -> str:
    request = Request("alone", prompt, pipeline.settings(max_new_tokens=12, ignore_eos=True, do_sample=False))
    tokens = [token for output in pipeline.engine.run([request]) for token in output.token_ids]
    return str(pipeline.get_tokenizer().decode(tokens))


def test_a_fault_of_one_answer_is_no_others(
    pipeline: ovspec.LLMPipeline, demo_ir: Path, spoils: Callable[[int], None]
) -> None:
    want = [text(pipeline, prompt) for prompt in PROMPTS]
    spoils(10**6)

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            asked = (client.post("/v1/completions", json={**BODY, "prompt": prompt}) for prompt in PROMPTS)
            return await asyncio.gather(*asked)

    with in_this_process(lambda: pipeline, max_num_seqs=4) as backend:
        server = Server(ServedModel(backend.requests, demo_ir, "demo"), backend, ServerLimits())
        app = server.app()
        found = asyncio.run(ask())
        assert [one.status_code for one in found] == [200, 500, 200, 200]
        assert found[1].json()["error"]["code"] == "engine_error"
        texts = [one.json()["choices"][0]["text"] for one in found if one.status_code == 200]
        assert texts == [want[0], want[2], want[3]]
        assert server._answerer.admission.in_work == 0 and pipeline.engine.is_idle


@pytest.mark.parametrize("times", [1, 10**6])
def test_a_line_that_fails_is_tried_again_and_left(
    pipeline: ovspec.LLMPipeline, demo_ir: Path, spoils: Callable[[int], None], times: int
) -> None:
    want = [text(pipeline, prompt) for prompt in PROMPTS]
    spoils(times)
    model = BatchModel(lambda: pipeline, demo_ir, "demo", None, 4)
    entries = [
        BatchEntry(str(number), "/v1/completions", {**BODY, "prompt": prompt})
        for number, prompt in enumerate(PROMPTS)
    ]
    written: dict[str, tuple[int, dict[str, Any]]] = {}
    tried = model.answer(entries, lambda name, status, body: written.update({name: (status, body)}))
    model.close()
    assert tried == 1 and {status for status, _ in written.values()} == {200}
    assert set(written) == {"0", "2", "3"} | ({"1"} if times == 1 else set())
    for name, (_, body) in written.items():
        assert body["choices"][0]["text"] == want[int(name)]


def test_a_line_that_the_cache_has_no_room_for_ends_with_it(
    pipeline: ovspec.LLMPipeline, demo_ir: Path
) -> None:
    """As at the model's last position; to try it again would end as before."""
    pipeline.runner.limit_cache(4 * pipeline.runner.cache.block_bytes, 0)
    model = BatchModel(lambda: pipeline, demo_ir, "demo", None, 4)
    entries = [
        BatchEntry(str(tokens), "/v1/completions", {**BODY, "prompt": [5, 6], "max_tokens": tokens})
        for tokens in (400, 12)
    ]
    written: dict[str, tuple[int, dict[str, Any]]] = {}
    tried = model.answer(entries, lambda name, status, body: written.update({name: (status, body)}))
    model.close()
    assert tried == 0 and {status for status, _ in written.values()} == {200}
    assert written["400"][1]["choices"][0]["finish_reason"] == "length"
    assert written["400"][1]["usage"]["completion_tokens"] == 4 * 32 - 2


def request(name: str) -> Request:
    return Request(name, [1, 2], resolve(GenerationConfig(max_new_tokens=4), (), False))


def test_every_output_is_delivered_whatever_it_counts() -> None:
    """One says fewer drafts than those before it, as after a fault; another breaks its counter."""

    async def run() -> None:
        counts, admission, loop = Counts("m", {}), Admission(ServerLimits()), asyncio.get_running_loop()
        ready: asyncio.Queue[OutputStream | Exception] = asyncio.Queue()
        slots, mailbox = admission.admit(3), Mailbox(loop)
        streams = [
            OutputStream(index, ready, AnswerClock(counts, request(str(index))), slot)
            for index, slot in enumerate(slots)
        ]
        metrics = RequestMetrics(3, 9, 5, (3, 2))
        for stream in streams:
            mailbox.post(stream, RequestOutput("r", [1], ["target"], metrics=metrics))
        mailbox.post(streams[0], RequestOutput("r", error=RuntimeError("no memory")))
        wrong = RequestMetrics(num_drafts=4, num_accepted_tokens_per_pos=None)  # type: ignore[arg-type]
        mailbox.post(streams[1], RequestOutput("r", finish_reason=GenerationFinishReason.STOP, metrics=wrong))
        mailbox.post(streams[2], RequestOutput("r", [2], ["target"], metrics=metrics))
        outputs = {(stream := await ready.get()).index: stream.take() for _ in streams}  # type: ignore[union-attr]
        assert outputs[0].finished and outputs[1].finished and outputs[2].token_ids == [1, 2]
        assert admission.in_work == 1
        assert b'spec_decode_num_drafts_total{model_name="m"} 10.0' in counts.text()
        streams[0].clock.end("abort")
        assert b'ovspec:attention_density_count{model_name="m"} 1.0' in counts.text()

    asyncio.run(run())


class Breaks:
    """An engine that takes the first request only."""

    lives = True

    def __init__(self, error: BaseException) -> None:
        self.taken, self.aborted, self._error = list[str](), list[str](), error

    def submit(self, request: Request, on_output: object) -> None:
        if self.taken:
            raise self._error
        self.taken.append(request.request_id)

    def abort(self, ids: Sequence[str]) -> None:
        self.aborted += ids


@pytest.mark.parametrize("error", [KeyError("x"), MemoryError(), OSError("full"), asyncio.CancelledError()])
def test_nothing_is_left_where_the_engine_does_not_take_a_request(error: BaseException) -> None:
    async def run() -> None:
        admission, counts, engine = Admission(ServerLimits()), Counts("m", {}), Breaks(error)
        asked = [request("a"), request("b")]
        clocks, slots = [AnswerClock(counts, one) for one in asked], admission.admit(2)
        answering = Answering(
            engine, Mailbox(asyncio.get_running_loop()), asked, [], clocks, slots, seconds=0.05
        )
        with pytest.raises(ApiError if isinstance(error, Exception) else type(error)):
            await answering.__aenter__()
        assert admission.in_work == 0 and "a" in engine.aborted
        await asyncio.sleep(0.1)
        assert answering._ready.empty()  # the timer is gone

    asyncio.run(run())


def test_an_answer_that_has_ended_fails_no_other(pipeline: ovspec.LLMPipeline) -> None:
    """The engine goes on behind a stop string until it is told, and may fail there."""
    token_text = TokenText(pipeline.get_tokenizer())
    (token,) = pipeline.get_tokenizer().encode(" there", add_special_tokens=False).input_ids.data[0].tolist()

    async def run() -> list[str | None]:
        asked, counts = [request("a"), request("b")], Counts("m", {})
        choices = [Choice(token_text, (" there",)), Choice(token_text)]
        engine, mailbox = Breaks(KeyError()), Mailbox(asyncio.get_running_loop())
        engine.submit = lambda one, on_output: posts.append(on_output)  # type: ignore[method-assign]
        posts = list[Any]()
        clocks, slots = [AnswerClock(counts, one) for one in asked], Admission(ServerLimits()).admit(2)
        async with Answering(engine, mailbox, asked, choices, clocks, slots, seconds=9) as answering:
            posts[0](RequestOutput("a", [token], ["target"]))
            async for index, _ in answering.deltas():
                if index == 0:
                    posts[0](RequestOutput("a", error=ValueError("logits must be finite")))
                    await asyncio.sleep(0)
                    end = GenerationFinishReason.LENGTH
                    posts[1](RequestOutput("b", [token], ["target"], finish_reason=end))
        return [choice.finish_reason for choice in choices]

    assert asyncio.run(run()) == ["stop", "length"]


def test_a_clients_stop_tokens_go_with_the_models(pipeline: ovspec.LLMPipeline) -> None:
    def both(stops: set[int] | None, **options: Any) -> tuple[set[int], set[int]]:
        config = GenerationConfig(max_new_tokens=4, **options)
        settings = resolve(config, (1, 2, 3), False, stops)
        return set(settings.stop_token_ids), set(settings.sampling.stop_token_ids)

    every = {1, 2, 3, 9}
    assert both({9}) == (every, every) and both(set()) == ({1, 2, 3}, {1, 2, 3})
    assert both({9}, ignore_eos=True) == ({9}, every)  # what min_tokens suppresses is the same
    assert both(None, stop_token_ids={9}) == ({1, 9}, {1, 9})  # OpenVINO GenAI's
    assert both(None, stop_token_ids={9}, ignore_eos=True)[0] == set()
    fields = {"max_new_tokens": 4, "presence_penalty": 1.0}
    assert pipeline.client_settings(fields, ()).sampling.subtracts_penalties
    assert not pipeline.settings(**fields).sampling.subtracts_penalties

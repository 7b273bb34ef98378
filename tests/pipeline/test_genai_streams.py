"""Streamers as `openvino_genai.LLMPipeline` takes them, and the figures of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openvino_genai
import pytest
from openvino_genai import PerfMetrics, RawPerfMetrics, StreamerBase, StreamingStatus, TextStreamer
from prompts import PROMPTS

import ovspec

Make = Callable[..., ovspec.LLMPipeline]
PROMPT = PROMPTS[0]
TWELVE = {"max_new_tokens": 12}


class Recorder(StreamerBase):
    """Keeps the tokens; answers with a status once it has as many as it wants."""

    def __init__(self, limit: int = 1000, status: StreamingStatus = StreamingStatus.STOP) -> None:
        super().__init__()
        self.tokens: list[int] = []
        self.ends = 0
        self._limit, self._status = limit, status

    def write(self, token: int | list[int]) -> StreamingStatus:
        self.tokens += [token] if isinstance(token, int) else list(token)
        return self._status if len(self.tokens) >= self._limit else StreamingStatus.RUNNING

    def end(self) -> None:
        self.ends += 1


def recorded(pipeline: Any) -> tuple[str, list[int], bool]:
    streamer = Recorder()
    return pipeline.generate(PROMPT, streamer=streamer, **TWELVE), streamer.tokens, streamer.ends > 0


def text_streamed(pipeline: Any) -> tuple[str, str]:
    pieces: list[str] = []
    streamer = TextStreamer(pipeline.get_tokenizer(), pieces.append)
    return pipeline.generate(PROMPT, streamer=streamer, **TWELVE), "".join(pieces)


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("stream", [recorded, text_streamed])
def test_streamers_get_the_same(
    make_pipeline: Make, genai: openvino_genai.LLMPipeline, stream: Callable[[Any], Any], draft: bool
) -> None:
    assert stream(make_pipeline(draft=draft)) == stream(genai)


@pytest.mark.parametrize("answer", [None, False, 0, StreamingStatus.RUNNING])
def test_answers_that_go_on(make_pipeline: Make, genai: openvino_genai.LLMPipeline, answer: Any) -> None:
    def streamed(pipeline: Any) -> tuple[str, str]:
        pieces: list[str] = []

        def streamer(piece: str) -> Any:
            pieces.append(piece)
            return answer

        return pipeline.generate(PROMPT, streamer=streamer, **TWELVE), "".join(pieces)

    assert streamed(make_pipeline(draft=True)) == streamed(genai)


@pytest.mark.parametrize(
    "answer", [True, 1, StreamingStatus.STOP, StreamingStatus.CANCEL, StreamingStatus.TOOL_CALL_STOP]
)
@pytest.mark.parametrize("draft", [False, True])
def test_answers_that_stop(
    make_pipeline: Make, genai: openvino_genai.LLMPipeline, draft: bool, answer: Any
) -> None:
    """Ours ends where the streamer asked for it; openvino_genai's continues for a token or two."""
    full = genai.generate(PROMPT, **TWELVE)
    for pipeline, exact in ((make_pipeline(draft=draft), True), (genai, False)):
        pieces: list[str] = []

        def streamer(piece: str, pieces: list[str] = pieces) -> Any:
            pieces.append(piece)
            return answer if len(pieces) >= 2 else None

        text = str(pipeline.generate(PROMPT, streamer=streamer, **TWELVE))
        assert full.startswith(text) and text.startswith("".join(pieces)) and pieces
        assert not exact or ("".join(pieces) == text and (draft or text != full))


@pytest.mark.parametrize("status", [StreamingStatus.STOP, StreamingStatus.CANCEL])
def test_token_streamers_that_stop(make_pipeline: Make, status: StreamingStatus) -> None:
    streamer = Recorder(3, status)
    encoded = make_pipeline().get_tokenizer().encode(PROMPT)
    results = make_pipeline().generate(encoded, streamer=streamer, **TWELVE)
    assert streamer.tokens == results.tokens[0] and len(streamer.tokens) == 3 and streamer.ends == 1


@pytest.mark.parametrize("status", [StreamingStatus.STOP, StreamingStatus.CANCEL])
def test_a_streamer_may_stop_at_the_prompt(make_pipeline: Make, status: StreamingStatus) -> None:
    pieces: list[str] = []

    def streamer(piece: str) -> StreamingStatus:
        pieces.append(piece)
        return status if len(pieces) == 1 else StreamingStatus.RUNNING

    found = make_pipeline().generate([PROMPT], streamer=streamer, echo=True, **TWELVE)
    assert pieces == found.texts == [PROMPT]
    assert found.finish_reasons[0].name == ("STOP" if status == StreamingStatus.STOP else "NONE")


def test_every_figure_is_there(make_pipeline: Make, genai: openvino_genai.LLMPipeline) -> None:
    ours, theirs = (p.generate([PROMPT], **TWELVE).perf_metrics for p in (make_pipeline(), genai))
    for name in [name for name in dir(PerfMetrics) if name.startswith("get_")]:
        mine, other = getattr(ours, name)(), getattr(theirs, name)()
        if hasattr(other, "mean"):
            assert (mine.mean > 0) == (other.mean > 0), name
            assert mine.std >= 0 or other.std < 0, name
        elif name != "get_load_time":
            assert mine == other, name
    for name in [name for name in dir(RawPerfMetrics) if not name.startswith("_")]:
        mine, other = getattr(ours.raw_metrics, name), getattr(theirs.raw_metrics, name)
        assert type(mine) is type(other) is list, name
        assert bool(mine) == bool(other), name


def test_metrics_add_up(make_pipeline: Make, genai: openvino_genai.LLMPipeline) -> None:
    for pipeline in (make_pipeline(draft=True), genai):
        one = pipeline.generate([PROMPT], **TWELVE).perf_metrics
        total = one + one
        assert total.get_num_generated_tokens() == 2 * one.get_num_generated_tokens() == 24
        total += one
        assert total.get_num_generated_tokens() == 36
        assert len(total.raw_metrics.generate_durations) == 3


def test_figures_of_drafts(make_pipeline: Make) -> None:
    results = make_pipeline(draft=True).generate([PROMPT], num_assistant_tokens=3, **TWELVE)
    metrics = results.extended_perf_metrics
    assert metrics is results.perf_metrics
    assert (
        metrics.get_num_accepted_tokens() + metrics.get_num_rejected_tokens()
        == metrics.get_num_draft_tokens()
    )
    assert 0 < metrics.get_num_accepted_tokens() <= metrics.get_num_draft_tokens()
    rate = metrics.get_num_accepted_tokens() / metrics.get_num_draft_tokens()
    assert metrics.get_draft_acceptance_rate() == metrics.get_acceptance_rate() == pytest.approx(rate)

"""A stream that is cut short leaves the pipeline usable and its caches consistent, chats included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openvino_genai import StreamingStatus
from prompts import STORY
from settings import F32
from tiers import by_tier

import ovspec

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
SPARSE = ovspec.SparseVerify(L0=32, rho=0.1)
PIPELINES: dict[str, dict[str, Any]] = {
    "dense": {"drafter": "suffix"},
    "commit": {"drafter": "assistant", "verify": ovspec.CommitVerify(SPARSE, interval=6)},
    "commit without a drafter": {"drafter": "none", "verify": ovspec.CommitVerify(SPARSE, interval=6)},
}
NEW_TOKENS = 40


class BrokenStreamerError(Exception):
    """Raised by a user's streamer."""


def cancel() -> Any:
    return StreamingStatus.CANCEL


def stop() -> Any:
    return StreamingStatus.STOP


def fail() -> Any:
    raise BrokenStreamerError


def interrupt() -> Any:
    # What Python raises on SIGINT. The signal itself may end a test worker: OpenVINO's CPU plugin sets
    # its own stack for signals and leaves a freed one if the older of two cores goes first. Tests of
    # the CLI send the signal.
    raise KeyboardInterrupt


ENDS: dict[str, tuple[Callable[[], Any], type[BaseException] | None]] = {
    "CANCEL": (cancel, None),
    "STOP": (stop, None),
    "exception": (fail, BrokenStreamerError),
    "Ctrl-C": (interrupt, KeyboardInterrupt),
}


@pytest.fixture(scope="module", params=by_tier(PIPELINES, ("dense", "commit")))
def pipeline(request: pytest.FixtureRequest, demo_ir: Path) -> ovspec.LLMPipeline:
    arguments = PIPELINES[request.param]
    model = ovspec.draft_model(demo_ir / "draft") if arguments["drafter"] == "assistant" else None
    pipeline = ovspec.LLMPipeline(demo_ir, "CPU", draft_model=model, **arguments, **F32)
    pipeline.get_tokenizer().set_chat_template(TEMPLATE)
    return pipeline


def cut_short(pipeline: ovspec.LLMPipeline, prompt: str, end: str) -> str:
    """Generate until the streamer ends it at its third piece; the text that it was given."""
    act, error = ENDS[end]
    pieces: list[str] = []

    def streamer(piece: str) -> Any:
        pieces.append(piece)
        return act() if len(pieces) == 3 else None

    if error is None:
        assert pipeline.generate(prompt, max_new_tokens=NEW_TOKENS, streamer=streamer) == "".join(pieces)
    else:
        with pytest.raises(error):
            pipeline.generate(prompt, max_new_tokens=NEW_TOKENS, streamer=streamer)
    assert len(pieces) == 3
    return "".join(pieces)


@pytest.mark.parametrize("end", ENDS)
def test_the_next_call_is_as_if_nothing_had_been(pipeline: ovspec.LLMPipeline, end: str) -> None:
    want = pipeline.generate(STORY, max_new_tokens=NEW_TOKENS)
    blocks = pipeline._target.blocks
    for _ in range(2):
        given = cut_short(pipeline, STORY, end)
        assert want.startswith(given) and len(given) < len(want)
        assert blocks.usage == 0.0, "blocks of the cache were lost"
    assert pipeline.generate(STORY, max_new_tokens=NEW_TOKENS) == want


@pytest.mark.parametrize("end", by_tier(ENDS, [*ENDS][:1]))
def test_a_chat_goes_on_with_what_it_had(pipeline: ovspec.LLMPipeline, end: str) -> None:
    def answers(cut: bool) -> list[str]:
        pipeline.start_chat()
        first = pipeline.generate(STORY[:600], max_new_tokens=24)
        if cut:
            history = pipeline._chat.history
            assert history is not None
            cut_short(pipeline, "Tell me more.", end)
            if end == "STOP":
                # After STOP the turn stays in the chat; the other ends remove it.
                history.pop()
                history.pop()
            assert len(history.get_messages()) == 2
        second = pipeline.generate("And then?", max_new_tokens=24)
        pipeline.finish_chat()
        return [first, second]

    assert answers(cut=True) == answers(cut=False)


def test_stop_strings_and_limits_act_on_confirmed_tokens(pipeline: ovspec.LLMPipeline) -> None:
    whole = pipeline.generate(STORY, max_new_tokens=NEW_TOKENS)
    for limit in (1, 2, 5, 7, 23):
        pieces: list[str] = []
        results = pipeline.generate([STORY], max_new_tokens=limit, streamer=pieces.append)
        assert results.perf_metrics.get_num_generated_tokens() == limit
        assert whole.startswith(results.texts[0]) and "".join(pieces) == results.texts[0]
    stop_string = whole[30:35]
    stopped = pipeline.generate(STORY, max_new_tokens=NEW_TOKENS, stop_strings={stop_string})
    assert stopped == whole[: whole.index(stop_string)]
    tokens = pipeline.generate(pipeline.get_tokenizer().encode(STORY), max_new_tokens=NEW_TOKENS).tokens[0]
    last = next(token for token in tokens[9:] if token not in tokens[:9])
    ended = pipeline.generate(
        pipeline.get_tokenizer().encode(STORY), max_new_tokens=NEW_TOKENS, stop_token_ids={last}
    )
    assert ended.tokens[0] == tokens[: tokens.index(last) + 1]

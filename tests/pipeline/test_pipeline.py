"""The pipeline's surface: inputs, outputs, streaming, chats, metrics, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai
import pytest
from openvino_genai import ChatHistory, GenerationConfig, StreamerBase, StreamingStatus
from prompts import PROMPTS, STORY
from settings import F32

import ovspec

Make = Callable[..., ovspec.LLMPipeline]
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def test_same_text_as_openvino_genai(make_pipeline: Make, genai: openvino_genai.LLMPipeline) -> None:
    for prompt in PROMPTS[:10]:
        assert make_pipeline(draft=True).generate(prompt, max_new_tokens=30) == genai.generate(
            prompt, max_new_tokens=30
        )


def test_forms_of_input_and_output(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    text = pipeline.generate(PROMPTS[0], max_new_tokens=12)
    assert isinstance(text, str)
    decoded = pipeline.generate([PROMPTS[0], PROMPTS[1]], max_new_tokens=12)
    assert decoded.texts[0] == text and len(decoded.texts) == len(decoded.scores) == 2
    ids = pipeline.get_tokenizer().encode([PROMPTS[0], PROMPTS[1]])
    encoded = pipeline.generate(ids, max_new_tokens=12)
    assert [len(tokens) for tokens in encoded.tokens] == [12, 12]
    assert pipeline.get_tokenizer().decode(encoded.tokens) == decoded.texts
    row = ov.Tensor(np.array(pipeline.get_tokenizer().encode(PROMPTS[0]).input_ids.data))
    assert pipeline.generate(row, max_new_tokens=12).tokens[0] == encoded.tokens[0]


def test_configuration_object_and_keywords(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    config = GenerationConfig()
    config.max_new_tokens = 5
    tokens = pipeline.generate(pipeline.get_tokenizer().encode(PROMPTS[0]), config).tokens[0]
    assert len(tokens) == 5
    longer = pipeline.generate(pipeline.get_tokenizer().encode(PROMPTS[0]), config, max_new_tokens=7).tokens[
        0
    ]
    assert len(longer) == 7 and longer[:5] == tokens
    assert config.max_new_tokens == 5


def test_seed_reproduces_and_differs(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    options: dict[str, Any] = {"max_new_tokens": 30, "do_sample": True, "temperature": 1.2, "top_p": 0.95}
    first = pipeline.generate(PROMPTS[0], rng_seed=7, **options)
    assert first == pipeline.generate(PROMPTS[0], rng_seed=7, **options)
    assert first != pipeline.generate(PROMPTS[0], rng_seed=8, **options)
    several = pipeline.generate([PROMPTS[0]], rng_seed=7, num_return_sequences=3, **options).texts
    assert several[0] == first and len(set(several)) == 3


@pytest.mark.parametrize("stop_strings", [set(), {"never said"}])
def test_streamed_text_is_the_text(make_pipeline: Make, stop_strings: set[str]) -> None:
    for prompt in PROMPTS[:5]:
        pieces: list[str] = []
        text = make_pipeline(draft=True).generate(
            prompt, max_new_tokens=40, streamer=pieces.append, stop_strings=stop_strings
        )
        assert "".join(pieces) == text and len(pieces) > 3


def test_base_streamer_gets_tokens(make_pipeline: Make) -> None:
    class Recorder(StreamerBase):
        def __init__(self) -> None:
            super().__init__()
            self.tokens: list[int] = []
            self.ended = 0

        def write(self, token: int | list[int]) -> StreamingStatus:
            self.tokens += token if isinstance(token, list) else [token]
            return StreamingStatus.RUNNING

        def end(self) -> None:
            self.ended += 1

    pipeline, recorder = make_pipeline(draft=True), Recorder()
    tokens = pipeline.generate(
        pipeline.get_tokenizer().encode(PROMPTS[0]), streamer=recorder, max_new_tokens=20
    ).tokens
    assert recorder.tokens == tokens[0] and recorder.ended == 1


@pytest.mark.parametrize("answer", [True, StreamingStatus.STOP, StreamingStatus.CANCEL])
def test_streamer_stops(make_pipeline: Make, answer: object) -> None:
    pipeline, pieces = make_pipeline(draft=True), []

    def streamer(piece: str) -> object:
        pieces.append(piece)
        return answer if len(pieces) == 3 else None

    text = pipeline.generate(PROMPTS[0], max_new_tokens=40, streamer=streamer)
    assert text == "".join(pieces)
    assert len(pipeline.generate(PROMPTS[0], max_new_tokens=40)) > len(text)


def test_exception_in_streamer_leaves_the_pipeline_usable(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    want = pipeline.generate(PROMPTS[0], max_new_tokens=20)

    def fail(piece: str) -> None:
        raise KeyboardInterrupt

    before = pipeline.runner.blocks.num_blocks
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            pipeline.generate(PROMPTS[0], max_new_tokens=20, streamer=fail)
    assert pipeline.generate(PROMPTS[0], max_new_tokens=20) == want
    assert pipeline.runner.blocks.num_blocks == before and pipeline.runner.blocks.usage == 0.0


@pytest.mark.parametrize("include", [False, True], ids=["excluded", "included"])
def test_stop_string_cuts_text_and_stream(make_pipeline: Make, include: bool) -> None:
    pipeline = make_pipeline(draft=True)
    whole = pipeline.generate(PROMPTS[0], max_new_tokens=40)
    stop = whole[20:26]
    cut = whole.index(stop)
    if include:  # the text ends with the token that completes the stop string
        decode = pipeline.get_tokenizer().decode
        tokens = pipeline.generate(pipeline.get_tokenizer().encode(PROMPTS[0]), max_new_tokens=40).tokens[0]
        cut = next(len(text) for n in range(41) if stop in (text := str(decode(tokens[:n]))))
    pieces: list[str] = []
    results = pipeline.generate(
        [PROMPTS[0]],
        max_new_tokens=40,
        stop_strings={stop},
        include_stop_str_in_output=include,
        streamer=pieces.append,
    )
    assert results.texts[0] == "".join(pieces) == whole[:cut]
    assert results.finish_reasons[0] == openvino_genai.GenerationFinishReason.STOP
    assert results.perf_metrics.get_num_generated_tokens() < 40


def test_stop_token_ends_in_the_middle_of_an_accepted_draft(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    ids = pipeline.get_tokenizer().encode(PROMPTS[0])
    tokens = pipeline.generate(ids, max_new_tokens=40).tokens[0]
    for at in range(3, 20):
        stop = tokens[at]
        got = pipeline.generate(ids, max_new_tokens=40, stop_token_ids={stop}).tokens[0]
        assert got == tokens[: tokens.index(stop) + 1]


def test_min_new_tokens_holds_the_end_back(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    ids = pipeline.get_tokenizer().encode(PROMPTS[0])
    stop = pipeline.generate(ids, max_new_tokens=10).tokens[0][2]
    got = pipeline.generate(ids, max_new_tokens=20, min_new_tokens=8, stop_token_ids={stop}).tokens[0]
    assert len(got) > 8 and stop not in got[:8]


@pytest.mark.slow
def test_generation_ends_at_the_last_position(demo_ir: Path, make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    ids = np.random.default_rng(0).integers(2, 4096, (1, 8185))
    results = pipeline.generate(ov.Tensor(ids), max_new_tokens=100, ignore_eos=True)
    assert len(results.tokens[0]) == 7
    assert results.finish_reasons[0] == openvino_genai.GenerationFinishReason.LENGTH
    with pytest.raises(ValueError, match="the prompt has 8192 tokens, the model 8192 positions"):
        pipeline.generate(ov.Tensor(np.ones((1, 8192), np.int64)), max_new_tokens=1)


class TestChat:
    @pytest.fixture
    def pipeline(self, demo_ir: Path) -> ovspec.LLMPipeline:
        pipeline = ovspec.LLMPipeline(
            demo_ir, "CPU", draft_model=ovspec.draft_model(demo_ir / "draft"), **F32
        )
        pipeline.get_tokenizer().set_chat_template(TEMPLATE)
        return pipeline

    def test_turns_prefill_only_what_is_new(self, pipeline: ovspec.LLMPipeline) -> None:
        prefilled: list[int] = []
        forward = pipeline._target.forward

        def counting(batch: Any) -> Any:
            prefilled.extend(len(rows.tokens) for rows in batch)
            return forward(batch)

        pipeline.start_chat("You tell stories.")
        first = pipeline.generate(STORY, max_new_tokens=16)
        pipeline._target.forward = counting  # type: ignore[method-assign]
        second = pipeline.generate("Go on.", max_new_tokens=16)
        # The new tokens, and those that share a block of 32 with them.
        assert prefilled[0] < 40 + 32
        pipeline._target.forward = forward  # type: ignore[method-assign]
        pipeline.finish_chat()
        history = ChatHistory([{"role": "system", "content": "You tell stories."}])
        history.append({"role": "user", "content": STORY})
        history.append({"role": "assistant", "content": first})
        history.append({"role": "user", "content": "Go on."})
        assert str(pipeline.generate(history, max_new_tokens=16)) == second

    def test_history_that_changes_is_recomputed(self, pipeline: ovspec.LLMPipeline) -> None:
        histories = [
            ChatHistory([{"role": "user", "content": text}]) for text in (STORY, STORY[:900] + " End.", "Hi")
        ]
        fresh = []
        for history in histories:
            pipeline.finish_chat()
            fresh.append(str(pipeline.generate(history, max_new_tokens=12)))
        pipeline.finish_chat()
        assert [str(pipeline.generate(history, max_new_tokens=12)) for history in histories] == fresh

    def test_a_history_in_a_chat_is_no_turn(self, pipeline: ovspec.LLMPipeline) -> None:
        history = ChatHistory([{"role": "user", "content": "Hi"}])
        pipeline.start_chat()
        found = pipeline.generate(history, max_new_tokens=2, do_sample=True, num_return_sequences=2)
        pipeline.finish_chat()
        assert len(found.texts) == 2

    def test_cancelled_turn_is_forgotten(self, pipeline: ovspec.LLMPipeline) -> None:
        pipeline.start_chat()
        pipeline.generate("Tell me about Lily.", max_new_tokens=8)
        pipeline.generate("No.", max_new_tokens=8, streamer=lambda _: StreamingStatus.CANCEL)
        got = pipeline.generate("And Tom?", max_new_tokens=8)
        messages = [m["content"] for m in pipeline._chat.history.get_messages()]
        assert len(messages) == 4 and "No." not in messages and messages[-1] == got

    def test_no_template_is_an_error(self, make_pipeline: Make) -> None:
        with pytest.raises(ValueError, match="no chat template"):
            make_pipeline().generate(ChatHistory([{"role": "user", "content": "Hi"}]), max_new_tokens=2)


def test_metrics_are_of_one_call(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    for _ in range(2):
        metrics = pipeline.generate([PROMPTS[0]], max_new_tokens=30, num_assistant_tokens=4).perf_metrics
        raw = metrics.raw_metrics
        assert metrics.get_num_generated_tokens() == 30
        # The first token comes from the prefill; each pass gives what it accepted and one token more.
        assert sum(raw.accepted) + len(raw.verify_durations) == 29
        assert metrics.get_mean_acceptance_length() == pytest.approx(1 + sum(raw.accepted) / raw.num_drafts)
        assert len(metrics.get_acceptance_rate_per_position()) == 4
        assert metrics.get_acceptance_rate_per_position()[0] >= metrics.get_acceptance_rate_per_position()[3]
        assert metrics.get_ttft().mean > 0 and metrics.get_tpot().mean > 0 and metrics.get_load_time() > 0
        assert metrics.get_attention_density() == 1.0
        assert len(raw.host_durations) == len(raw.verify_durations)


def test_metrics_add_up(make_pipeline: Make) -> None:
    pipeline = make_pipeline(draft=True)
    one = pipeline.generate([PROMPTS[0]], max_new_tokens=12, num_assistant_tokens=2).perf_metrics
    two = pipeline.generate([PROMPTS[1]], max_new_tokens=20, num_assistant_tokens=4).perf_metrics
    total = one + two
    assert total.get_num_generated_tokens() == 32
    assert total.raw_metrics.num_drafts == one.raw_metrics.num_drafts + two.raw_metrics.num_drafts
    assert len(total.raw_metrics.proposed) == 4
    assert sum(total.raw_metrics.accepted) == sum(one.raw_metrics.accepted) + sum(two.raw_metrics.accepted)
    assert total.get_ttft().mean == pytest.approx((one.get_ttft().mean + two.get_ttft().mean) / 2)


@pytest.mark.parametrize(
    ("verify", "context", "blocks"),
    [
        (ovspec.SparseVerify(L0=1024, rho=0.1), 1024, -1),
        (ovspec.SparseVerify(L0=1024, rho=0.1), 2048, 36),
        (ovspec.SparseVerify(L0=0, rho=0.5), 100, 2),
        (ovspec.SparseVerify(L0=0, rho=0.0), 100, 1),
        (ovspec.SparseVerify(budget=2048), 16384, 64),
        (ovspec.SparseVerify(budget=2048), 2048, -1),
        (ovspec.SparseVerify(budget=1), 2048, 1),
    ],
)
def test_budget(verify: ovspec.SparseVerify, context: int, blocks: int) -> None:
    assert verify.budget_blocks(context, block_size=32) == blocks

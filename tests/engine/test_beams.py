"""Beams in the engine: they share blocks, leave others alone, and find what they find alone."""

from __future__ import annotations

import functools
import gc
from typing import Any

import numpy as np
import pytest
from drafters.own_drafters import DRAFTERS, SPARSE
from engine.reference_model import ReferenceModel
from engine.test_llm_engine import COMMIT, SAMPLING, engine_of, settings_of
from families import _SHAPES, family
from openvino_genai import GenerationConfig
from tiers import by_tier

from ovspec.cache.cache import CachedSequence
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request, RequestOutput, TokenLogprobs
from ovspec.generation.generation_config import GenerationSettings, resolve, updated
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec.sampling.beam_search import BeamSearch, log_softmax
from ovspec_models.synthetic import build_model

BEAMS: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 3, "max_new_tokens": 40}
GROUPS: dict[str, Any] = {**BEAMS, "num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.7}


def beam_settings(**options: Any) -> GenerationSettings:
    return resolve(updated(GenerationConfig(), {**BEAMS, **options}), (), has_draft=True)


def request(number: int = 0, name: str = "beams", length: int | None = None, **options: Any) -> Request:
    prompt = family("llama").prompts[number][:length]
    return Request(name, prompt, beam_settings(**options))


def last_outputs(engine: LLMEngine, requests: list[Request]) -> dict[str, RequestOutput]:
    """The last output of each, with all of its tokens."""
    for one in requests:
        engine.add_request(one)
    tokens: dict[str, list[int]] = {one.request_id: [] for one in requests}
    last: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests:
        for output in engine.step():
            tokens[output.request_id] += output.token_ids
            last[output.request_id] = output
    for name, output in last.items():
        assert output.finished
        output.token_ids = tokens[name]
    assert not engine.num_requests_running and not engine.kv_cache_usage
    return last


def answers(output: RequestOutput) -> list[tuple[list[int], float]]:
    return [(beam.token_ids, beam.score) for beam in output.beams]


@functools.cache
def alone(number: int, length: int | None = None, **options: Any) -> list[tuple[list[int], float]]:
    engine = engine_of(None, prefix_cache_bytes=0)
    return answers(last_outputs(engine, [request(number, length=length, **options)])["beams"])


@functools.cache
def reference() -> ReferenceModel:
    return ReferenceModel(build_model(_SHAPES["llama"], "fp32", seed=1))


@pytest.mark.parametrize("options", [BEAMS, GROUPS], ids=["beams", "groups"])
def test_beams_are_those_of_passes_over_whole_texts(options: dict[str, Any]) -> None:
    """No cache, no fork: every row is that of the exported model over prompt and answer."""
    prompt, options = family("llama").prompts[1], {**options, "max_new_tokens": 12}
    params = beam_settings(**options).beams
    assert params is not None
    search = BeamSearch.start(params, 12, 0)
    while search.live:
        rows = {}
        for beam in search.live:
            text = np.array([*prompt, *(step.token for step in beam.path)])
            rows[beam] = log_softmax(reference().logits(text)[-1])
        search = search.step(rows, lambda parent, token: False)
    want = [[step.token for step in one.hypothesis.path] for one in search.ended[:3]]
    found = alone(1, **options)
    assert [tokens for tokens, _ in found] == want
    assert [score for _, score in found] == pytest.approx([one.score for one in search.ended[:3]], abs=1e-4)


@pytest.mark.parametrize("drafter", by_tier([*DRAFTERS, None], ["auto", "assistant", "prompt_lookup"]))
def test_beams_beside_other_requests_change_none_of_the_answers(drafter: str | None) -> None:
    def others() -> list[Request]:
        prompts = family("llama").prompts
        kinds = [SAMPLING, {"num_assistant_tokens": 5}, SAMPLING | {"num_assistant_tokens_schedule": "auto"}]
        return [
            Request(f"other {number}", prompts[number], settings_of(**{"max_new_tokens": 50, **kind}))
            for number, kind in enumerate(kinds, 1)
        ]

    want = {}
    for other in others():
        want |= engine_of(drafter, prefix_cache_bytes=0).generate([other])
    first, *rest = others()
    found = last_outputs(
        engine_of(drafter), [first, request(0), *rest, request(3, "groups", **GROUPS), request(0, "again")]
    )
    assert {name: found[name].token_ids for name in want} == want
    assert answers(found["beams"]) == answers(found["again"]) == alone(0)
    assert answers(found["groups"]) == alone(3, **GROUPS)
    assert found["beams"].token_ids == alone(0)[0][0]
    assert found["beams"].metrics.num_drafts == 0


def test_beams_share_the_blocks_of_the_prompt_and_of_what_they_have_in_common() -> None:
    engine = engine_of(None, prefix_cache_bytes=0)
    target, prompt = engine.target, family("llama").prompts[0]
    engine.add_request(request(0))
    most = 0
    while engine.has_unfinished_requests:
        engine.step()
        most = max(most, round(target.blocks.usage * target.blocks.num_blocks))
    whole, size = len(prompt) // target.block_size, target.block_size
    own = -(-(len(prompt) + 40 - whole * size) // size)
    assert len(prompt) > 2 * size
    assert whole + own < most <= whole + 1 + 4 * own < 4 * (whole + own)


@pytest.mark.parametrize("prefixes", [False, True])
def test_a_full_cache_preempts_beams_and_they_find_the_same(prefixes: bool) -> None:
    """The cache counts every beam; those that give their blocks up begin anew behind the prompt."""

    def requests() -> list[Request]:
        return [request(number, str(number), 20 + number, max_new_tokens=60) for number in range(4)]

    target = family("llama").target
    engine = engine_of(None, cache_bytes=14 * target.cache.block_bytes, prefix_cache_bytes=prefixes * 2**30)
    try:
        found = last_outputs(engine, requests())
    finally:
        engine_of()  # without the limit, for other tests
    assert engine.num_preemptions > 0
    for number in range(4):
        assert answers(found[str(number)]) == alone(number, 20 + number, max_new_tokens=60)


@pytest.mark.parametrize("blocks", [5, 6, 9, 11])
def test_answers_end_where_the_cache_has_no_room_for_all_beams(blocks: int) -> None:
    """Never more blocks than there are, and the request does not fail."""
    target = family("llama").target
    engine = engine_of(None, cache_bytes=blocks * target.cache.block_bytes, prefix_cache_bytes=0)
    try:
        found = last_outputs(engine, [request(2, length=20, max_new_tokens=200)])["beams"]
        with pytest.raises(ValueError, match="the KV cache room for 0 with 4 beams"):
            engine_of(None, cache_bytes=4 * target.cache.block_bytes).check(request(2, length=20))
    finally:
        engine_of()
    assert found.error is None
    assert len(found.token_ids) == (blocks - 1) // 4 * 32 - 20


@pytest.mark.parametrize("verify", [SPARSE, COMMIT], ids=["sparse", "commit"])
def test_beams_of_other_modes(verify: Any) -> None:
    """Behind commits nothing is lossy; sparse rows read what those of plain decoding would."""
    engine, asked = engine_of("prompt_lookup", prefix_cache_bytes=0), request(0)
    asked.verify = verify
    found = last_outputs(engine, [asked])["beams"]
    assert len(found.beams) == 3 and not engine.kv_cache_usage
    assert found.metrics.is_lossy == (verify is SPARSE)
    if verify is COMMIT:
        assert answers(found) == alone(0)
    else:
        assert found.metrics.attention_density < 1.0


def test_log_probabilities_are_those_of_the_model() -> None:
    asked = request(1, max_new_tokens=10)
    asked.logprobs = 2
    found = last_outputs(engine_of(None), [asked])["beams"]
    for beam in found.beams:
        text = np.array([*asked.prompt_token_ids, *beam.token_ids])
        rows = reference().logits(text)[len(asked.prompt_token_ids) - 1 :]
        want = [float(log_softmax(row)[token]) for row, token in zip(rows, beam.token_ids, strict=False)]
        assert [one.logprob for one in beam.logprobs] == pytest.approx(want, abs=1e-3)
        assert all(len(one.top) == 2 for one in beam.logprobs)
        assert beam.score == pytest.approx(sum(want) / 10, abs=1e-3)
    assert found.logprobs == found.beams[0].logprobs


def test_log_probabilities_of_beams_that_are_gone_are_not_kept() -> None:
    def alive() -> int:
        gc.collect()
        return sum(isinstance(one, TokenLogprobs) for one in gc.get_objects())

    asked, before, engine = request(1, max_new_tokens=60), alive(), engine_of(None, prefix_cache_bytes=0)
    asked.logprobs = 1
    engine.add_request(asked)
    most = 0
    while engine.has_unfinished_requests:
        most = max(most, alive() - before)
        outputs = engine.step()
    (found,) = outputs
    assert [len(beam.logprobs) for beam in found.beams] == 3 * [60]
    answered = {id(one) for beam in found.beams for one in beam.logprobs}
    assert 60 < most < 2 * len(answered) < 4 * 60


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_aborted_beams_end_all_answers_and_give_all_blocks_back(steps: int) -> None:
    engine = engine_of("assistant", max_num_batched_tokens=64)
    engine.add_request(request(0))
    for _ in range(steps):
        engine.step()
    engine.abort("beams")
    (last,) = engine.step()
    assert last.finished and not engine.kv_cache_usage
    assert [(beam.finished, beam.token_ids) for beam in last.beams] == 3 * [(True, [])]


def test_beams_that_fail_fail_alone() -> None:
    """A stop token that the model does not have, which min_new_tokens can't suppress."""
    bad = request(2, "bad", min_new_tokens=9, stop_token_ids={999})
    other = Request("other", family("llama").prompts[4], settings_of())
    want = engine_of(None, prefix_cache_bytes=0).generate([other])
    engine = engine_of(None)
    found = last_outputs(engine, [request(0), bad, Request("other", other.prompt_token_ids, settings_of())])
    assert isinstance(found["bad"].error, ValueError) and "id 999" in str(found["bad"].error)
    assert answers(found["beams"]) == alone(0)
    assert found["other"].token_ids == want["other"]


@pytest.mark.parametrize("fails", [6, 11])
def test_a_pass_that_fails_as_a_whole_is_run_again_for_each(
    monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    engine = engine_of(None, prefix_cache_bytes=0)
    forward, passes = engine.target.forward, list[int]()

    def once(batch: list[Rows]) -> Any:
        passes.append(len(batch))
        if len(passes) == fails:
            raise RuntimeError("one pass fails")
        return forward(batch)

    other = Request("other", family("llama").prompts[4], settings_of())
    want = engine_of(None, prefix_cache_bytes=0).generate([other])["other"]
    monkeypatch.setattr(engine.target, "forward", once)
    found = last_outputs(engine, [request(0), Request("other", other.prompt_token_ids, settings_of())])
    assert answers(found["beams"]) == alone(0) and found["other"].token_ids == want
    assert 1 in passes[fails:] and 4 in passes[fails:]


def test_interrupted_steps_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(None, prefix_cache_bytes=0)
    forward, count = engine.target.forward, [0]

    def interrupted(batch: list[Rows]) -> Any:
        found = forward(batch)
        count[0] += 1
        if count[0] % 4 == 0:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(engine.target, "forward", interrupted)
    engine.add_request(request(0))
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests:
        try:
            outputs += engine.step()
        except KeyboardInterrupt:
            engine.recover()
    assert answers(outputs[-1]) == alone(0) and not engine.kv_cache_usage


def test_a_pass_has_no_more_rows_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(None, max_num_batched_tokens=9)
    forward, rows = engine.target.forward, list[int]()

    def counted(batch: list[Rows]) -> Any:
        rows.append(sum(len(one.tokens) for one in batch))
        return forward(batch)

    monkeypatch.setattr(engine.target, "forward", counted)
    found = last_outputs(engine, [request(number, str(number), 30) for number in range(4)])
    assert max(rows) <= 9 and [answers(found[str(n)]) for n in range(4)] == [alone(n, 30) for n in range(4)]
    with pytest.raises(ValueError, match="num_beams=10: a pass has 9 rows"):
        engine.check(request(0, num_beams=10))


def test_forks_of_a_sequence_go_on_apart() -> None:
    """Each writes into the block that all have begun, and reads what it had."""
    runner: ModelRunner = family("llama").target
    text = np.array(family("llama").prompts[2][:45])
    trunk = CachedSequence()
    runner.forward([Rows(trunk, text)])
    forks = [runner.blocks.fork(trunk) for _ in range(3)]
    grandchild = None
    for step, token in enumerate((7, 9, 11)):
        batch = [Rows(fork, np.array([token + index])) for index, fork in enumerate(forks)]
        before = runner.blocks.num_blocks - len(runner.blocks._free)
        lacking = runner.blocks.lacking([(rows.sequence, rows.end) for rows in batch])
        got = np.array(runner.forward(batch).logits)
        assert runner.blocks.num_blocks - len(runner.blocks._free) - before <= lacking
        assert lacking == (3 if step == 0 else 0)
        for index, row in enumerate(got):
            tokens = [t + index for t in (7, 9, 11)[: step + 1]]
            want = reference().logits(np.array([*text, *tokens]))[-1]
            np.testing.assert_allclose(row, want, atol=2e-3)
    grandchild = runner.blocks.fork(forks[1])
    for one in (trunk, *forks):
        runner.release(one)
    got = np.array(runner.forward([Rows(grandchild, np.array([3]))]).logits[0])
    want = reference().logits(np.array([*text, 8, 10, 12, 3]))[-1]
    np.testing.assert_allclose(got, want, atol=2e-3)
    runner.release(grandchild)
    assert runner.blocks.usage == 0

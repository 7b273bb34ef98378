"""Commits: the dense pass over provisional tokens verifies the draft behind them, and takes all in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from drafters.own_drafters import SPARSE
from engine.test_faults import ended, tokens
from engine.test_llm_engine import engine_of, settings_of
from families import family
from prompts import PROMPTS, STORY

from ovspec import CommitVerify, LLMPipeline, SparseVerify
from ovspec.engine.requests.request import Request
from ovspec.engine.requests.request_step import RequestStep
from ovspec.engine.verify import commit, speculation
from ovspec.passes.pass_result import PassResult
from ovspec.passes.tables import Rows
from ovspec.runner.warm_up import MOST_SAMPLED
from ovspec.schedule.schedule import Plan, Schedule, StepState

REQUESTS = 12


def request(number: int, interval: int | None) -> Request:
    prompt = family("llama").prompts[number // 5]
    settings = settings_of(max_new_tokens=60, num_assistant_tokens=4, ignore_eos=True)
    verify = CommitVerify(SPARSE, interval) if interval else "dense"
    return Request(str(number), prompt, settings, verify)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["prompt_lookup", "assistant", None])
def test_commits_that_one_pass_has_no_room_for(
    drafter: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests wait for the next pass, none for ever, and their texts are those of dense decoding."""
    engine = engine_of(drafter, prefix_cache_bytes=0, max_num_batched_tokens=2048)
    forward, take_back = engine.target.forward, commit.take_back
    most, waited = list[int](), 0

    def counted(batch: Sequence[Rows]) -> PassResult:
        most.append(sum(rows.sampled for rows in batch if rows.is_dense and rows.sampled > 1))
        return forward(batch)

    def noted(requests: Sequence[RequestStep]) -> list[RequestStep]:
        nonlocal waited
        advanced = take_back(requests)
        waited += sum(request.waits for request in requests)
        return advanced

    monkeypatch.setattr(engine.target, "forward", counted)
    monkeypatch.setattr(speculation, "take_back", noted)
    found = ended(engine, [request(number, 24) for number in range(REQUESTS)])
    dense = ended(engine_of(None), [request(number, None) for number in range(REQUESTS)])
    for number in range(REQUESTS):
        assert tokens(found[str(number)]) == tokens(dense[str(number)]), number
    assert MOST_SAMPLED / 2 < max(most) <= MOST_SAMPLED and waited
    assert not caplog.records, "no pass failed"


class LongerBehindFaults(Schedule):
    """Asks for commits after 5 tokens, and after 60 for the pass behind one that failed."""

    failed = False

    def plan(self, state: StepState) -> Plan:
        return Plan(6, 60 if self.failed else 5)


def test_a_commit_whose_pass_failed_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever interval is chosen then: the target's cache lacks its tokens, and a tree would not fit."""
    engine, schedule = (
        engine_of("assistant", prefix_cache_bytes=0, max_num_batched_tokens=512),
        LongerBehindFaults(),
    )
    forward, failed = engine.target.forward, list[int]()

    def fails(batch: Sequence[Rows]) -> PassResult:
        if len(batch) > 1:
            schedule.failed = len(failed) < 3 and any(rows.is_dense and rows.sampled > 6 for rows in batch)
        if len(batch) > 1 and schedule.failed:
            failed.append(len(batch))
            raise MemoryError("no room")
        return forward(batch)

    monkeypatch.setattr(engine.target, "forward", fails)
    trees = {"tree_depth": 3, "branching_factor": 2, "num_assistant_tokens_schedule": "auto"}
    settings = settings_of(max_new_tokens=40, ignore_eos=True, **trees)
    prompts = family("llama").prompts[:4]
    asked = [
        Request(str(number), prompt, settings, CommitVerify(SPARSE), schedule=schedule)
        for number, prompt in enumerate(prompts)
    ]
    found = ended(engine, asked)
    dense = ended(engine_of(None), [
        Request(str(number), prompt, settings_of(max_new_tokens=40, ignore_eos=True), "dense")
        for number, prompt in enumerate(prompts)
    ])  # fmt: skip
    assert len(failed) == 3 and not any(outputs[-1].error for outputs in found.values())
    assert {name: tokens(outputs) for name, outputs in found.items()} == {
        name: tokens(outputs) for name, outputs in dense.items()
    }


@pytest.mark.slow
def test_a_commit_verifies_the_draft_behind_it(
    make_pipeline: Callable[..., LLMPipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the demo pair, whose sparse tokens are mostly confirmed."""
    seen = list[RequestStep]()

    def noted(requests: Sequence[RequestStep]) -> list[RequestStep]:
        seen.extend(requests)
        return commit.take_back(requests)

    monkeypatch.setattr(speculation, "take_back", noted)
    pipeline = make_pipeline(draft=True, verify=CommitVerify(SparseVerify(L0=32, rho=0.1), 6))
    for prompt in PROMPTS[:8]:
        pipeline.generate([STORY + prompt], max_new_tokens=60, num_assistant_tokens=4)
    commits = [(*step.commit, step.accepted, step.judged) for step in seen if step.commit]
    assert any(kept == count and accepted for count, kept, accepted, _ in commits)
    # Behind a token that was corrected nothing was reached, and nothing is learned of the draft.
    corrected = [(accepted, judged) for count, kept, accepted, judged in commits if kept < count]
    assert set(corrected) == {(0, 0)}

"""Schedules by their settings, the rule of transformers, and what a pipeline keeps between calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino_genai
import pytest
from drafters.own_drafters import SPARSE
from families import family
from prompts import PROMPTS
from settings import F32

import ovspec
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.engine.requests.schedules import Schedules
from ovspec.generation.generation_config import GenerationConfig, resolve, updated
from ovspec.modes.commit_verify import CommitVerify
from ovspec.modes.row_limits import MAX_NUM_ASSISTANT_TOKENS
from ovspec.schedule.controller import AutoSchedule
from ovspec.schedule.schedule import ConstantSchedule, Plan, StepState


def settings(has_draft: bool = True, **options: Any) -> Any:
    return resolve(updated(GenerationConfig(max_new_tokens=8), options), (), has_draft)


@pytest.mark.parametrize(
    ("options", "schedule", "tokens"),
    [
        ({}, "auto", MAX_NUM_ASSISTANT_TOKENS),
        ({"num_assistant_tokens": 4}, "constant", 4),
        ({"num_assistant_tokens": 0}, "constant", 0),
        ({"assistant_confidence_threshold": 0.4}, "constant", 16),
        ({"num_assistant_tokens_schedule": "constant"}, "constant", 5),
        ({"num_assistant_tokens_schedule": "auto", "num_assistant_tokens": 3}, "auto", 3),
        ({"num_assistant_tokens_schedule": "auto", "assistant_confidence_threshold": 0.4}, "auto", 16),
    ],
)
def test_what_a_configuration_asks_for(options: dict[str, Any], schedule: str, tokens: int) -> None:
    found = settings(**options)
    assert (found.num_assistant_tokens_schedule, found.num_assistant_tokens) == (schedule, tokens)


def test_configuration_of_openvino_genai_means_auto() -> None:
    found = resolve(openvino_genai.GenerationConfig(max_new_tokens=8), (), has_draft=True)
    assert found.num_assistant_tokens_schedule == "auto"


@pytest.mark.parametrize("value", ["heuristic", "Auto", 3])
def test_unknown_schedules_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"num_assistant_tokens_schedule=.*'constant', 'auto'"):
        settings(num_assistant_tokens_schedule=value)


def test_a_schedule_without_a_drafter_is_refused() -> None:
    with pytest.raises(
        ValueError, match="num_assistant_tokens_schedule='auto': this pipeline does not draft"
    ):
        settings(has_draft=False, num_assistant_tokens_schedule="auto")


def test_schedules_outlive_a_call() -> None:
    schedules = Schedules(commits=False)
    auto = schedules.of(settings())
    assert schedules.of(settings(num_assistant_tokens_schedule="auto", num_assistant_tokens=7)) is auto
    assert isinstance(schedules.of(settings(num_assistant_tokens=4)), ConstantSchedule)


def test_without_a_drafter_only_commits_leave_something_to_choose() -> None:
    plain = settings(has_draft=False)
    assert isinstance(Schedules(commits=False).of(plain), ConstantSchedule)
    assert not isinstance(Schedules(commits=True).of(plain), ConstantSchedule)
    four = settings(num_assistant_tokens=4)
    assert isinstance(Schedules(commits=True).of(four), ConstantSchedule)
    assert not isinstance(Schedules(commits=True, open_interval=True).of(four), ConstantSchedule)


def test_commits_without_a_drafter_choose_their_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    models, plans, plan = family("llama"), [], AutoSchedule.plan

    def recorded(schedule: AutoSchedule, state: StepState) -> Plan:
        plans.append(plan(schedule, state))
        return plans[-1]

    monkeypatch.setattr(AutoSchedule, "plan", recorded)
    plain = settings(has_draft=False, max_new_tokens=100, ignore_eos=True)
    engine = LLMEngine(models.target, None, CommitVerify(SPARSE))
    engine.generate([Request("commit", models.prompts[0], plain)])
    assert {found.num_assistant_tokens for found in plans} == {0}
    # Every plan is a choice: dense passes, or sparse ones with an interval.
    assert {found.commit_interval for found in plans} > {0}


def test_metrics_say_what_the_schedule_asked_for(demo_ir: Path) -> None:
    draft = ovspec.draft_model(demo_ir / "draft")
    pipeline = ovspec.LLMPipeline(demo_ir, draft_model=draft, **F32)

    def metrics(**options: Any) -> ovspec.PerfMetrics:
        options = {"max_new_tokens": 24, "ignore_eos": True, **options}
        return pipeline.generate(PROMPTS[:1], **options).perf_metrics

    constant = metrics(num_assistant_tokens=3)
    assert set(constant.raw_metrics.num_assistant_tokens) == {3}
    assert constant.get_num_assistant_tokens() == 3.0 and constant.get_drafting_share() == 1.0
    plain = metrics(num_assistant_tokens=0)
    assert plain.get_num_assistant_tokens() == 0.0 and plain.get_drafting_share() == 0.0

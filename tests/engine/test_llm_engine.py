"""Requests that share passes and blocks, come, go and are preempted get the answer that they get alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from drafters.own_drafters import DRAFTERS, SPARSE
from families import family
from openvino_genai import GenerationConfig, GenerationFinishReason
from tiers import by_tier

from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request, RequestOutput
from ovspec.generation.generation_config import GenerationSettings, resolve, updated
from ovspec.modes.commit_verify import MAX_INTERVAL, CommitVerify
from ovspec.runner.model_runner import ModelRunner
from ovspec.runner.warm_up import MOST_SAMPLED
from ovspec.schedule.schedule import Plan, Schedule, StepOutcome, StepState

COMMIT = CommitVerify(SPARSE, interval=5)
VERIFY = ("dense", SPARSE, COMMIT)
SAMPLING = {"do_sample": True, "temperature": 0.9, "top_p": 0.95, "rng_seed": 11}
AUTO = {"num_assistant_tokens_schedule": "auto"}


def settings_of(**options: Any) -> GenerationSettings:
    given = {"max_new_tokens": 24, "num_assistant_tokens": 5, **options}
    return resolve(updated(GenerationConfig(), given), (), has_draft=True)


@dataclass
class Case:
    """A request, made anew each time."""

    prompt: int
    options: dict[str, Any] = field(default_factory=dict)
    verify: Any = "dense"
    index: int = 0

    def request(self, name: str = "alone") -> Request:
        prompt = family("llama").prompts[self.prompt]
        return Request(name, prompt, settings_of(**self.options), self.verify, index=self.index)


CASES = [
    Case(0),
    Case(1, {"num_assistant_tokens": 2, "max_new_tokens": 40}),
    Case(2, SAMPLING | AUTO),
    Case(3, verify=COMMIT),
    Case(4, {"num_assistant_tokens": 0}),
    Case(5, AUTO, verify=COMMIT),
    Case(0, SAMPLING | AUTO, index=1),
    Case(6, {"repetition_penalty": 1.3}),
    Case(7, {"max_new_tokens": 1}),
    Case(3, verify=SPARSE),
]


def engine_of(drafter: str | None = "prompt_lookup", **options: Any) -> LLMEngine:
    models = family("llama")
    made = DRAFTERS[drafter](models) if drafter else None
    return LLMEngine(models.target, made, **{"max_num_batched_tokens": 128, **options})


@functools.cache
def alone(number: int, drafter: str | None) -> list[int]:
    engine = engine_of(drafter, prefix_cache_bytes=0)
    return engine.generate([CASES[number].request()])["alone"]


def collect(engine: LLMEngine, coming: Iterator[list[int]]) -> dict[str, list[int]]:
    """Answers of all cases; `coming` says which of them come before each step."""
    found: dict[str, list[int]] = {}
    while (new := next(coming, None)) is not None or engine.has_unfinished_requests:
        for number in new or ():
            engine.add_request(CASES[number].request(str(number)))
        for output in engine.step():
            found.setdefault(output.request_id, []).extend(output.token_ids)
    return found


def arrivals(seed: int) -> Iterator[list[int]]:
    rng = np.random.default_rng(seed)
    waiting = rng.permutation(len(CASES)).tolist()
    while waiting:
        count = int(rng.integers(0, 4))
        yield waiting[:count]
        del waiting[:count]


@pytest.mark.parametrize(
    ("drafter", "prefixes"),
    by_tier(
        product(("prompt_lookup", "assistant", "auto", "sparse_self", None), (False, True)),
        [("prompt_lookup", False), ("assistant", True)],
    ),
)
def test_every_answer_under_load_is_that_of_the_request_alone(drafter: str | None, prefixes: bool) -> None:
    want = {str(number): alone(number, drafter) for number in range(len(CASES))}
    for seed, chunk in enumerate((16, 100)):
        engine = engine_of(drafter, max_num_batched_tokens=chunk, prefix_cache_bytes=prefixes * 2**30)
        assert collect(engine, arrivals(seed)) == want
        assert not engine.num_requests_running and not engine.kv_cache_usage


@pytest.mark.parametrize("drafter", by_tier(["prompt_lookup", "assistant"], ["assistant"]))
def test_a_full_cache_preempts_the_youngest_and_loses_nothing(drafter: str) -> None:
    def requests() -> list[Request]:
        """Short prompts with long answers: they are admitted with room for the prompts, and grow."""
        found = []
        for number, case in enumerate(CASES[:7]):
            request = replace(case, options={**case.options, "max_new_tokens": 80}).request(str(number))
            request.prompt_token_ids = request.prompt_token_ids[: 20 + number]
            found.append(request)
        return found

    want = {}
    for request in requests():
        want |= engine_of(drafter, prefix_cache_bytes=0).generate([request])
    target = family("llama").target
    engine = engine_of(drafter, cache_bytes=9 * target.cache.block_bytes, max_num_seqs=5)
    assert engine.generate(requests()) == want
    assert engine.num_preemptions > 0 and engine.kv_cache_usage == 0.0
    engine_of()  # without the limit, for other tests


@pytest.mark.parametrize(
    ("drafter", "verify"),
    by_tier(
        product([None, "prompt_lookup"], VERIFY),
        [("prompt_lookup", "dense"), (None, SPARSE), ("prompt_lookup", COMMIT)],
    ),
)
def test_six_requests_with_a_cache_for_two(drafter: str | None, verify: Any) -> None:
    """What a preempted request wrote by sparse passes is read densely: a lossy text may change then."""

    def request(number: int) -> Request:
        asked = Case(number, {"max_new_tokens": 60}, verify).request(str(number))
        asked.prompt_token_ids = asked.prompt_token_ids[: 20 + number]
        return asked

    want = {}
    for number in range(6):
        want |= engine_of(drafter, prefix_cache_bytes=0).generate([request(number)])
    engine = engine_of(drafter, cache_bytes=7 * family("llama").target.cache.block_bytes)
    found = engine.generate([request(number) for number in range(6)])
    assert engine.num_preemptions > 0 and engine.kv_cache_usage == 0.0
    if verify is SPARSE:
        assert [len(answer) for answer in found.values()] == [60] * 6
        assert sum(found[name] == want[name] for name in want) >= 6 - engine.num_preemptions
    else:
        assert found == want
    engine_of()  # without the limit, for other tests


@pytest.mark.parametrize(
    ("verify", "drafts"), by_tier(product(VERIFY, [1, 5, 63]), [("dense", 63), (SPARSE, 5), (COMMIT, 1)])
)
def test_a_prompt_that_can_never_fit_is_refused_and_an_answer_ends_where_the_cache_is_full(
    verify: Any, drafts: int
) -> None:
    def requests() -> list[Request]:
        asked = settings_of(ignore_eos=True, max_new_tokens=200, num_assistant_tokens=drafts)
        return [Request(str(length), [1, 2] * (length // 2), asked, verify) for length in (40, 34, 32, 62)]

    want = engine_of(prefix_cache_bytes=0).generate(requests())
    engine = engine_of(cache_bytes=2 * family("llama").target.cache.block_bytes)
    with pytest.raises(ValueError, match="the KV cache room for 64 with an answer: cache_size"):
        engine.add_request(Request("long", [1] * 64, settings_of()))
    outputs: list[RequestOutput] = []
    for request in requests():
        engine.add_request(request)
    while engine.has_unfinished_requests:
        outputs += engine.step()
    ends = {output.request_id: output.finish_reason for output in outputs if output.finished}
    assert set(ends.values()) == {GenerationFinishReason.LENGTH} and engine.kv_cache_usage == 0.0
    for name, tokens in want.items():
        answer = [token for output in outputs if output.request_id == name for token in output.token_ids]
        assert len(answer) == 64 - int(name)
        assert answer == tokens[: len(answer)] or verify is SPARSE  # what is read again is read densely
    engine_of()  # without the limit, for other tests


def test_an_aborted_request_is_freed_before_the_next_step() -> None:
    want = alone(1, "prompt_lookup")
    for steps in (0, 1, 4):
        engine = engine_of(prefix_cache_bytes=0)
        engine.add_request(CASES[3].request("gone"))
        engine.add_request(CASES[1].request("stays"))
        stays: list[int] = []
        for _ in range(steps):
            stays += [t for output in engine.step() if output.request_id == "stays" for t in output.token_ids]
        engine.abort("gone")
        engine.abort("never was")
        first, *rest = engine.step()
        assert (first.request_id, first.finish_reason) == ("gone", GenerationFinishReason.STOP)
        assert engine.num_requests_running == 1
        stays += [token for output in rest for token in output.token_ids]
        while engine.has_unfinished_requests:
            stays += [token for output in engine.step() for token in output.token_ids]
        assert stays == want and not engine.kv_cache_usage


def test_a_prompt_is_read_from_where_others_have_read_it() -> None:
    prompt, want = family("llama").prompts[0], alone(0, "assistant")
    engine = engine_of("assistant")
    family("llama").target.blocks.forget()
    outputs: dict[str, list[RequestOutput]] = {"first": [], "beside": [], "later": []}
    engine.add_request(CASES[0].request("first"))
    engine.add_request(CASES[0].request("beside"))
    for name in ("beside", "later"):
        while engine.has_unfinished_requests:
            for output in engine.step():
                outputs[output.request_id].append(output)
        if name == "beside":
            engine.add_request(CASES[0].request("later"))
    cached = [some[-1].metrics.num_cached_tokens for some in outputs.values()]
    whole = (len(prompt) - 1) // engine.target.block_size * engine.target.block_size
    assert cached == [0, whole, whole] and whole > 0
    for some in outputs.values():
        assert [token for output in some for token in output.token_ids] == want
    assert engine.target.blocks.hits >= 2 * whole


def test_what_sparse_passes_wrote_is_shared_with_nobody() -> None:
    family("llama").target.blocks.forget()
    engine = engine_of("prompt_lookup")
    lossy = engine.generate([Case(3, verify=SPARSE).request("lossy")])["lossy"]
    prompt = family("llama").prompts[3]
    follows = Request("follows", [*prompt, *lossy, 1], settings_of())
    fresh = engine_of("prompt_lookup", prefix_cache_bytes=0)
    want = fresh.generate([Request("fresh", [*prompt, *lossy, 1], settings_of())])["fresh"]
    engine = engine_of("prompt_lookup")
    engine.generate([Case(3, verify=SPARSE).request("lossy")])
    assert engine.generate([follows])["follows"] == want


@pytest.mark.parametrize("verify", ["dense", COMMIT], ids=["dense", "commit"])
def test_log_probabilities_and_writers_of_accepted_drafts_are_the_targets(verify: Any) -> None:
    def outputs(drafter: str | None, verify: Any) -> list[RequestOutput]:
        engine, request = engine_of(drafter), Case(0, verify=verify).request()
        request.logprobs = 3
        engine.add_request(request)
        found = []
        while engine.has_unfinished_requests:
            found += engine.step()
        return found

    plain, drafted = outputs(None, "dense"), outputs("prompt_lookup", verify)
    want, got = ([entry for output in some for entry in output.logprobs] for some in (plain, drafted))
    assert [entry.logprob for entry in got] == pytest.approx([entry.logprob for entry in want])
    assert [[token for token, _ in entry.top] for entry in got] == [
        [token for token, _ in entry.top] for entry in want
    ]
    assert all(entry.logprob == entry.top[0][1] for entry in got)  # greedy
    writers = [writer for output in drafted for writer in output.writers]
    metrics = drafted[-1].metrics
    assert len(writers) == len(got) == 24 and {"corrected", "target"} <= set(writers)
    assert {w for output in plain for w in output.writers} == {"target"}
    if verify == "dense":
        assert writers.count("draft") == metrics.num_accepted_tokens > 0
        assert writers.count("corrected") <= metrics.num_drafts
        assert metrics.num_accepted_tokens == sum(metrics.num_accepted_tokens_per_pos)
    assert not metrics.is_lossy


@pytest.fixture
def rows_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModelRunner], list[int]]:
    """Rows of every pass of a runner from now on."""

    def watch(runner: ModelRunner) -> list[int]:
        rows, forward = list[int](), runner.forward
        monkeypatch.setattr(
            runner, "forward", lambda b: (rows.append(sum(len(r.tokens) for r in b)), forward(b))[1]
        )
        return rows

    return watch


@pytest.mark.parametrize(("drafter", "most"), [(None, 3), (None, 24), ("assistant", 40), ("assistant", 64)])
def test_a_pass_has_no_more_rows_than_allowed(
    rows_of: Callable[[ModelRunner], list[int]], drafter: str | None, most: int
) -> None:
    """Chunks of prompts, drafts and plain steps together."""
    want = {str(number): alone(number, drafter) for number in (0, 1, 2, 4, 6, 7)}
    engine = engine_of(drafter, max_num_batched_tokens=most)
    rows = rows_of(engine.target)
    assert collect(engine, iter([[0, 1, 2], [], [], [4, 6, 7]])) == want
    assert most / 2 < max(rows) <= most


@pytest.mark.parametrize("rows", [1, 20, 200])
def test_warming_up_leaves_nothing_behind(rows_of: Callable[[ModelRunner], list[int]], rows: int) -> None:
    engine = engine_of("assistant", max_num_batched_tokens=rows)
    passes = rows_of(engine.target), rows_of(engine.drafter.runner)
    engine.warm_up()
    assert passes == ([rows], [rows])
    for blocks in (engine.target.blocks, engine.drafter.runner.blocks):
        assert blocks.usage == 0
    assert engine.generate([CASES[0].request()])["alone"] == alone(0, "prompt_lookup")


@pytest.mark.slow
def test_commits_of_many_requests_do_not_share_a_pass_that_is_too_large(
    rows_of: Callable[[ModelRunner], list[int]],
) -> None:
    """Their rows have logits, which take memory; a pass has those of other requests beside them."""
    most = 64
    engine = engine_of("prompt_lookup", max_num_batched_tokens=most)
    rows = rows_of(engine.target)
    late = CommitVerify(SPARSE, interval=MAX_INTERVAL)
    cases = [Case(n, {"max_new_tokens": 70, "ignore_eos": True}, late) for n in range(5)]
    want = [engine.generate([replace(case, verify="dense").request()])["alone"] for case in cases]
    rows.clear()
    assert list(engine.generate([c.request(str(n)) for n, c in enumerate(cases)]).values()) == want
    assert MAX_INTERVAL + 1 < max(rows) <= most + MOST_SAMPLED < len(cases) * (MAX_INTERVAL + 1)


class CountedSchedule(Schedule):
    """Counts the steps that it is asked for and told of."""

    def __init__(self) -> None:
        self.asked = self.told = 0

    def plan(self, state: StepState) -> Plan:
        self.asked += 1
        return Plan(5)

    def observe(self, outcome: StepOutcome) -> None:
        self.told += 1


@pytest.mark.parametrize(
    ("drafter", "verify", "hears"),
    [(None, "dense", False), (None, COMMIT, True), ("prompt_lookup", "dense", True)],
)
def test_a_schedule_hears_of_steps_with_a_choice_alone(drafter: str | None, verify: Any, hears: bool) -> None:
    schedule, engine = CountedSchedule(), engine_of(drafter)
    request = Case(3, verify=verify).request()
    assert engine.generate([replace(request, schedule=schedule)])["alone"] == alone(3, None)
    assert (schedule.asked > 0, schedule.told > 0) == (hears, hears)


def test_a_mode_that_the_graph_was_not_built_for_is_refused() -> None:
    engine = LLMEngine(family("llama").stock, None)
    with pytest.raises(ValueError, match="graph selects nothing"):
        engine.check(Case(0, verify=SPARSE).request())
    engine.add_request(Case(0).request("twice"))
    with pytest.raises(ValueError, match="request_id='twice' runs already"):
        engine.add_request(Case(0).request("twice"))


@pytest.mark.parametrize("number", by_tier([0, 2, 3, 6, 7], [2, 3]))
def test_an_answer_goes_on_in_another_engine(number: int) -> None:
    whole, case = alone(number, "prompt_lookup"), CASES[number]
    for cut in {0, 1, len(whole) // 2, len(whole) - 1}:
        rest = replace(case.request(), answered=whole[:cut])
        assert engine_of().generate([rest])["alone"] == whole[cut:]


@pytest.mark.parametrize("count", [24, 30])
def test_an_answer_that_is_complete_already_is_refused(count: int) -> None:
    request = replace(Case(0).request(), answered=[5] * count)
    with pytest.raises(ValueError, match=f"answered: {count} tokens, but the answer may have 24 at most"):
        engine_of().add_request(request)


@pytest.mark.parametrize("length", [40, 41])
def test_a_prompt_that_fills_all_positions_is_refused(length: int) -> None:
    engine = LLMEngine(family("llama").target, None, max_model_len=40)
    settings = settings_of(max_new_tokens=4)
    with pytest.raises(ValueError, match=f"the prompt has {length} tokens, the model 40 positions"):
        engine.add_request(Request("long", [1] * length, settings))
    assert engine.check(Request("short", [1] * 38, settings)) == 2

"""A fault ends the request that it belongs to; all others get the answers that they get alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import openvino as ov
import pytest
from drafters.own_drafters import SPARSE
from engine.test_llm_engine import COMMIT, engine_of, settings_of
from families import _SHAPES, family
from safetensors import safe_open
from settings import F32
from tiers import by_tier

from ovspec.drafters import AssistantDrafter, PromptLookupDrafter, UserDrafter
from ovspec.drafters.prompt_lookup import as_text, lookup
from ovspec.engine.engine_thread import EngineThread
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request, RequestOutput
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec.sampling.logits_processors import LogitsProcessor
from ovspec.schedule.controller import AutoSchedule
from ovspec.schedule.schedule import StepOutcome
from ovspec_models.synthetic import build_model

MODES: dict[str, Any] = {"dense": "dense", "sparse": SPARSE, "commit": COMMIT}
NUMBERS = (0, 1, 2, 4, 5)
POISON = 53  # a token that no answer has: its embedding is made not a number


def request(number: int, mode: str, **options: Any) -> Request:
    prompt = [token for token in family("llama").prompts[number] if token != POISON]
    return Request(str(number), prompt, settings_of(**options), MODES[mode], logprobs=2)


def ended(engine: LLMEngine, requests: Sequence[Request]) -> dict[str, list[RequestOutput]]:
    for one in requests:
        engine.add_request(one)
    found: dict[str, list[RequestOutput]] = {name: [] for name in engine._states}
    while engine.has_unfinished_requests:
        for output in engine.step():
            found[output.request_id].append(output)
    assert not engine.num_requests_running and not engine.kv_cache_usage
    assert all(outputs[-1].finished for outputs in found.values())
    return found


def tokens(outputs: Sequence[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


@functools.cache
def alone(number: int, mode: str, drafter: str | None) -> list[int]:
    return engine_of(drafter, prefix_cache_bytes=0).generate([request(number, mode)])[str(number)]


def check_others(found: dict[str, list[RequestOutput]], mode: str, drafter: str | None) -> None:
    for number in NUMBERS:
        assert found[str(number)][-1].error is None
        assert tokens(found[str(number)]) == alone(number, mode, drafter)


@pytest.mark.parametrize(
    ("drafter", "mode"),
    by_tier(
        product(["assistant", None], MODES),
        [("assistant", "commit"), (None, "dense"), ("assistant", "sparse")],
    ),
)
def test_a_row_that_fails_ends_its_request_only(mode: str, drafter: str | None) -> None:
    """A stop token that the model does not have, which min_new_tokens can't suppress."""
    bad = request(6, mode, min_new_tokens=20, stop_token_ids={999}, ignore_eos=True)
    found = ended(engine_of(drafter), [request(0, mode), bad, *(request(n, mode) for n in NUMBERS[1:])])
    (last,) = found["6"]
    assert isinstance(last.error, ValueError) and "id 999" in str(last.error)
    check_others(found, mode, drafter)


@functools.cache
def poisoned(reader: str = "Gather") -> ModelRunner:
    """The target with an embedding that is not a number; with `MatMul` the weights of a logit."""
    model = build_model(_SHAPES["llama"], "fp32", seed=1)
    (table,) = (
        node
        for node in model.get_ops()
        if node.get_type_name() == "Constant"
        and list(node.output(0).shape) == [61, 64]
        and any(to.get_node().get_type_name() == reader for to in node.output(0).get_target_inputs())
    )
    values = np.array(table.data)
    values[POISON] = np.nan
    table.output(0).replace(ov.opset13.constant(values).output(0))
    return ModelRunner(model, backends=Backends.resolve(model, "CPU", F32, AttentionConfig(selects=True)))


@pytest.mark.parametrize("mode", ["dense", "sparse"])
def test_logits_that_are_not_numbers_end_their_request_only(mode: str) -> None:
    """Also behind it: what it wrote into the cache is overwritten, or never read."""
    engine = LLMEngine(poisoned(), PromptLookupDrafter(), max_num_batched_tokens=100)
    bad = request(6, mode)
    bad.prompt_token_ids = [POISON, *bad.prompt_token_ids, POISON]
    for prefix in (0, 2**30):
        engine.target.limit_cache(None, prefix)
        for _ in range(2):
            found = ended(engine, [bad, *(request(number, mode) for number in NUMBERS)])
            assert "logits must be finite" in str(found["6"][-1].error) and not tokens(found["6"])
            check_others(found, mode, "prompt_lookup")


@pytest.mark.parametrize("tree", [{}, {"tree_depth": 3, "branching_factor": 2}], ids=["chain", "tree"])
@pytest.mark.parametrize("sampling", [{}, {"do_sample": True, "rng_seed": 3}], ids=["greedy", "sampled"])
def test_a_draft_that_is_not_a_number_costs_no_answer(tree: dict[str, Any], sampling: dict[str, Any]) -> None:
    def requests() -> list[Request]:
        return [request(number, "dense", **tree, **sampling) for number in NUMBERS]

    want = engine_of(None, prefix_cache_bytes=0).generate(requests())
    engine = LLMEngine(family("llama").target, AssistantDrafter(poisoned("MatMul"), 61, 32))
    for some in (requests()[:1], requests()):
        for name, outputs in ended(engine, some).items():
            assert outputs[-1].error is None and tokens(outputs) == want[name]
            assert not outputs[-1].metrics.num_draft_tokens


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Passes of a runner fail that a test names, before they are computed or after.

    By their rows, and by how many passes of several sequences there have been.
    """

    def breaks(runner: ModelRunner, fails: Callable[[int, Sequence[Rows]], bool], late: bool) -> list[int]:
        forward, failed, shared = runner.forward, list[int](), 0

        def failing(batch: Sequence[Rows]) -> Any:
            nonlocal shared
            shared += len(batch) > 1
            result = forward(batch) if late else None
            if fails(shared, batch):
                failed.append(len(batch))
                raise MemoryError("no room")
            return forward(batch) if result is None else result

        monkeypatch.setattr(runner, "forward", failing)
        return failed

    return breaks


@pytest.mark.parametrize(
    ("drafter", "mode", "late"),
    by_tier(
        product(["assistant", None], MODES, [False, True]),
        [
            ("assistant", "dense", False),
            (None, "dense", True),
            ("assistant", "sparse", True),
            ("assistant", "commit", True),
        ],
    ),
)
def test_a_pass_that_fails_is_blamed_on_nobody(
    broken: Callable[..., list[int]], drafter: str | None, mode: str, late: bool
) -> None:
    """Every third pass of several requests, chunks of prompts, commits and drafts among them."""
    want = [alone(number, mode, drafter) for number in NUMBERS]
    engine = engine_of(drafter, prefix_cache_bytes=0)
    runners = [engine.target, *([engine.drafter.runner] if drafter else [])]
    failed = [broken(one, lambda count, batch: len(batch) > 1 and count % 3 == 0, late) for one in runners]
    found = ended(engine, [request(number, mode) for number in NUMBERS])
    assert [tokens(found[str(number)]) for number in NUMBERS] == want and all(map(any, failed))
    assert not any(output.error for outputs in found.values() for output in outputs)


def test_a_row_of_a_commit_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without drafts only commits have several rows."""
    engine, bad = engine_of(None), request(6, "commit")
    engine.add_request(bad)
    (state,) = engine._states.values()
    forward, sequence = engine.target.forward, state.sequence.target

    def spoiling(batch: Sequence[Rows]) -> Any:
        result, begin = forward(batch), 0
        for rows in batch:
            if rows.sequence is sequence and rows.sampled > 1:
                result.logits[begin] = np.nan
            begin += rows.sampled
        return result

    monkeypatch.setattr(engine.target, "forward", spoiling)
    found = ended(engine, [request(number, "commit") for number in NUMBERS])
    assert "logits must be finite" in str(found["6"][-1].error)
    check_others(found, "commit", None)


@pytest.mark.parametrize("leaves", [False, True], ids=["commits", "is aborted"])
def test_provisional_tokens_that_a_processor_does_not_give_back(
    monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """Its request fails, or ends as it was told; its blocks are free, and the others go on."""
    engine, bad = engine_of("prompt_lookup", prefix_cache_bytes=0), request(6, "commit")
    engine.add_request(bad)
    (state,) = engine._states.values()
    rollback, failed = LogitsProcessor.rollback, list[int]()

    def failing(processor: LogitsProcessor, count: int) -> None:
        if processor is state.sequence.processor:
            failed.append(count)
            raise RuntimeError("it can't go back")
        rollback(processor, count)

    monkeypatch.setattr(LogitsProcessor, "rollback", failing)
    while leaves and not state.sequence.provisional:
        engine.step()
    if leaves:
        engine.abort("6")
    found = ended(engine, [request(number, "commit") for number in NUMBERS])
    assert failed and bool(found["6"][-1].error) is not leaves
    check_others(found, "commit", "prompt_lookup")


@pytest.mark.parametrize("late", [False, True])
def test_a_schedule_learns_nothing_of_commits_that_fail(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[..., list[int]], late: bool
) -> None:
    """They took no time, and costs of nothing made later requests fail."""
    auto = {"num_assistant_tokens_schedule": "auto", "num_assistant_tokens": 4}
    engine, fails, seen = engine_of("prompt_lookup", prefix_cache_bytes=0), True, list[StepOutcome]()
    observe = AutoSchedule.observe
    monkeypatch.setattr(AutoSchedule, "observe", lambda own, step: [seen.append(step), observe(own, step)])
    failed = broken(
        engine.target,
        lambda _, batch: fails and all(rows.is_dense and rows.sampled > 1 for rows in batch),
        late,
    )
    for _ in range(4):
        (last,) = ended(engine, [request(6, "commit", **auto)])["6"][-1:]
        assert isinstance(last.error, MemoryError)
    assert len(failed) >= 4 and seen and not any(one.commit for step in seen for one in step.sequences)
    fails = False
    found = ended(engine, [request(number, "commit", **auto) for number in NUMBERS])
    check_others(found, "commit", "prompt_lookup")


@pytest.mark.parametrize("mode", MODES)
def test_who_fails_alone_is_at_fault(broken: Callable[..., list[int]], mode: str) -> None:
    engine, bad = engine_of("prompt_lookup"), request(6, mode)
    engine.add_request(bad)
    (state,) = engine._states.values()
    most, sequence = len(bad.prompt_token_ids) + 9, state.sequence.target
    broken(
        engine.target,
        lambda _, batch: any(rows.sequence is sequence and rows.context > most for rows in batch),
        False,
    )
    found = ended(engine, [request(number, mode) for number in NUMBERS])
    assert isinstance(found["6"][-1].error, MemoryError)
    check_others(found, mode, "prompt_lookup")


def no_such_state() -> None:
    raise KeyError("no such state")


def panic() -> None:
    """An error of a library in Rust, which is no `Exception`."""
    safe_open("\ud800", "np")


class Refuses:
    """A user's drafter that fails for one text."""

    def __init__(self, text: list[int], fail: Callable[[], None]) -> None:
        self._text, self._fail = text, fail

    def propose(self, context: list[int], k: int) -> tuple[list[int], None, None]:
        if context[: len(self._text)] == self._text and len(context) > len(self._text) + 4:
            self._fail()
        return lookup(as_text(context), 3, k)[0], None, None


@pytest.mark.parametrize(
    ("mode", "fail", "kind"),
    [*((mode, no_such_state, KeyError) for mode in MODES), ("dense", panic, RuntimeError)],
)
def test_a_drafter_that_fails_for_one_text(
    mode: str, fail: Callable[[], None], kind: type[Exception]
) -> None:
    bad = request(6, mode)
    target = engine_of().target
    engine = LLMEngine(
        target, UserDrafter(Refuses(list(bad.prompt_token_ids), fail), 61), max_num_batched_tokens=128
    )
    found = ended(engine, [request(0, mode), bad, *(request(n, mode) for n in NUMBERS[1:])])
    assert isinstance(found["6"][-1].error, kind) and found["6"][-1].metrics.num_drafts > 0
    assert tokens(found["6"]) == alone(6, mode, "prompt_lookup")[: len(tokens(found["6"]))]
    check_others(found, mode, "prompt_lookup")


def test_an_interrupt_loses_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of()
    thread, add = EngineThread(engine), engine.add_request
    handles = [thread.run([request(number, "dense")]) for number in (0, 1)]
    errors: list[BaseException] = [KeyboardInterrupt()]

    def interrupted(one: Request) -> None:
        if errors:
            raise errors.pop()
        add(one)

    monkeypatch.setattr(engine, "add_request", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(handles[0])
    handles[0].abort()
    assert tokens(list(handles[1])) == alone(1, "dense", None) and thread.is_idle

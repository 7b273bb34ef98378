"""What is wrong with what came of a list of requests."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hunts.caches import runners
from hunts.soak_faults import IN_PASS, ROW_FAULTS
from hunts.soak_models import ROOMY, Alone, pipeline
from hunts.soak_requests import Ask, Asked, Load
from hunts.soak_run import Outcome, Run
from openvino_genai import GenerationFinishReason

from ovspec.generation.inputs import encode

_LENGTHS = ("max_new_tokens", "min_new_tokens")


@dataclass(frozen=True)
class Problem:
    """What is wrong: its kind, which stays the same while requests are left out, and a description."""

    kind: str
    text: str


def problems(run: Run, alone: Alone) -> list[Problem]:
    """What is wrong with a run that has ended; counts what was compared in `run.counts`."""
    found = [*_held(run)]
    for number, (asked, outcome) in enumerate(zip(run.load.requests, run.outcomes, strict=True)):
        run.counts["requests"] += 1
        run.counts["tokens"] += len(outcome.tokens)
        if asked.fault:
            run.counts["faults"] += 1
        if outcome.error is not None:
            if wrong := _why_wrong_error(run.load, asked, outcome, alone):
                found.append(Problem("error", f"request {number}: {wrong}"))
            run.counts["refused" if outcome.refused else "failed"] += 1
        elif asked.fault not in ROW_FAULTS and (wrong := _difference(run, asked, outcome, alone)):
            found.append(Problem("answer", f"request {number} of {run.load.model}: {wrong}"))
    return found


def _held(run: Run) -> Iterator[Problem]:
    """Blocks and requests that are left though nothing runs."""
    engine = run.made.engine.engine
    if engine.has_unfinished_requests or not run.made.engine.is_idle:
        yield Problem("left", "the engine has requests though all have ended")
    for runner, before in zip(runners(engine), run.held_before, strict=True):
        if (left := runner.blocks.num_held - before) > 0:
            yield Problem("left", f"{left} blocks are held by nobody")


def _why_wrong_error(load: Load, asked: Asked, outcome: Outcome, alone: Alone) -> str:
    """Why a request should not have got its error; empty where it should."""
    error = outcome.error
    message = f"{type(error).__name__}: {error}"
    if error is not None and (where := traceback.extract_tb(error.__traceback__)):
        message += f" ({Path(where[-1].filename).name}:{where[-1].lineno})"
    if asked.fault or (load.fault_at and IN_PASS in message):
        return ""
    if load.cache_tokens is not None and "cache" in message:
        ids = encode(pipeline(load.model).get_tokenizer(), asked.ask.prompt)
        answer = len(alone.answer(load.model, asked.ask, asked.verify).tokens)
        room = load.cache_tokens // 32 * 32
        # Sparse answers have another length than dense ones.
        if len(ids) + answer > room or asked.verify == "sparse":
            return ""
        return f"{message}, though prompt and answer have {len(ids)} + {answer} tokens"
    return message


def _difference(run: Run, asked: Asked, outcome: Outcome, alone: Alone) -> str:
    """How an answer differs from the one alone; empty where it does not, or where nothing is promised."""
    if outcome.text is not None:
        expected = alone.text(run.load.model, _cut(asked.ask, _room(run, asked)))
        run.counts["compared"] += 1
        same = expected.startswith(outcome.text) if outcome.aborted else outcome.text == expected
        return "" if same else f"{outcome.text!r} instead of {expected!r}"
    sparse = asked.verify == "sparse"
    if sparse and (asked.drafts.get("num_assistant_tokens") != 0 or run.load.cache_tokens is not None):
        run.counts["lossy"] += 1
        return ""
    right = alone.answer(run.load.model, asked.ask, asked.verify)
    run.counts["left early" if outcome.aborted else "compared"] += 1
    length, reason = len(right.tokens), right.reason
    if outcome.aborted:
        length = len(outcome.tokens)
    elif run.load.cache_tokens is not None:
        most = _room(run, asked)
        if most < length:
            length, reason = most, GenerationFinishReason.LENGTH
    if outcome.tokens != right.tokens[:length]:
        return f"tokens {outcome.tokens} instead of {right.tokens}"
    known = length * (1 + 2 * (asked.ask.logprobs or 0)) if asked.ask.logprobs is not None else 0
    if outcome.logprobs != right.logprobs[:known]:
        return f"log probabilities {list(outcome.logprobs)} instead of {list(right.logprobs)}"
    if not outcome.aborted and outcome.reason != reason:
        return f"ended by {outcome.reason.name} instead of {reason.name}"
    return ""


def _room(run: Run, asked: Asked) -> int:
    """The most tokens of an answer: it ends where it fills the cache with its prompt."""
    if run.load.cache_tokens is None:
        return ROOMY
    prompt = encode(pipeline(run.load.model).get_tokenizer(), asked.ask.prompt)
    return run.load.cache_tokens // 32 * 32 - len(prompt)


def _cut(ask: Ask, most: int) -> Ask:
    """The same, for so many tokens at most."""
    limits = {name: min(ask.options[name], most) for name in _LENGTHS if name in ask.options}
    return replace(ask, options={**ask.options, **limits})

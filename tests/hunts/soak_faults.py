"""Faults that the soak injects: in a row, in a user's drafter, in a whole pass, in a client's callback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ovspec.engine.requests.request import RequestOutput
from ovspec.generation.generation_config import GenerationSettings
from ovspec.runner.model_runner import ModelRunner

#: Settings that raise in the middle of an answer, or make its logits NaN; a stop token that does not exist; a
#: callback that raises.
ROW_FAULTS = ("raises", "nan", "stop id", "callback")
#: A user's drafter that raises for some sequences, or proposes what can't be; prompts begin with these words.
DRAFTER_FAULTS = ("Drafter raises", "Drafter lies")
IN_PASS = "injected: the pass failed"


class Poisoned:
    """Parameters of sampling that fail in the middle of an answer."""

    def __init__(self, params: Any, fault: str, after: int) -> None:
        self._params, self._fault, self._left = params, fault, after

    def __getattr__(self, name: str) -> Any:
        if name == "repetition_penalty" and self._fault == "nan" and self._left <= 0:
            return float("nan")
        return getattr(self._params, name)

    @property
    def penalises(self) -> bool:
        """Asked for every row."""
        self._left -= 1
        if self._left > 0:
            return bool(self._params.penalises)
        if self._fault == "raises":
            raise RuntimeError("injected: a logits processor failed")
        return True


def poisoned(settings: GenerationSettings, fault: str, after: int) -> GenerationSettings:
    """The settings with a fault of a row."""
    params: Any = Poisoned(settings.sampling, fault, after)
    return replace(settings, sampling=params)


def options_with(fault: str, options: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    """Options of a configuration with the fault that lies in them, if it does."""
    if fault != "stop id":
        return options
    least = max(1, options.get("min_new_tokens", 0))
    return {**options, "stop_token_ids": [vocab_size], "ignore_eos": True, "min_new_tokens": least}


def raise_in_callback(output: RequestOutput) -> None:
    """A client's callback that fails."""
    raise RuntimeError("injected: a callback failed")


@contextmanager
def failing_pass(runner: ModelRunner, number: int) -> Iterator[None]:
    """Let pass `number` of a runner fail once, counted from here; 0: none."""
    left, forward = number, runner.forward

    def counted(batch: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise RuntimeError(IN_PASS)
        return forward(batch)

    if number:
        runner.forward = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        runner.__dict__.pop("forward", None)

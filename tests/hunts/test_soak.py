"""The soak finds a wrong answer, and leaves out of the requests what it does not need."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hunts.soak_judge import problems
from hunts.soak_models import Alone, Answer
from hunts.soak_requests import Ask, Asked, Load, random_asks, random_load
from hunts.soak_run import Run
from hunts.soak_shrink import shrink


class Wrong(Alone):
    """Says that the right answer to one prompt has another last token."""

    def answer(self, model: str, ask: Ask, verify: str) -> Answer:
        right = super().answer(model, ask, verify)
        if ask.prompt != "Once":
            return right
        wrong = Answer()
        wrong.tokens, wrong.reason = [*right.tokens[:-1], 4095], right.reason
        return wrong


@pytest.mark.parametrize("model", ["prompt_lookup", "own"])
def test_a_wrong_answer_is_found_among_others(model: str) -> None:
    options = {"max_new_tokens": 6, "ignore_eos": True, "apply_chat_template": False}
    asked = [
        Asked(Ask(prompt, options), {"num_assistant_tokens": 3}) for prompt in ("Tom", "Once", "One day")
    ]
    run = Run(Load(model, tuple(asked), cache_tokens=256))
    run.run()
    assert problems(run, Alone()) == []
    found = problems(run, Wrong())
    assert [problem.kind for problem in found] == ["answer"] and "request 1" in found[0].text


def test_a_list_shrinks_to_the_request_at_fault(tmp_path: Path) -> None:
    rng = Random(1)
    asks = random_asks(rng, 20)
    loads = (random_load(rng, "own", asks, faults=True) for _ in range(100))
    load = next(load for load in loads if len([one for one in load.requests if one.fault == "nan"]) == 1)
    found = shrink(load, lambda smaller: any(one.fault == "nan" for one in smaller.requests), 60.0)
    (left,) = found.requests
    assert left.fault == "nan" and not left.drafts and left.leaves is None and left.verify == "dense"
    assert left.ask.options.keys() <= {"max_new_tokens", "apply_chat_template", "rng_seed"}
    assert not found.threads and found.cache_tokens is None
    found.write(tmp_path / "found.json", "nan")
    assert Load.read(tmp_path / "found.json") == found

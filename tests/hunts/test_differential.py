"""`make differential` draws what transformers accepts, and its switches are those of the configurations."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hunts.differential_cases import FAMILIES, Case, random_case
from hunts.differential_check import differences, export
from hunts.differential_switches import SWITCHES
from tiny_checkpoints import TINY

transformers = pytest.importorskip("transformers", reason="needs ovspec[export]")


@pytest.mark.parametrize("family", SWITCHES)
def test_switches_are_the_configurations_own(family: str) -> None:
    """A name that a configuration does not have is kept by it without a word, and without a use."""
    tiny = TINY[family]
    kind = getattr(transformers, tiny.config)
    known, before = vars(kind()), kind(**tiny.sizes)
    for switch in SWITCHES[family]:
        assert {*switch} <= {*known}, switch
        after = kind(**{**tiny.sizes, **switch})
        assert any(getattr(after, name) != getattr(before, name) for name in switch), switch


def test_every_family_is_drawn_and_taken() -> None:
    refused = {}
    drawn = [random_case(Random(f"cases {number}")) for number in range(800)]
    assert {case.family for case in drawn} == {*FAMILIES}
    for case in drawn:
        try:
            getattr(transformers, case.tiny.config)(**case.tiny.sizes)
        except Exception as error:
            refused[case.family] = (case.sizes, str(error))
    assert not refused


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_texts_that_grow_past_the_limit_of_long_rope_differ_in_nothing(weights: str, tmp_path: Path) -> None:
    """One of the prompts is shorter than the limit, and its text longer."""
    case, counts = Case("Phi-3", {}, weights, ()), Counter[str]()
    assert not differences(case, export(case, tmp_path), tmp_path / "ir", counts)
    assert counts["tokens"] == 72

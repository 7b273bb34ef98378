"""`make differential` draws what transformers accepts, and its switches are those of the configurations."""

from __future__ import annotations

from random import Random

import pytest
from hunts.differential_cases import FAMILIES, random_case
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

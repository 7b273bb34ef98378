"""Fixtures of the operations' tests: the installed package, one instruction set at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tiers import by_tier

from ovspec_ops import loader

ISAS = (
    "amx",
    "avx512vnni",
    "avx512",
    "avx2vnni",
    "avx2",
    "avx512tiles",
    "avx2x16",
    "avx2dot",
    "plain",
)


def runnable() -> list[str]:
    """Instruction sets that the library holds and this processor runs, those for tests included."""
    return loader.available_isas() + loader.isas_for_tests()


# `make test`: one for each kind of integer kernel, plain C++, and the one that this processor takes.
FIRST = ("amx", "avx512vnni", "avx2vnni", "plain", loader.available_isas()[0])


@pytest.fixture(params=by_tier(ISAS, FIRST))
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set in turn."""
    if request.param not in runnable():
        pytest.skip(f"the library does not hold {request.param}, or this processor cannot run it")
    before = loader.active_isa()
    loader.set_isa(request.param)
    yield request.param
    loader.set_isa(before)

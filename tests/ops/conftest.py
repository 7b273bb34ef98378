"""Fixtures of the operations' tests: the installed package, one instruction set at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ovspec_ops import loader

ISAS = ("amx", "avx512vnni", "avx512", "avx2vnni", "avx2", "avx2x16", "avx2dot", "plain")
LOWERED = ("avx2x16", "avx2dot")  # other instruction sets' code, lowered to AVX2


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set in turn."""
    needs = "avx2" if request.param in LOWERED else request.param
    if needs not in loader.available_isas():
        pytest.skip(f"this processor lacks {needs}")
    before = loader.active_isa()
    loader.set_isa(request.param)
    yield request.param
    loader.set_isa(before)

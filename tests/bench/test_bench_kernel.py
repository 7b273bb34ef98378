"""`ovspec bench kernel`: figures for every setting, and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from ovspec.bench.kernel import KernelBench
from ovspec.cli import cli
from ovspec_ops import loader

SMALL = {
    "contexts": (40,), "tokens": (2,), "sequences": 1, "heads": 4, "kv_heads": 2, "head_size": 16,
    "precision": "u8", "quant_mode": "BY_TOKEN", "isas": (), "repeat": 1,
}  # fmt: skip


@pytest.mark.parametrize("precision", ["f32", "f16", "bf16", "u8"])
@pytest.mark.parametrize("quant_mode", ["BY_TOKEN", "BY_CHANNEL"])
def test_every_setting_is_timed(precision: str, quant_mode: str) -> None:
    settings: dict[str, Any] = SMALL | {"precision": precision, "quant_mode": quant_mode, "tokens": (1, 3)}
    timings = KernelBench(
        **settings,
    ).run()
    assert [(t.context, t.tokens, t.isa) for t in timings] == [(40, n, loader.active_isa()) for n in (1, 3)]
    assert all(t.ms > 0 and t.gb_s > 0 and t.gmac_s > 0 for t in timings)
    assert timings[1].multiply_adds == 2 * 3 * 4 * 40 * 16
    row = {"f32": 64, "f16": 32, "bf16": 32, "u8": 24}[precision]
    keys = 2 * 2 * 40 * 16 if (precision, quant_mode) == ("u8", "BY_CHANNEL") else 2 * 2 * 32 * row
    assert timings[0].cache_bytes == keys + 2 * 2 * 32 * row


def test_sequences_have_a_context_each() -> None:
    one, three = (KernelBench(**(SMALL | {"sequences": count})).run()[0] for count in (1, 3))
    assert (three.cache_bytes, three.multiply_adds) == (3 * one.cache_bytes, 3 * one.multiply_adds)


@pytest.mark.slow
def test_command_prints_json_for_the_instruction_sets_asked_for() -> None:
    before = loader.active_isa()
    arguments = ["bench", "kernel", "--context", "64", "--tokens", "2", "--head-size", "8", "--isa", "plain"]
    result = CliRunner().invoke(cli, [*arguments, "--repeat", "1", "--json"], catch_exceptions=False)
    (record,) = json.loads(result.output)["records"]
    assert record["isa"] == "plain" and record["ms"] > 0
    assert loader.active_isa() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"contexts": (8, 8)}, "--context 8,8: expected each once"),
        ({"tokens": (2, 1, 2)}, "--tokens 2,1,2: expected each once"),
        ({"isas": ("avx2", "avx2")}, "--isa avx2,avx2: expected each once"),
        ({"contexts": (0,)}, "--context 0: expected at least 1"),
        ({"tokens": (65,)}, "--tokens 65: expected at most 64"),
        ({"sequences": 0}, "--sequences 0: expected at least 1"),
        ({"heads": 3}, "--heads 3: expected a multiple of --kv-heads 2"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_bad_values_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KernelBench(**(SMALL | change))


def test_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(RuntimeError, match="is 'sse', which is no instruction set"):
        KernelBench(**(SMALL | {"isas": ("sse",)})).run()

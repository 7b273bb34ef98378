"""NumPy reference of the steps of DecoderLayers that draft, and of the runs of their program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.decoder_layers.sampling import SAMPLING
from ovspec_ops.verify_attention.tables import pack_tables, unpack_tables

Array = NDArray[Any]
Known = Mapping[str, Array]

_NUMBERS = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}
_SIGNS = {"u8": 0, "i8": 0x80}
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def embedding(operands: Sequence[Array], settings: Mapping[str, str], widths: Sequence[int]) -> list[Array]:
    """The row of each token; zeros where there is none (-1)."""
    ids, data, *of_integers = operands
    count, fmt = int(settings["ids"]), settings["format"]
    stored = data.reshape(count, -1)[ids]
    if fmt in _NUMBERS:
        numbers = stored.view(_NUMBERS[fmt])
        if fmt == "bf16":
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        rows = numbers.astype(np.float64)
    else:
        groups = int(settings["groups"])
        scales = of_integers[0][: 2 * count * groups].view(np.float16).reshape(count, groups, 1)
        zero_points = of_integers[1][: count * groups].reshape(count, groups, 1)
        integers = (stored ^ np.uint8(_SIGNS[fmt])).reshape(len(ids), groups, -1).astype(np.float64)
        rows = ((integers - zero_points[ids]) * scales[ids].astype(np.float64)).reshape(len(ids), -1)
    return [np.where(ids[:, np.newaxis] < 0, 0.0, rows)]


def take(operands: Sequence[Array], settings: Mapping[str, str], widths: Sequence[int]) -> list[Array]:
    """The rows that an input names."""
    rows, named = operands
    return [rows[named]]


def choose(operands: Sequence[Array], settings: Mapping[str, str], widths: Sequence[int]) -> list[Array]:
    """The token of each row; -1 where there is none, or none is asked for."""
    logits, plan, given, *_ = operands
    found = logits[:, : plan[0]]
    if not found.size:
        return [np.full(len(logits), -1, np.int32)]
    tokens = found.argmax(axis=1)
    for row, sampling in enumerate(given.view(SAMPLING)[: len(found)]):
        if sampling["temperature"] > 0 and np.isfinite(found[row].max()):
            tokens[row] = drawn(found[row], sampling)
    return [np.where(np.isfinite(found.max(axis=1)), tokens, -1).astype(np.int32)]


def drawn(logits: NDArray[np.floating], sampling: np.void) -> int:
    """The token x with the smallest E(x) / p(x); p follows by top_k, temperature, min_p and top_p."""
    ids = np.argsort(-logits, kind="stable")
    if 0 < sampling["top_k"] < len(ids):
        ids = ids[: sampling["top_k"]]
    scaled = (logits[ids].astype(np.float32) - np.float32(logits.max())) / sampling["temperature"]
    weights = np.exp(scaled.astype(np.float64))
    kept = weights.astype(np.float32) >= sampling["min_p"]
    if sampling["top_p"] < 1:
        kept &= np.cumsum(weights) - weights <= sampling["top_p"] * weights.sum()
    ids, weights = ids[kept], weights[kept]
    position = np.array([sampling["position"] + 1], np.uint64)
    key = _mixed(sampling["key"] + position * _GOLDEN)
    uniform = (_mixed((ids.astype(np.uint64) + np.uint64(1)) * _GOLDEN + key) >> np.uint64(11)) + 0.5
    with np.errstate(divide="ignore"):
        race = -np.log(uniform * 2.0**-53) / weights
    return int(ids[race == race.min()].min())


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64; arrays wrap."""
    bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = bits ^ bits >> np.uint64(31)
    return mixed


def runs(
    given: Known, steps: Sequence[str], rows: Sequence[str], run: Callable[[Known], dict[str, Array]]
) -> dict[str, Array]:
    """What a program has made behind its last run: one, or of a draft one for each token.

    Args:
        given: its inputs.
        steps: its lines.
        rows: names of those inputs that are rows.
        run: the lines with these inputs.
    """
    lines = {line.partition(" = ")[2].split()[0]: line for line in steps}
    if "choose" not in lines:
        return run(given)
    (ids, *_), (_, sampled), (_, plan, sampling, slots, tables) = (
        _operands(lines[name]) for name in ("embedding", "take", "choose")
    )
    tokens = lines["choose"].partition(":")[0]
    made, chosen, first = dict[str, Array](), list[Array](), 0
    for number, count in enumerate(given[plan][1:].tolist()):
        own = {name: given[name][first : first + count] for name in (*rows, slots)}
        if number:
            own |= {ids: chosen[-1][:count], sampled: np.arange(count)}
            own[tables] = _behind(given[tables], number, count)
            own[sampling] = given[sampling].copy()
            own[sampling].view(SAMPLING)["position"] += number
        found = run({**given, **own})
        chosen.append(found[tokens])
        # A run writes over the rows of the one before.
        made = {name: _over(array, made.get(name)) for name, array in found.items() if name not in given}
        first += count
    assert all(len(given[name]) == first for name in (*rows, slots))
    table = np.full((len(chosen), len(chosen[0])), -1, np.int32)
    for row, of_run in zip(table, chosen, strict=True):
        row[: len(of_run)] = of_run
    return made | {tokens: table}


def _operands(line: str) -> list[str]:
    return [word for word in line.partition(" = ")[2].split()[1:] if "=" not in word]


def _over(array: Array, before: Array | None) -> Array:
    if before is None or array.ndim != before.ndim or len(array) >= len(before):
        return array
    return np.concatenate([array, before[len(array) :]])


def _behind(tables: NDArray[np.int32], run: int, rows: int) -> NDArray[np.int32]:
    """`verify_tables` of a run of one row behind each of the first sequences."""
    begins, past, block_begins, _, blocks = unpack_tables(tables)
    past = past[:rows] + np.diff(begins)[:rows] + np.int32(run - 1)
    ends = block_begins[: rows + 1]
    return pack_tables(np.arange(rows + 1, dtype=np.int32), past, blocks[: ends[-1]], ends)

"""NumPy reference of DecoderLayers: a program, line by line, in f64 between the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.cache_write.reference import cache_write
from ovspec_ops.linear.layout import packed_shape
from ovspec_ops.linear.reference import linear
from ovspec_ops.verify_attention.reference import verify_attention
from ovspec_ops.verify_attention.tables import unpack_tables

VERSION = "ovspec layers 1"

Array = NDArray[Any]
Settings = Mapping[str, str]
Widths = Sequence[int]


def rms(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """x / sqrt(mean of x^2 + eps) * weights, for every `size` values of a row."""
    x, data = operands
    size = int(settings["size"])
    weights = data[: 4 * size].view(np.float32)
    parts = x.astype(np.float64).reshape(len(x), -1, size)
    root = np.sqrt((parts**2).mean(axis=-1, keepdims=True) + float(settings["eps"]))
    return [(parts / root * weights).reshape(x.shape)]


def products(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """Linear: the panels of all outputs lie one behind the other."""
    x, data = operands
    fmt, groups = settings["format"], int(settings["groups"])
    shapes = [packed_shape(width, x.shape[1], groups, fmt) for width in widths]
    panels, size = sum(count for count, _ in shapes), shapes[0][1]
    packed = data[: panels * size].reshape(panels, size)
    return list(linear(x.astype(np.float32), packed, widths, fmt, groups))


def rope(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """x * cos + turned x * sin, for every part of a row that is as long as cos."""
    x, cos, sin = operands
    parts = x.astype(np.float64).reshape(len(x), -1, cos.shape[1])
    first, second = np.split(parts, 2, axis=-1)
    turned = np.concatenate([-second, first], axis=-1)
    return [(parts * cos[:, None] + turned * sin[:, None]).reshape(x.shape)]


def write(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """CacheWrite, in place."""
    key, value, key_cache, value_cache, slots = operands
    rows = key.astype(np.float32), value.astype(np.float32)
    key_cache[...], value_cache[...] = cache_write(rows[0], rows[1], key_cache, value_cache, slots)
    return [np.zeros((len(key), 0))]


def attention(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """VerifyAttention."""
    query, keys, values, _, tables, *selection = operands
    heads: dict[str, Any] = {
        name: int(settings[name]) for name in ("kv_heads", "k_size", "v_size", "sliding_window")
    }
    nothing = np.zeros((len(query), widths[0]), np.float32)
    begins, past, block_begins, parents, blocks = unpack_tables(tables)
    none = np.zeros((heads["kv_heads"], 0), np.int32)
    blocks_read, counts, sinks = selection or (none, none, np.zeros(0, np.float32))
    tables_ = (begins, past, blocks, block_begins, blocks_read, counts, sinks, parents)
    rows, scale = query.astype(np.float32), float(settings["scale"])
    return [verify_attention(rows, keys, values, nothing, *tables_, scale=scale, **heads)]


def add(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """a + b."""
    return [operands[0].astype(np.float64) + operands[1]]


def silu_multiply(operands: Sequence[Array], settings: Settings, widths: Widths) -> list[Array]:
    """silu(a) * b."""
    a = operands[0].astype(np.float64)
    with np.errstate(over="ignore"):
        return [a / (1 + np.exp(-a)) * operands[1]]


STEPS: dict[str, Callable[[Sequence[Array], Settings, Widths], list[Array]]] = {
    "rms": rms,
    "linear": products,
    "rope": rope,
    "cache_write": write,
    "attention": attention,
    "add": add,
    "silu_multiply": silu_multiply,
}


def decoder_layers(program: str, inputs: Sequence[Any]) -> list[Array]:
    """The outputs of a program, f64 `[rows, width]` each; caches among the inputs are written in place.

    Args:
        inputs: in the order of the program; in place of a table of addresses a list of caches.
    """
    version, *lines = program.splitlines()
    assert version == VERSION
    known: dict[str, Any] = {}
    for line in lines:
        left, _, right = line.partition(" = ")
        if line.startswith("input "):
            known = {
                word.partition(":")[0]: array for word, array in zip(line.split()[1:], inputs, strict=True)
            }
        elif line.startswith("output "):
            return [known[name] for name in line.split()[1:]]
        else:
            name, *words = right.split()
            settings = dict(word.split("=") for word in words if "=" in word)
            operands = [_operand(known, word) for word in words if "=" not in word]
            outputs = [word.split(":") for word in left.split()]
            found = STEPS[name](operands, settings, [int(width) for _, width in outputs])
            known |= {rows: array for (rows, _), array in zip(outputs, found, strict=True)}
    raise AssertionError("the program has no line of outputs")


def _operand(known: Mapping[str, Any], word: str) -> Array:
    name, _, first = word.partition("@")
    table, _, entry = word.partition("#")
    found: Array = known[table][int(entry)] if entry else known[name]
    return found[int(first) :] if first else found

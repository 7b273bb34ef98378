"""DecoderLayers against its reference, and against the operations that its steps compute with."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ops.caches import BLOCK
from ops.compare import assert_close
from ops.passes import compile_op, evaluate, infer
from ops.properties import examples

from ovspec_ops import loader, step_times
from ovspec_ops.decoder_layers.reference import VERSION, decoder_layers
from ovspec_ops.linear.layout import PANEL, pack_linear, packed_shape
from ovspec_ops.verify_attention import pack_tables

# Hidden size, heads, KV heads, head size, channels: with every odd tail, and a real one.
SIZES = [(24, 3, 1, 8, 40), (72, 6, 2, 24, 56), (136, 4, 4, 40, 200), (576, 9, 3, 64, 1536)]

# What rows see in the layers.
_SIGHTS = ("20", "0", "0 past_window=9", "0 past_window=21 causal=0")


class Layers:
    """A program of decoder layers with random weights, and the inputs of a pass.

    Args:
        by_address: whether caches are read by a table of addresses.

    Attributes:
        caches: f32, of keys and of values of each layer.
    """

    def __init__(
        self,
        sizes: tuple[int, int, int, int, int],
        rows: int = 3,
        past: int = 37,
        layers: int = 2,
        fmt: str = "u8",
        row_bits: int = 32,
        seed: int = 0,
        by_address: bool = False,
    ) -> None:
        self._rng, self._fmt, self._bits = np.random.default_rng(seed), fmt, row_bits
        self._seed = seed
        self._weights = list[NDArray[np.uint8]]()
        self._bytes = 0
        hidden, heads, self.kv_heads, size, channels = sizes
        self.size, self.rows = size, rows
        self._names = [f"x:{hidden}", f"cos:{size}", f"sin:{size}", "slots", "tables"]
        blocks = -(-(past + rows) // BLOCK)
        table = self._rng.permutation(blocks + 2)[:blocks].astype(np.int32)
        angles = np.arange(past, past + rows)[:, None] * self._rng.uniform(0.01, 1, size // 2)
        angles = np.concatenate([angles, angles], axis=1)
        at = np.arange(past, past + rows)
        self.inputs: list[NDArray[Any]] = [
            self._rng.standard_normal((rows, hidden)).astype(np.float32),
            np.cos(angles).astype(np.float32),
            np.sin(angles).astype(np.float32),
            (table[at // BLOCK] * BLOCK + at % BLOCK).astype(np.int32),
            pack_tables(
                *(np.array(v, np.int32) for v in ([0, rows], [past])), table, np.array([0, blocks], np.int32)
            ),
        ]
        lines, shape = list[str](), (blocks + 2, self.kv_heads, BLOCK, size)
        self.caches = [self._rng.standard_normal(shape).astype(np.float32) for _ in range(2 * layers)]
        self._by_address = by_address
        if by_address:
            addresses = [cache.ctypes.data for cache in self.caches]
            self.inputs.append(np.array([blocks + 2, *addresses], np.int64).view(np.uint8))
            self._names.append("caches")
        for layer in range(layers):
            if not by_address:
                self.inputs += self.caches[2 * layer : 2 * layer + 2]
                self._names += [f"k{layer}", f"v{layer}"]
            lines += self._layer(layer, hidden, heads * size, self.kv_heads * size, channels)
        self.inputs.append(np.concatenate(self._weights))
        self._names.append("w")
        self.program = "\n".join(
            [VERSION, "input " + " ".join(self._names), *lines, f"output q0 x{layers - 1}"]
        )

    def _layer(self, n: int, hidden: int, query: int, key: int, channels: int) -> list[str]:
        before = "x" if n == 0 else f"x{n - 1}"
        heads = f"kv_heads={self.kv_heads} k_size={self.size} v_size={self.size}"
        keys, values, kind = f"k{n}", f"v{n}", ""
        if self._by_address:
            keys, values, kind = f"caches#{2 * n}", f"caches#{2 * n + 1}", " cache_type=f32"
        scale = f"scale={self.size**-0.5:.9g} sliding_window={_SIGHTS[(n + self._seed) % len(_SIGHTS)]}"
        return [
            f"n{n}:{hidden} = rms {before} {self._norm(hidden)} size={hidden} eps=1e-05",
            f"q{n}:{query} k_{n}:{key} v_{n}:{key} = linear n{n} {self._linear(hidden, query, key, key)}",
            f"qn{n}:{query} = rms q{n} {self._norm(self.size)} size={self.size} eps=1e-06",
            f"qr{n}:{query} = rope qn{n} cos sin",
            f"kr{n}:{key} = rope k_{n} cos sin",
            f"c{n}:0 = cache_write kr{n} v_{n} {keys} {values} slots {heads}{kind}",
            f"a{n}:{query} = attention qr{n} {keys} {values} c{n} tables {heads} {scale}{kind}",
            f"o{n}:{hidden} = linear a{n} {self._linear(query, hidden)}",
            f"y{n}:{hidden} = add {before} o{n}",
            f"m{n}:{hidden} = rms y{n} {self._norm(hidden)} size={hidden} eps=1e-05",
            f"g{n}:{channels} u{n}:{channels} = linear m{n} {self._linear(hidden, channels, channels)}",
            f"h{n}:{channels} = silu_multiply g{n} u{n}",
            f"d{n}:{hidden} = linear h{n} {self._linear(channels, hidden)}",
            f"x{n}:{hidden} = add y{n} d{n}",
        ]

    def _place(self, data: NDArray[Any]) -> str:
        first, data = self._bytes, data.view(np.uint8).ravel()
        padded = np.full(-(-len(data) // 64) * 64, 0xA5, np.uint8)
        padded[: len(data)] = data
        self._weights.append(padded)
        self._bytes += len(padded)
        return f"w@{first}"

    def _norm(self, size: int) -> str:
        return self._place(self._rng.uniform(0.5, 1.5, size).astype(np.float32))

    def _linear(self, inputs: int, *outputs: int) -> str:
        groups = 1 if self._fmt == "u8" else inputs // 8
        top = 256 if self._fmt == "u8" else 16
        parts = []
        for out in outputs:
            values = self._rng.integers(0, top, (out, inputs)).astype(np.uint8)
            scales = (self._rng.uniform(0.5, 1.5, (out, groups)) / top / inputs**0.5).astype(np.float16)
            zeros = self._rng.integers(0, top, (out, groups)).astype(np.uint8)
            parts.append(pack_linear(values, scales, zeros, self._fmt))
        assert parts[0].shape == packed_shape(outputs[0], inputs, groups, self._fmt), PANEL
        place = self._place(np.concatenate(parts))
        return f"{place} format={self._fmt} groups={groups} row_bits={self._bits}"

    def reference(self) -> list[NDArray[Any]]:
        """What it should compute; caches are written in place."""
        pairs = zip(self._names, self.inputs, strict=True)
        return decoder_layers(self.program, [self.caches if name == "caches" else x for name, x in pairs])

    @property
    def tensors(self) -> dict[str, ov.Tensor]:
        pairs = zip(self._names, self.inputs, strict=True)
        return {name: ov.Tensor(array, shared_memory=True) for name, array in pairs}

    def outputs(self) -> list[NDArray[Any]]:
        """What the operation computes; caches are written in place."""
        return evaluate("DecoderLayers", self.tensors, {"program": self.program})


@pytest.mark.parametrize(
    ("sizes", "fmt", "by_address"),
    [(SIZES[0], "u8", False), (SIZES[1], "u4", True), (SIZES[2], "u8", True), (SIZES[3], "u4", False)],
)
def test_layers_against_the_reference(
    isa: str, sizes: tuple[int, int, int, int, int], fmt: str, by_address: bool
) -> None:
    made, same = (Layers(sizes, fmt=fmt, rows=5, by_address=by_address) for _ in range(2))
    want = made.reference()
    got = same.outputs()
    for name, reference, found in zip(("query", "rows"), want, got, strict=True):
        assert_close(name, reference, found, 2e-5)
    for mine, theirs in zip(made.caches, same.caches, strict=True):
        assert_close("cache", mine, theirs, 2e-5)


@examples(6)
@given(data=st.data())
def test_random_layers(isa: str, data: st.DataObject) -> None:
    kv_heads, size = data.draw(st.integers(1, 3)), 8 * data.draw(st.integers(1, 6))
    sizes = (
        8 * data.draw(st.integers(1, 20)), kv_heads * data.draw(st.integers(1, 4)), kv_heads, size,
        8 * data.draw(st.integers(1, 30)),
    )  # fmt: skip
    rows, past = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 100))
    options = {"fmt": data.draw(st.sampled_from(["u8", "u4"])), "by_address": data.draw(st.booleans())}
    made, same = (Layers(sizes, rows, past, layers=1, seed=past, **options) for _ in range(2))
    for reference, found in zip(made.reference(), same.outputs(), strict=True):
        assert_close("rows", reference, found, 2e-5)


@pytest.mark.parametrize("row_bits", [8, 16, 32])
def test_padding_rows_leave_results_unchanged(isa: str, row_bits: int) -> None:
    """And the plugin's threads."""
    alone, many = (Layers(SIZES[1], rows, past=0, row_bits=row_bits) for rows in (1, 19))
    alone.inputs[0][...] = many.inputs[0][:1]
    for name in (1, 2):
        alone.inputs[name][...] = many.inputs[name][:1]
    alone.inputs[-1][...] = many.inputs[-1]
    together = many.outputs()
    for row, rows in zip(alone.outputs(), together, strict=True):
        np.testing.assert_array_equal(row[0], rows[0])
    compiled = compile_op("DecoderLayers", many.tensors, {"program": many.program})
    for rows, threaded in zip(together, infer(compiled, many.tensors), strict=True):
        np.testing.assert_array_equal(rows, threaded)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (VERSION, "ovspec layers 2", "begins with 'ovspec layers 2'"),
        (" = add x o0", " = subtract x o0", "step 'subtract'"),
        (" = add x o0", " = add x o9", "reads 'o9', which nothing before it writes"),
        ("y0:24", "y0:x", "'x' in the line"),
        ("m0:24 =", "n0:24 =", "written twice"),
        ("y0:24 = add x", "y0:16 = add x", "joins rows of 24 and 16"),
        ("eps=1e-05", "eps=", "is no number"),
        (" size=24", "", "lacks size="),
        ("= rope qn0 cos", "= rope qn0 slots", "operand 1"),
        ("output q0", "output x", "output 'x' is an input"),
        ("format=u8", "format=u3", "format is 'u3'"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_line(old: str, new: str, message: str) -> None:
    made = Layers(SIZES[0], layers=1)
    assert old in made.program
    made.program = made.program.replace(old, new, 1)
    with pytest.raises((ValueError, RuntimeError), match=message):
        made.outputs()


def test_steps_are_timed_where_somebody_asks() -> None:
    made = Layers(SIZES[0], layers=2)
    kinds = {line.partition(" = ")[2].split()[0] for line in made.program.splitlines() if " = " in line}
    with step_times() as found:
        made.outputs()
        assert not found
    assert found.keys() == kinds and all(found.values())
    made.outputs()
    assert loader._native().ovspec_end_step_times() == b""


def test_caches_that_a_table_does_not_have() -> None:
    made = Layers(SIZES[0], layers=1, by_address=True)
    made.inputs[5] = made.inputs[5][:-8]
    with pytest.raises((ValueError, RuntimeError), match="holds 16 bytes, fewer than the 24"):
        made.outputs()
    made.inputs[5] = np.zeros(24, np.uint8)
    with pytest.raises((ValueError, RuntimeError), match=r"expected a slot below the 0 of the caches"):
        made.outputs()


def test_weights_behind_the_end_of_their_slab() -> None:
    made = Layers(SIZES[0], layers=1)
    made.inputs[-1] = made.inputs[-1][:-64]
    with pytest.raises((ValueError, RuntimeError), match=r"holds \d+ bytes, fewer than"):
        made.outputs()

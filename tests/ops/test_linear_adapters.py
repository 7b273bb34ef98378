"""What LoRA adapters add to Linear, chosen row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ops.compare import assert_close
from ops.passes import evaluate
from ops.properties import examples
from ops.test_decoder_layers import SIZES
from ops.test_decoder_layers import Layers as DecoderLayers
from ops.test_linear import Layers, reference, tolerance

from ovspec_ops.linear.adapters import AdapterTable, LayerProducts, LowRank, row_addresses
from ovspec_ops.linear.reference import Products, adapted

FORMS = (("u8", 1, 8), ("u4", 1, 16), ("u8", 1, 32), ("f32", 1, 32), ("bf16", 1, 16))


class Adapters:
    """Adapters for layers of the same inputs, one with layers of its own for each request.

    Args:
        ranks: of each request the ranks of each layer's products; `None`: a request without adapters.
    """

    def __init__(
        self,
        inputs: int,
        sizes: Sequence[int],
        ranks: Sequence[Sequence[Sequence[int]] | None],
        seed: int = 0,
        strength: float = 1.0,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.products: list[list[Products] | None] = []
        self.tables: list[AdapterTable | None] = []
        for of_request in ranks:
            if of_request is None:
                self.products.append(None)
                self.tables.append(None)
                continue
            layers: list[Any] = []
            for size, of_layer in zip(sizes, of_request, strict=True):
                shapes = [((rank, inputs), (size, rank)) for rank in of_layer]
                layers.append(
                    [
                        (
                            rng.standard_normal(a).astype(np.float32),
                            rng.standard_normal(b).astype(np.float32),
                            float(strength * rng.uniform(-1, 1) / (inputs * a[0]) ** 0.5),
                        )
                        for a, b in shapes
                    ]
                )
            self.products.append(layers)
            parts = [
                {
                    number: (among_nan(LowRank.pack(*of[part][:2])), of[part][2])
                    for number, of in enumerate(layers)
                    if part < len(of)
                }
                for part in range(max(map(len, layers)) or 1)
            ]
            self.tables.append(AdapterTable(len(sizes), [(LayerProducts(part), 1.0) for part in parts]))

    def rows(self, counts: Sequence[int]) -> NDArray[np.uint8]:
        return row_addresses(self.tables, counts)

    def of_rows(self, counts: Sequence[int]) -> list[list[Products] | None]:
        pairs = zip(self.products, counts, strict=True)
        return [products for products, count in pairs for _ in range(count)]


def among_nan(product: LowRank) -> LowRank:
    """The same numbers in memory where all before and behind them are NaN."""

    def apart(array: NDArray[np.float32]) -> NDArray[np.float32]:
        memory = np.full(array.size + 64, np.nan, np.float32)
        inner = memory[32 : 32 + array.size].reshape(array.shape)
        inner[...] = array
        return inner

    return LowRank(apart(product.a), apart(product.b))


def run(layers: Layers, hidden: NDArray[np.float32], of: Adapters, counts: Sequence[int]) -> list[Any]:
    tensors = layers.tensors(hidden) | {"adapters": ov.Tensor(of.rows(counts))}
    numbers = list(range(len(layers.sizes)))
    return evaluate("Linear", tensors, {**layers.attributes, "adapter_layers": numbers})


@pytest.mark.parametrize(("fmt", "groups", "row_bits"), FORMS)
@examples(12)
@given(data=st.data())
def test_random_adapters(isa: str, fmt: str, groups: int, row_bits: int, data: st.DataObject) -> None:
    inputs = data.draw(st.integers(1, 300) | st.sampled_from([511, 512, 1000]))
    sizes = [*data.draw(st.lists(st.integers(1, 70), max_size=2)), data.draw(st.integers(32, 150))]
    of_layer = st.lists(st.integers(1, 40), max_size=2)
    request = st.none() | st.lists(of_layer, min_size=len(sizes), max_size=len(sizes))
    ranks = data.draw(st.lists(request, min_size=1, max_size=4))
    counts = [data.draw(st.integers(1, 9) | st.sampled_from([40, 300])) for _ in ranks]
    seed = data.draw(st.integers(0, 2**31))
    layers, of = Layers(inputs, sizes, fmt, groups, row_bits, seed), Adapters(inputs, sizes, ranks, seed)
    hidden = layers.rows(sum(counts), seed + 1)
    got = run(layers, hidden, of, counts)
    want = adapted(hidden, reference(layers, hidden), of.of_rows(counts), range(len(sizes)))
    together = [np.concatenate(outputs, axis=1) for outputs in (want, got)]
    assert_close("outputs", together[0], together[1], tolerance(row_bits, fmt))


@pytest.mark.parametrize(("fmt", "groups", "row_bits"), FORMS)
def test_rows_of_requests_do_not_change_each_other(isa: str, fmt: str, groups: int, row_bits: int) -> None:
    """Bit by bit: rows without adapters as in a graph without, all rows as alone."""
    layers = Layers(200, (70, 33, 128), fmt, groups, row_bits)
    ranks = [None, [[8], [], [3, 5]], [[16], [4], [1]], None]
    counts, of = [3, 5, 300, 1], Adapters(200, layers.sizes, ranks)
    hidden = layers.rows(sum(counts))
    together, plain = run(layers, hidden, of, counts), layers.run(hidden)
    begin = 0
    for index, count in enumerate(counts):
        alone = Adapters(200, layers.sizes, ranks)
        alone.tables = alone.tables[index : index + 1]
        for some in {1, count}:
            got = run(layers, hidden[begin : begin + some], alone, [some])
            for output, all_rows, without in zip(got, together, plain, strict=True):
                np.testing.assert_array_equal(output, all_rows[begin : begin + some])
                same = np.array_equal(output, without[begin : begin + some])
                assert same == (ranks[index] is None) or output.shape[1] == 33
        begin += count


def test_a_step_of_decoder_layers_takes_adapters(isa: str) -> None:
    """The line of q, k and v; a row of two has an adapter."""

    def made(with_adapters: bool) -> tuple[DecoderLayers, list[Any]]:
        layers = DecoderLayers(SIZES[1], rows=2, layers=1, row_bits=32)
        widths = [144, 48, 48]
        of = Adapters(72, widths, [None, [[8], [2], [5]]], strength=3)
        if with_adapters:
            layers.program = layers.program.replace(" w\n", " w adapters\n", 1)
            line = next(line for line in layers.program.splitlines() if line.startswith("q0:144 k_0"))
            changed = line.replace(" format=", " adapters format=") + " adapter_layers=0,1,2"
            layers.program = layers.program.replace(line, changed)
            layers.inputs.append(of.rows([1, 1]))
            layers._names.append("adapters")
        return layers, [of.of_rows([1, 1]), of]

    (same, (products, held)), (plain, _) = made(True), made(False)
    got = same.outputs()
    reference_of, _ = made(True)
    reference_of.inputs[-1] = products
    for want, found in zip(reference_of.reference(), got, strict=True):
        assert_close("rows", want, found, 2e-5)
    without = plain.outputs()
    for found, other in zip(got, without, strict=True):
        np.testing.assert_array_equal(found[0], other[0])
        assert not np.array_equal(found[1], other[1])
    same.inputs[-1] = held.rows([1, 0])
    with pytest.raises((ValueError, RuntimeError), match="adapters of 1 rows, expected 2"):
        same.outputs()


def test_what_does_not_fit_is_refused() -> None:
    layers = Layers(64, (40, 24))
    of = Adapters(64, (40,), [[[3]]])
    hidden = layers.rows(2)
    tensors = layers.tensors(hidden) | {"adapters": ov.Tensor(of.rows([2]))}
    with pytest.raises((ValueError, RuntimeError), match="adapter_layers holds 1 numbers, expected one of"):
        evaluate("Linear", tensors, {**layers.attributes, "adapter_layers": [0]})
    with pytest.raises((ValueError, RuntimeError), match="hold 1 layers for row 0, not the number 1"):
        run(layers, hidden, of, [2])

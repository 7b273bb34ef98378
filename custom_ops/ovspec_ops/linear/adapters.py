"""LoRA adapters in the form in which Linear reads them: products of low rank, chosen row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ovspec_ops.linear.layout import PANEL


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """B (A x), in the memory that the operation reads.

    Attributes:
        a: f32 `[rank, inputs]`.
        b: f32 `[panels, rank, 32]`, zeros behind the last output.
    """

    a: NDArray[np.float32]
    b: NDArray[np.float32]

    @classmethod
    def pack(cls, a: NDArray[np.floating], b: NDArray[np.floating]) -> LowRank:
        """Pack A `[rank, inputs]` and B `[outputs, rank]`."""
        outputs, rank = b.shape
        panels = -(-outputs // PANEL)
        padded = np.zeros((panels * PANEL, rank), np.float32)
        padded[:outputs] = b
        packed = np.ascontiguousarray(padded.reshape(panels, PANEL, rank).transpose(0, 2, 1))
        return cls(np.ascontiguousarray(a, np.float32), packed)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.a.nbytes + self.b.nbytes


class LayerProducts:
    """What one adapter adds to the layers of a model; it holds their memory.

    Args:
        products: of the layers that it adds to, by their numbers, each with its scale.
    """

    def __init__(self, products: Mapping[int, tuple[LowRank, float]]) -> None:
        self._held = products
        of_layers = [products[number] for number in sorted(products)]
        self.layers = np.array(sorted(products), np.int64)
        self.scales = np.array([scale for _, scale in of_layers], np.float64)
        places = [(of.a.ctypes.data, of.b.ctypes.data, len(of.a)) for of, _ in of_layers]
        #: Of each layer the addresses of A and B, and the rank.
        self.places = np.array(places, np.int64).reshape(-1, 3)


class AdapterTable:
    """What the rows of one request add to each layer: products by their addresses.

    Args:
        layers: how many the model has that can have products.
        parts: adapters, each with a factor. Those of a layer are added in this order.
    """

    def __init__(self, layers: int, parts: Sequence[tuple[LayerProducts, float]]) -> None:
        self._held = parts
        numbers = np.concatenate([of.layers for of, _ in parts])
        order = numbers.argsort(kind="stable")
        begins = numbers[order].searchsorted(np.arange(layers + 1))
        scales = np.concatenate([factor * of.scales for of, factor in parts])
        places = np.concatenate([of.places for of, _ in parts])
        products = np.column_stack([places, scales.view(np.int64)])[order]
        self._numbers = np.concatenate([[layers], begins, products.ravel()], dtype=np.int64)
        #: Where the operation finds it, as long as this object is there.
        self.address = int(self._numbers.ctypes.data)


def row_addresses(tables: Sequence[AdapterTable | None], rows: Sequence[int]) -> NDArray[np.uint8]:
    """Input `adapters` u8 `[rows, 8]` of a pass, of so many rows of each table; `None`: rows without any."""
    addresses = np.array([0 if table is None else table.address for table in tables], np.int64)
    return addresses.repeat(rows).view(np.uint8).reshape(-1, 8)

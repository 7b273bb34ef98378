"""LoRA adapters in the form in which Linear reads them: products of low rank, chosen row by row."""

from __future__ import annotations

from collections.abc import Sequence
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


class AdapterTable:
    """What the rows of one request add to each layer: products by their addresses.

    Args:
        layers: of each layer its products, each with its scale.
    """

    def __init__(self, layers: Sequence[Sequence[tuple[LowRank, float]]]) -> None:
        begins, products = [0], list[list[int]]()
        for layer in layers:
            for product, scale in layer:
                bits = int(np.float64(scale).view(np.int64))
                products.append([product.a.ctypes.data, product.b.ctypes.data, len(product.a), bits])
            begins.append(len(products))
        self._numbers = np.array(
            [len(layers), *begins, *(number for of in products for number in of)], np.int64
        )
        self._held = layers  # their memory
        #: Where the operation finds it, as long as this object is there.
        self.address = int(self._numbers.ctypes.data)


def row_addresses(tables: Sequence[AdapterTable | None], rows: Sequence[int]) -> NDArray[np.uint8]:
    """Input `adapters` u8 `[rows, 8]` of a pass, of so many rows of each table; `None`: rows without any."""
    addresses = np.array([0 if table is None else table.address for table in tables], np.int64)
    return addresses.repeat(rows).view(np.uint8).reshape(-1, 8)

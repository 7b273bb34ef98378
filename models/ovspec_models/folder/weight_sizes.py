"""Bytes of the weights of a folder, by how they are held in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ovspec_models.folder.graph_files import graphs_of, weight_bytes
from ovspec_models.folder.ir_facts import IrFacts

_EIGHT_BITS = ("u8", "i8")
_SIGNED = ("i8", "i4")


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Bytes of the weights of the text model, classified by their shapes.

    Attributes:
        total: all weights.
        embedding: an 8-bit table that is only looked up; 0 if the output projection shares it.
        experts: routed experts that SparseMoE reads without a copy: unsigned integers, and numbers of 16 or
            32 bits.
        gates, ups: of gated MLPs, without their scales. Both have one shape, so each counts as half of their
            sum; of products that hold both, as in Phi-3, there are none.
        ffn_values: values of the largest of these matrices.
        ups_stay: whether GatedMLP reads `ups` without a copy.
        largest: of the largest weight.
    """

    total: int
    embedding: int = 0
    experts: int = 0
    gates: int = 0
    ups: int = 0
    ffn_values: int = 0
    ups_stay: bool = False
    largest: int = 0

    @classmethod
    def read(
        cls, folder: Path, vocab_size: int, hidden_size: int, intermediate_size: int, num_experts: int
    ) -> WeightSizes:
        """Read the graphs of a folder; a weight that its shape does not classify counts in `total` only.

        Args:
            vocab_size, hidden_size, intermediate_size, num_experts: of config.json, 0 where it says nothing.
        """
        total = weight_bytes(folder)
        tables: list[tuple[str, int]] = []
        experts = rows = values = largest = 0
        types: set[str] = set()
        for constant in chain.from_iterable(IrFacts.read(graph).constants for graph in graphs_of(folder)):
            kind, shape, size = constant.element_type, constant.shape, constant.bytes
            count = math.prod(shape)
            largest = max(largest, size)
            if num_experts and shape[:1] == (num_experts,) and count > num_experts * hidden_size:
                experts += 0 if kind in _SIGNED else size
            elif shape[:1] == (vocab_size,) and count == vocab_size * hidden_size:
                tables.append((kind, size))
            elif count == intermediate_size * hidden_size and shape[0] == intermediate_size:
                rows, values = rows + size, count
                types.add(kind)
        looked_up = [size for kind, size in tables if kind in _EIGHT_BITS]
        embedding = min(looked_up) if len(tables) > 1 and looked_up else 0
        stay = bool(types) and types <= {"u8", "f16", "f32"}
        return cls(total, embedding, experts, rows // 2, rows - rows // 2, values, stay, largest)

"""Weights of IR that optimum-intel 2.2 has exported; of a DFlash head, the graph that ovspec writes."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ovspec_models.folder.head_info import boundaries_of
from ovspec_models.heads.checkpoint import HeadCheckpoint, NotedWeights, read_config
from ovspec_models.heads.dflash import dflash_graph, dflash_shape
from ovspec_models.heads.ir_modules import module_weights, other_weights
from ovspec_transforms import BLOCK_ROWS
from ovspec_transforms.graph import evaluate

Found = TypeVar("Found")


def open_dflash(model: ov.Model, folder: Path) -> ov.Model:
    """The graph of a folder as `dflash_graph`, with the weights of the IR.

    optimum-intel's graph has inputs for context and block, and a state that each pass extends by the context;
    it can neither be paged nor run for several sequences. Its layers are the same, and so are their weights.

    Args:
        model: of ``openvino_model.xml``.
        folder: for its config.json, and for messages.

    Raises:
        ValueError: a weight is not found, or config.json does not say the sizes.
    """
    if any(BLOCK_ROWS in port.get_names() for port in model.inputs):
        return model
    head = HeadCheckpoint(folder, read_config(folder), NotedWeights())
    shape, boundaries = dflash_shape(head), boundaries_of(head.folder, head.config) or ()
    weights = IrWeights(model, folder, shape.hidden_size, shape.head_dim)
    graph = dflash_graph(shape, weights, len(boundaries) * shape.hidden_size)
    weights.check_all_read()
    return graph


class IrWeights:
    """Weights of an IR as nodes of a graph, by their names in the checkpoint that it was made from.

    Args:
        model: the IR.
        folder: of it, for messages.
        hidden_size: of the rows that stand for the target's.
        head_dim: values of an attention head.
    """

    def __init__(self, model: ov.Model, folder: Path, hidden_size: int, head_dim: int) -> None:
        self._model, self._folder, self._hidden_size = model, folder, hidden_size
        self._sizes, self._read = (hidden_size, head_dim), set[str]()
        self._layers, self._norms = module_weights(model)

    def check_all_read(self) -> None:
        """Refuse an IR with weights that the graph made of it does not hold.

        Raises:
            ValueError: it names the first module of them.
        """
        products = [name for name, node in self._layers.items() if _is_weight(node)]
        # A vector of another size is of rotary positions.
        norms = [name for name, factor in self._norms.items() if len(factor) in self._sizes]
        left = [name for name in (*products, *norms, *other_weights(self._model)) if name not in self._read]
        if left:
            raise ValueError(
                f"'{self._folder}' has weights of {left[0]}, which a DFlash head does not read, and might "
                "draft wrongly without them; take another head"
            )

    def vector(self, name: str, rank: int) -> ov.Node:
        """A norm's weight, f32 ``[1, ..., 1, size]`` of the given rank."""
        values = self._found(self._norms, name)
        return ops.constant(values.reshape((1,) * (rank - 1) + values.shape), name=f"self.{name}")

    def matrix(self, name: str) -> ov.Node:
        """A linear layer's weight, f32 ``[out, in]`` after decompression."""
        if not name.startswith(("layers.", "fc.")):  # stands for the target's
            return ops.constant(np.zeros((1, self._hidden_size), np.float32))
        layer = self._found(self._layers, name)
        weight = layer.input(1).get_source_output().get_node()
        if not layer.get_attributes()["transpose_b"]:
            raise ValueError(f"'{self._folder}': the weight {name} is transposed; export the head again")
        return weight

    def bias(self, name: str) -> None:
        """No layer has one: `check_all_read` refuses IR that has."""

    def _found(self, weights: dict[str, Found], name: str) -> Found:
        module = name.removesuffix(".weight")
        if module not in weights:
            raise ValueError(
                f"'{self._folder}' has no weight {name}; it is no DFlash head as optimum-intel 2.2 exports it"
            )
        self._read.add(module)
        return weights[module]


def _is_weight(product: ov.Node) -> bool:
    """Whether a product is with a constant, and not one of two computed values, as in attention."""
    return evaluate(product.input(1).get_source_output().get_node()) is not None

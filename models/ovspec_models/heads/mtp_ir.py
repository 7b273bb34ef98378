"""An MTP module that optimum-intel 2.2 has exported beside its target, as the checkpoint it was made from.

It writes modules of Qwen3.5's kind, to a file of their own. The graph takes embeddings, ends with the state
that the output layer reads, and holds neither of the target's two layers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov

from ovspec_models.folder.head_info import MTP_IR
from ovspec_models.heads.checkpoint import HeadCheckpoint, NotedWeights, read_config
from ovspec_models.heads.ir_modules import module_weights, other_weights
from ovspec_transforms import last_line
from ovspec_transforms.graph import evaluate


def read_mtp_ir(folder: Path) -> HeadCheckpoint:
    """The weights of the IR by their names in Qwen's checkpoints, f32; compressed ones as they multiply.

    Args:
        folder: with `MTP_IR` and config.json.

    Raises:
        ValueError: a file can't be read, or a weight of the IR is computed.
    """
    try:
        model = ov.Core().read_model(folder / MTP_IR)
    except (RuntimeError, MemoryError, UnicodeDecodeError) as error:
        raise ValueError(
            f"head '{folder}': {MTP_IR} can't be read ({last_line(error)}); export it again"
        ) from error
    if other := other_weights(model):
        raise ValueError(
            f"head '{folder}': {MTP_IR} has the weights {other[0]}, which MTP does not know; take another "
            "head"
        )
    layers, norms = module_weights(model)
    arrays = {
        f"mtp.{name}.weight": factor - 1 for name, factor in norms.items()
    }  # they multiply by 1 + weight
    for name, layer in layers.items():
        weight = evaluate(layer.input(1).get_source_output().get_node())
        if weight is None:
            continue  # a product of two computed values, as in attention
        values = np.array(weight.data, np.float32)
        arrays[f"mtp.{name}.weight"] = values if layer.get_attributes()["transpose_b"] else values.T
    return HeadCheckpoint(folder, read_config(folder), NotedWeights(arrays))

"""A linear layer that LoRA adapters can add to."""

from __future__ import annotations

from dataclasses import dataclass

ADAPTERS = "adapters"


@dataclass(frozen=True, slots=True)
class AdaptedLayer:
    """A linear layer, as the graph names the node of its product.

    Attributes:
        inputs, outputs: values of its rows.
    """

    node: str
    inputs: int
    outputs: int

    @property
    def name(self) -> str:
        """The layer's name in the checkpoint, such as "model.layers.0.self_attn.q_proj"."""
        return self.node.partition("/")[0].removeprefix("__module.")

"""The weight bytes that a pass has to read."""

from __future__ import annotations

from dataclasses import dataclass

import openvino as ov

# Operations between a weight and the operation that uses it: decompression and layout.
_PASS_THROUGH = {"Convert", "Subtract", "Multiply", "Reshape", "Transpose", "Unsqueeze", "Squeeze"}


@dataclass(frozen=True, slots=True)
class WeightTraffic:
    """Bytes of a model's weights, by who reads them.

    Attributes:
        always: what every pass reads whole.
        experts: all routed experts.
        num_experts: of each layer that has some, 0 for a dense model.
        top_k: how many of them a row is routed to.
    """

    always: int
    experts: int = 0
    num_experts: int = 0
    top_k: int = 0

    @classmethod
    def of(cls, model: ov.Model) -> WeightTraffic:
        """Read a stateful model. Tables that are only looked up (token embeddings) do not count."""
        always = experts = num_experts = top_k = 0
        for node in model.get_ordered_ops():
            if node.get_type_name() == "TopK":
                chosen = node.get_output_partial_shape(0)[-1]
                top_k = chosen.get_length() if chosen.is_static else top_k
            if node.get_type_name() != "Constant":
                continue
            users = _users(node)
            stacked = [int(shape[0].get_length()) for kind, shape in users if _is_stack(kind, shape)]
            if stacked:
                experts += int(node.get_byte_size())
                num_experts = max(num_experts, *stacked)
            elif {kind for kind, _ in users} - {"Gather"}:
                always += int(node.get_byte_size())
        return cls(always, experts, num_experts, top_k)

    def read_by(self, rows: int) -> float:
        """Bytes that a pass of `rows` rows reads, if every row chooses its experts at random."""
        if not self.num_experts:
            return float(self.always)
        missed = (1.0 - self.top_k / self.num_experts) ** rows
        return self.always + self.experts * (1.0 - missed)


def _users(constant: ov.Node) -> list[tuple[str, ov.PartialShape]]:
    """Types of the operations that use a constant, or its decompressed form, and the shape they see."""
    found: list[tuple[str, ov.PartialShape]] = []
    pending = [constant]
    while pending:
        for port in pending.pop().output(0).get_target_inputs():
            user = port.get_node()
            if user.get_type_name() in _PASS_THROUGH:
                pending.append(user)
            elif user.get_type_name() != "ShapeOf":
                found.append((user.get_type_name(), port.get_partial_shape()))
    return found


def _is_stack(kind: str, shape: ov.PartialShape) -> bool:
    stacked = (kind == "MatMul" and len(shape) == 3) or (kind == "SparseMoE" and len(shape) >= 3)
    return bool(stacked and shape[0].is_static and shape[0].get_length() > 1)

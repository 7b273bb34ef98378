"""The weight bytes that a pass has to read."""

from __future__ import annotations

import openvino as ov

# A weight reaches its user through its decompression and layout.
_PASS_THROUGH = {"Convert", "Subtract", "Multiply", "Reshape", "Transpose", "Unsqueeze", "Squeeze"}


def read_weight_bytes(model: ov.Model) -> int | None:
    """Bytes of the constants that every pass reads whole.

    Tables that are only looked up (token embeddings) do not count, as a pass reads a few of their rows.

    Returns:
        `None` for a mixture of experts, where the tokens decide which experts are read.
    """
    nodes = model.get_ordered_ops()
    if any(node.get_type_name() == "TopK" for node in nodes):
        return None
    constants = [node for node in nodes if node.get_type_name() == "Constant"]
    return sum(int(node.get_byte_size()) for node in constants if _users(node) - {"Gather"})


def _users(constant: ov.Node) -> set[str]:
    """Types of the operations that use a constant, or its decompressed form, as an operand."""
    found: set[str] = set()
    pending = [constant]
    while pending:
        for port in pending.pop().output(0).get_target_inputs():
            user = port.get_node()
            kind = user.get_type_name()
            if kind in _PASS_THROUGH:
                pending.append(user)
            elif kind != "ShapeOf":
                found.add(kind)
    return found

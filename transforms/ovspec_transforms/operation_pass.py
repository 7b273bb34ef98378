"""Base class of passes that replace a subgraph by a native operation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import openvino as ov

from ovspec_transforms.graph import NodePass, let_read
from ovspec_transforms.weights.expert_weights import UnknownPatternError


class OperationPass(NodePass):
    """Replaces the subgraphs that end with a node by an operation.

    Attributes:
        unknown: reason why a subgraph of an unknown form was left, by the name of its last node.
    """

    def __init__(self, node_type: str) -> None:
        super().__init__(node_type)
        self.unknown: dict[str, str] = {}

    @abstractmethod
    def matches(self, node: ov.Node) -> bool:
        """Whether a subgraph of the kind ends with `node`."""

    @abstractmethod
    def operation(self, node: ov.Node) -> ov.Node:
        """The operation that replaces the subgraph.

        Raises:
            UnknownPatternError: the subgraph has an unknown form.
        """

    def rewrite(self, node: ov.Node) -> bool:
        """Replace the subgraph that ends with `node`, or record why it was left."""
        if not self.matches(node):
            return False
        try:
            operation = self.operation(node)
        except UnknownPatternError as error:
            self.unknown[node.get_friendly_name()] = str(error)
            return False
        operation.set_friendly_name(node.get_friendly_name())
        let_read(node.output(0), operation.output(0))
        return True


def check_served(what: str, served: int, left: Sequence[str], none: str) -> None:
    """Refuse a model of which not all subgraphs were replaced.

    Args:
        what: what there may be several of, for the message.
        served: how many of them became operations.
        left: the others, each with its reason.
        none: the message where there are neither.

    Raises:
        ValueError: some were left, or there were none.
    """
    if left:
        raise ValueError(
            f"layer {left[0]}; {len(left)} of {len(left) + served} {what} can't be served, "
            "export with --allow-partial (allow_partial=True) to leave them as they are, or leave out what "
            "asks for them"
        )
    if not served:
        raise ValueError(none)

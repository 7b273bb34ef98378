"""Transformations that replace subgraphs by a native operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import openvino as ov

from ovspec_transforms.graph import let_read, rewrite_nodes
from ovspec_transforms.report import TransformReport
from ovspec_transforms.weights.expert_weights import UnknownPatternError


def replace_subgraphs(
    model: ov.Model,
    name: str,
    type_name: str,
    matches: Callable[[ov.Node], bool],
    operation: Callable[[ov.Node], ov.Node],
) -> TransformReport:
    """Replace the subgraphs that end with a node of one type by an operation; the report is called `name`.

    Args:
        matches: whether a subgraph of the kind ends with a node.
        operation: what replaces it; a subgraph for which it raises UnknownPatternError is left.
    """
    left: list[str] = []

    def rewrite(node: ov.Node) -> bool:
        if not matches(node):
            return False
        try:
            made = operation(node)
        except UnknownPatternError as error:
            left.append(f"{node.get_friendly_name()}: {error}")
            return False
        made.set_friendly_name(node.get_friendly_name())
        let_read(node.output(0), made.output(0))
        return True

    return replace(rewrite_nodes(model, name, type_name, rewrite), left=tuple(left))


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

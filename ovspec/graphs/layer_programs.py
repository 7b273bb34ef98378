"""The program of a model's decoder layers, one layer of each kind, for people to read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ovspec.devices.devices import openvino_core
from ovspec.graphs.compile import read_model
from ovspec.graphs.paged_graph import lower, transform
from ovspec.operations.backends import Backends
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec_ops import BLOCK_SIZE
from ovspec_ops import load as load_operations
from ovspec_transforms import DECODER_LAYERS, paged_layers

_NAME = re.compile(r"\br\d+\b")
_OTHERS = (
    (re.compile(r"\bw\d+@\d+|\bConstant_\d+\.\d+"), "weights"),
    (re.compile(r"\b([a-z_]+)\.\d+(\.\d+)?\b"), r"\1"),
    (re.compile(r"\bcache_table#\d+"), "cache"),
    (re.compile(r" layer=\d+"), ""),
)
_SUM_OF_ROWS = re.compile(r" = add r\d+ r\d+$")


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers with the same steps.

    Attributes:
        count: how many there are.
        lines: their steps. Rows have numbers of their own in each layer.
    """

    count: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LayerPrograms:
    """What `DecoderLayers` computes of a model.

    Attributes:
        operations: how many there are; each node of the graph that no step knows ends one.
        layers: that attend to the text inside of them, of all in the model.
        of: so many layers the model has that attend to the text.
        kinds: in the order of their first layers.
    """

    operations: int
    layers: int
    of: int
    kinds: tuple[LayerKind, ...]


def layer_programs(folder: Path) -> LayerPrograms:
    """The programs of the model in a folder, dense, as this machine runs it by default.

    Raises:
        ValueError: a folder that can't be served.
    """
    core, backends = openvino_core(), Backends.resolve(folder, experts=ExpertConfig(optional=True))
    load_operations(core)
    graph = read_model(core, folder)
    transform(graph, backends.attention, BLOCK_SIZE, backends.experts)
    layers = len(paged_layers(graph))
    lower(graph, backends)
    programs = [
        node.get_attributes()["program"].splitlines()
        for node in graph.get_ordered_ops()
        if node.get_type_name() == DECODER_LAYERS
    ]
    found: dict[tuple[str, ...], int] = {}
    for lines in programs:
        for layer in _layers(lines[2:-1]):
            kind = _numbered(layer)
            found[kind] = found.get(kind, 0) + 1
    kinds = tuple(LayerKind(count, kind) for kind, count in found.items())
    return LayerPrograms(len(programs), sum(found.values()), layers, kinds)


def _layers(lines: Sequence[str]) -> list[Sequence[str]]:
    """The lines of each layer: it ends with the last sum of rows before the next one writes its keys."""
    writes = [number for number, line in enumerate(lines) if " = cache_write " in line]
    if not writes:  # the output layer, or what is between two layers that keep a state
        return []
    ends = [
        max((n for n in range(this, following) if _SUM_OF_ROWS.search(lines[n])), default=following - 1) + 1
        for this, following in zip(writes, [*writes[1:], len(lines)], strict=True)
    ]
    return [lines[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def _numbered(lines: Sequence[str]) -> tuple[str, ...]:
    """The lines without what differs between layers alike."""
    names: dict[str, str] = {}
    text = _NAME.sub(lambda name: names.setdefault(name[0], f"r{len(names)}"), "\n".join(lines))
    for pattern, word in _OTHERS:
        text = pattern.sub(word, text)
    return tuple(text.splitlines())

"""Programs of decoder layers for people to read."""

from __future__ import annotations

import ovspec_models
from ovspec.graphs.layer_programs import layer_programs


def test_layers_alike_are_shown_once() -> None:
    found = layer_programs(ovspec_models.demo_pair_path())
    (kind,) = found.kinds
    assert kind.count == found.layers == found.of > 1
    steps = [line.partition(" = ")[2].split()[0] for line in kind.lines]
    assert steps == [
        *("rms", "linear", "rms", "rope", "rms", "rope", "cache_write", "attention", "linear", "add"),
        *("rms", "linear", "silu_multiply", "linear", "add"),
    ]
    assert kind.lines[0].startswith("r0:") and "weights" in kind.lines[0] and "@" not in kind.lines[0]

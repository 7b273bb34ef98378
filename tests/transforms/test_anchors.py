"""Which layers select by the paper's rule."""

from __future__ import annotations

from ovspec_transforms import default_anchor_layers


def test_default_rule_comes_denser_at_the_start() -> None:
    assert default_anchor_layers(range(28)) == (0, 1, 2, 6, 10, 14, 18, 22, 26)

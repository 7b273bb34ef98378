"""The head that the package carries for SmolLM2."""

from __future__ import annotations

from ovspec_models.folder.head_info import HeadInfo
from ovspec_models.sources.demo_model import demo_head_path

#: What the demo's model has, whose package is not fetched by tests.
HIDDEN, LAYERS, VOCABULARY = 576, 30, 49152


def test_the_head_is_one_for_the_demos_model() -> None:
    info = HeadInfo.read(demo_head_path())
    info.check_target(HIDDEN, LAYERS, VOCABULARY, ["LlamaForCausalLM"])
    assert info.kind == "eagle3" and "fc_norm" in info.norms
    assert sum(file.stat().st_size for file in demo_head_path().iterdir()) < 12e6

"""ModelRunner with gated MLPs of its own: which rows are limited, what they read, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from settings import F32
from transforms.ffn_models import CHANNELS, LAYERS, tiny_dense

from ovspec.runtime.attention_config import AttentionConfig
from ovspec.runtime.cache import CachedSequence
from ovspec.runtime.ffn_budgets import FfnConfig
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.tables import Rows
from ovspec_models import ChannelSets
from ovspec_transforms import GroupEstimate

EXACT = {**F32, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
PROMPT, DRAFT = np.arange(40) % 96, np.array([7, 3, 50, 21, 90])
EACH = CHANNELS // 4


def channel_sets(groups: bool = True, layers: int = LAYERS, channels: int = CHANNELS) -> ChannelSets:
    order = np.arange(channels, dtype=np.int32)
    if not groups:
        return ChannelSets((order,) * layers)
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((3, 4)).astype(np.float32)
    estimate = GroupEstimate(np.array([0, 30, 60], np.int32), weights, np.zeros(4, np.float32))
    return ChannelSets((order,) * layers, (order.reshape(4, -1),) * layers, (estimate,) * layers)


RULES: dict[str, dict[str, Any]] = {
    "threshold": {"threshold": (0.7, 0.9)},
    "top_k": {"density": 0.25},
    "static": {"density": (0.25, 0.5), "channels": channel_sets()},
}
STOCK_RULES: dict[str, dict[str, Any]] = {
    rule: {"backend": "stock", "rule": rule, "density": (0.25, 0.5), "channels": channel_sets()}
    for rule in ("static", "groups")
}


def make_runner(ffn: FfnConfig | None, attention: Any = "native") -> ModelRunner:
    return ModelRunner(tiny_dense(), "CPU", AttentionConfig(attention), EXACT, ffn=ffn)


def verify(runner: ModelRunner, limited: bool) -> tuple[np.ndarray, tuple[int, ...]]:
    """Logits of five rows behind a prompt, and the channels that each layer read for them."""
    sequence = CachedSequence()
    runner.prefill(sequence, PROMPT, chunk=512)
    logits = runner.forward([Rows(sequence, DRAFT, sampled=5, limits_channels=limited)]).copy()
    runner.release(sequence)
    return logits, runner.last_pass.channels_read


@pytest.mark.parametrize("rule", RULES)
def test_a_pass_that_is_not_limited_computes_what_stock_does(rule: Any) -> None:
    expected, read = verify(make_runner(None), False)
    assert read == ()
    runner = make_runner(FfnConfig(rule=rule, **RULES[rule]))
    got, read = verify(runner, False)
    assert read == (CHANNELS,) * LAYERS
    assert np.abs(got - expected).max() <= 2e-4 * np.abs(expected).max()
    limited, read = verify(runner, True)
    assert np.abs(limited - expected).max() > 1e-3 * np.abs(expected).max()
    if rule == "threshold":
        assert all(0 < count < CHANNELS for count in read)
    else:
        assert read == ((24, 24) if rule == "top_k" else (24, 48))


@pytest.mark.parametrize("attention", ["native", "stock"])
def test_prompt_beside_a_verification_is_left_alone(attention: str) -> None:
    runner = make_runner(FfnConfig(rule="top_k", density=0.1), attention)
    expected = runner.forward([Rows(CachedSequence(), PROMPT)]).copy()
    old, new = CachedSequence(), CachedSequence()
    runner.prefill(old, PROMPT[:9], chunk=512)
    mixed = runner.forward([Rows(old, DRAFT, limits_channels=True), Rows(new, PROMPT)])
    assert np.abs(mixed[1:] - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("attention", ["native", "stock"])
@pytest.mark.parametrize("rule", STOCK_RULES)
def test_stock_operations_limit_as_well(rule: str, attention: str) -> None:
    expected, _ = verify(make_runner(None, attention), False)
    runner = make_runner(FfnConfig(**STOCK_RULES[rule]), attention)
    got, read = verify(runner, False)
    assert read == (CHANNELS,) * LAYERS
    assert np.abs(got - expected).max() <= 2e-4 * np.abs(expected).max()
    limited, read = verify(runner, True)
    assert read == (EACH, 2 * EACH) and runner.last_pass.channels_held == (CHANNELS,) * LAYERS
    assert np.abs(limited - expected).max() > 1e-3 * np.abs(expected).max()
    if rule == "static":
        native = make_runner(FfnConfig(rule="static", **RULES["static"]), attention)
        same, _ = verify(native, True)
        assert np.abs(limited - same).max() <= 2e-4 * np.abs(same).max()


def test_stock_operations_limit_no_pass_with_a_prompt() -> None:
    runner = make_runner(FfnConfig(**STOCK_RULES["groups"]))
    sequence = CachedSequence()
    runner.prefill(sequence, PROMPT, chunk=512)
    runner.forward([Rows(sequence, DRAFT, limits_channels=True), Rows(CachedSequence(), PROMPT)])
    assert runner.last_pass.channels_read == (CHANNELS,) * LAYERS


def test_groups_follow_numbers_that_are_set_anew() -> None:
    runner = make_runner(FfnConfig(**STOCK_RULES["groups"]))
    runner.set_ffn(FfnConfig(**{**STOCK_RULES["groups"], "density": (0.6, 0.01)}))
    assert verify(runner, True)[1] == (2 * EACH, EACH)
    static = make_runner(FfnConfig(**STOCK_RULES["static"]))
    with pytest.raises(
        ValueError, match=r"parts of density 0.5: this pipeline's graph has rule 'static' with"
    ):
        static.set_ffn(FfnConfig(**{**STOCK_RULES["static"], "density": 0.5}))
    with pytest.raises(ValueError, match="ffn rule 'groups': this pipeline's graph has rule 'static'"):
        static.set_ffn(FfnConfig(**STOCK_RULES["groups"]))


def test_gated_mlps_without_a_limit() -> None:
    runner = make_runner(FfnConfig(), "stock")
    expected, _ = verify(make_runner(None, "stock"), False)
    got, read = verify(runner, False)
    assert read == ()
    assert np.abs(got - expected).max() <= 2e-4 * np.abs(expected).max()
    assert runner.reports[-1].count == LAYERS


def test_rows_count_less_the_deeper_they_are() -> None:
    """With a steep decay the mean over a draft is the first row's."""
    config: dict[str, Any] = {"rule": "top_k", "density": 0.2, "score": "mean"}
    steep, flat = (make_runner(FfnConfig(**config, decay=decay)) for decay in (1e-6, 1.0))
    alone = CachedSequence()
    steep.prefill(alone, PROMPT, chunk=512)
    first = steep.forward([Rows(alone, DRAFT[:1], limits_channels=True)]).copy()
    got, _ = verify(steep, True)
    assert np.abs(got[0] - first[0]).max() <= 1e-4 * np.abs(first).max()
    other, _ = verify(flat, True)
    assert np.abs(other[0] - first[0]).max() > 1e-3 * np.abs(first).max()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "gpu"}, "ffn='gpu': expected one of 'native', 'stock'"),
        ({"rule": "mass"}, "ffn rule='mass': expected one of None, 'threshold', 'top_k', 'static', 'groups'"),
        ({"rule": "top_k"}, "'top_k' with ffn density None: it belongs to 'top_k' and 'static' and 'groups'"),
        ({"density": 0.5}, "ffn rule None with ffn density 0.5"),
        ({"rule": "threshold", "density": 0.5}, "ffn rule 'threshold' with ffn density 0.5"),
        ({"rule": "static", "density": 0.5}, "ffn rule 'static' with ffn channels None"),
        ({"rule": "top_k", "density": 0.5, "channels": channel_sets()}, "with ffn channels of 2 layers"),
        ({"rule": "groups", "density": 0.5, "channels": channel_sets()}, "'groups' with ffn='native'"),
        (
            {"backend": "stock", "rule": "groups", "density": 0.5, "channels": channel_sets(groups=False)},
            "calibrated without groups",
        ),
        ({"rule": "top_k", "density": 0.0}, "ffn density 0.0: expected a share above 0"),
        ({"rule": "top_k", "density": (0.5, 1.5)}, "ffn density 1.5: expected a share above 0"),
        ({"rule": "threshold", "threshold": float("nan")}, "ffn threshold nan: expected a finite number"),
        ({"rule": "top_k", "density": 0.5, "decay": 0.0}, "ffn decay 0.0: expected a number above 0"),
        ({"score": "sum"}, "ffn score='sum': expected one of 'max', 'mean'"),
        ({"backend": "stock", "rule": "top_k", "density": 0.5}, "it needs ffn='native'"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FfnConfig(**settings)


def test_values_for_another_number_of_layers() -> None:
    with pytest.raises(ValueError, match="ffn density holds 3 values, expected 2"):
        make_runner(FfnConfig(rule="top_k", density=(0.5, 0.5, 0.5)))


@pytest.mark.parametrize("wrong", [{"layers": 3}, {"channels": 32}])
def test_channels_of_another_model(wrong: dict[str, int]) -> None:
    config = FfnConfig("stock", "static", density=0.5, channels=channel_sets(groups=False, **wrong))
    message = (
        r"ovspec_channels.npz holds channels of \d x \d+, this model's gated MLPs have 2 x 96; run `ovspec"
    )
    with pytest.raises(ValueError, match=message):
        ModelRunner(tiny_dense(), "CPU", AttentionConfig("stock"), ffn=config)


def test_other_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="native ffn run on CPU only; pass ffn='stock'"):
        ModelRunner(tiny_dense(), "GPU", AttentionConfig("stock"), ffn=FfnConfig())

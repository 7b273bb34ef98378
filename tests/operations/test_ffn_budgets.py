"""ModelRunner with gated MLPs of its own: which rows are limited, what they read, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from settings import F32
from transforms.ffn_models import CHANNELS, LAYERS, tiny_dense

from ovspec.cache.cache import CachedSequence
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.ffn_budgets import FfnConfig
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner

EXACT = {**F32, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
PROMPT, DRAFT = np.arange(40) % 96, np.array([7, 3, 50, 21, 90])


def make_runner(ffn: FfnConfig | None, attention: Any = "native") -> ModelRunner:
    return ModelRunner(tiny_dense(), "CPU", AttentionConfig(attention), EXACT, ffn=ffn)


def verify(runner: ModelRunner, limited: bool) -> tuple[np.ndarray, tuple[int, ...]]:
    """Logits of five rows behind a prompt, and the channels that each layer read for them."""
    sequence = CachedSequence()
    runner.prefill(sequence, PROMPT, chunk=512)
    result = runner.forward([Rows(sequence, DRAFT, sampled=5, limits_channels=limited)])
    runner.release(sequence)
    assert result.stats.channels_held in ((), (CHANNELS,) * LAYERS)
    return result.logits.copy(), result.stats.channels_read


@pytest.mark.parametrize(("density", "kept"), [(0.25, (24, 24)), ((0.25, 0.5), (24, 48)), (1e-6, (1, 1))])
def test_a_pass_that_is_not_limited_computes_what_stock_does(density: Any, kept: tuple[int, ...]) -> None:
    expected, read = verify(make_runner(None), False)
    assert read == ()
    runner = make_runner(FfnConfig(density=density))
    got, read = verify(runner, False)
    assert read == (CHANNELS,) * LAYERS
    assert np.abs(got - expected).max() <= 2e-4 * np.abs(expected).max()
    limited, read = verify(runner, True)
    assert np.abs(limited - expected).max() > 1e-3 * np.abs(expected).max()
    assert read == kept


@pytest.mark.parametrize("attention", ["native", "stock"])
def test_prompt_beside_a_verification_is_left_alone(attention: str) -> None:
    runner = make_runner(FfnConfig(density=0.1), attention)
    expected = runner.forward([Rows(CachedSequence(), PROMPT)]).logits.copy()
    old, new = CachedSequence(), CachedSequence()
    runner.prefill(old, PROMPT[:9], chunk=512)
    mixed = runner.forward([Rows(old, DRAFT, limits_channels=True), Rows(new, PROMPT)]).logits
    assert np.abs(mixed[1:] - expected).max() <= 1e-4 * np.abs(expected).max()


def test_densities_can_be_set_anew() -> None:
    runner = make_runner(FfnConfig(density=0.25))
    runner.set_ffn(FfnConfig(density=(0.5, 1.0)))
    assert verify(runner, True)[1] == (48, 96)
    with pytest.raises(ValueError, match=r"ffn density 0.5: this pipeline's graph has no limits"):
        make_runner(FfnConfig()).set_ffn(FfnConfig(density=0.5))


def test_gated_mlps_without_a_limit() -> None:
    runner = make_runner(FfnConfig(), "stock")
    expected, _ = verify(make_runner(None, "stock"), False)
    got, read = verify(runner, False)
    assert read == ()
    assert np.abs(got - expected).max() <= 2e-4 * np.abs(expected).max()
    assert [report.count for report in runner.reports if report.name == "SparseFfn"] == [LAYERS]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "gpu"}, "ffn='gpu': expected 'native' or 'stock'"),
        ({"density": 0.0}, "ffn density 0.0: expected a share above 0"),
        ({"density": (0.5, 1.5)}, "ffn density 1.5: expected a share above 0"),
        ({"backend": "stock", "density": 0.5}, "ffn density 0.5 with ffn='stock': only our operation"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FfnConfig(**settings)


def test_values_for_another_number_of_layers() -> None:
    with pytest.raises(ValueError, match="ffn density holds 3 values, expected 2"):
        make_runner(FfnConfig(density=(0.5, 0.5, 0.5)))


def test_other_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="native ffn run on CPU only; pass ffn='stock'"):
        ModelRunner(tiny_dense(), "GPU", AttentionConfig("stock"), ffn=FfnConfig())

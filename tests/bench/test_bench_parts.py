"""The parts of the bench that need no model: cache contents, the memory plan."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest

from ovspec.bench.cache_contents import fill
from ovspec.bench.memory import fits_together
from ovspec.cache.cache import CacheTensor, cache_layout
from ovspec_ops.common.cache_layout import decode_block
from ovspec_ops.key_summary.reference import means, summary_bytes

BLOCKS, HEADS, BLOCK_SIZE, SIZE = 131, 2, 32, 64


@pytest.mark.parametrize(
    ("dtype", "rows", "width", "layout"),
    [
        pytest.param(ov.Type.f32, 32, 64, "f32", id="f32"),
        pytest.param(ov.Type.f16, 32, 64, "f16", id="f16"),
        pytest.param(ov.Type.bf16, 32, 64, "bf16", id="bf16"),
        pytest.param(ov.Type.u8, 32, 72, "u8 by token", id="u8 by token"),
        pytest.param(ov.Type.u8, 40, 64, "u8 by channel", id="u8 by channel"),
    ],
)
def test_cache_is_filled_with_values_of_unit_variance(
    dtype: ov.Type, rows: int, width: int, layout: str
) -> None:
    spec = CacheTensor("key_cache.0", dtype, (HEADS, rows, width))
    tensor = ov.Tensor(dtype, ov.Shape([BLOCKS, *spec.block_shape]))
    fill(tensor, spec, BLOCK_SIZE, np.random.default_rng(1))
    raw = tensor.data.view(np.uint16) if dtype == ov.Type.bf16 else tensor.data
    values = decode_block(raw, SIZE)
    assert cache_layout(spec, BLOCK_SIZE) == layout
    assert np.isfinite(values).all()
    assert values.std(axis=(1, 2, 3)) == pytest.approx(1.0, abs=0.05)
    assert values.mean() == pytest.approx(0.0, abs=0.02)


def test_key_summaries_differ_in_every_block() -> None:
    spec = CacheTensor("key_summary.0", ov.Type.u8, (HEADS, summary_bytes(SIZE)))
    tensor = ov.Tensor(ov.Type.u8, ov.Shape([BLOCKS, *spec.block_shape]))
    fill(tensor, spec, BLOCK_SIZE, np.random.default_rng(1))
    assert len(np.unique(tensor.data.reshape(BLOCKS, -1), axis=0)) == BLOCKS
    keys = means(tensor.data, SIZE)
    assert keys.std(axis=(1, 2, 3)) == pytest.approx(1.0, abs=0.2)
    assert keys.mean() == pytest.approx(0.0, abs=0.02)


def test_unknown_cache_precision_is_refused() -> None:
    spec = CacheTensor("key_cache.0", ov.Type.i8, (HEADS, 32, 72))
    with pytest.raises(ValueError, match="the device keeps it in i8"):
        fill(ov.Tensor(ov.Type.i8, ov.Shape([1, *spec.block_shape])), spec, 32, np.random.default_rng(1))


@pytest.mark.parametrize(
    ("available", "together"), [pytest.param(10, True, id="both fit"), pytest.param(9, False, id="one fits")]
)
def test_models_are_held_together_when_memory_allows(available: int, together: bool) -> None:
    assert fits_together({"stock": 4, "native": 3}, shared=3, available=available) is together


def test_model_that_does_not_fit_alone_is_refused_with_the_numbers() -> None:
    models = {"stock": 8_000_000_000, "native": 9_000_000_000}
    with pytest.raises(ValueError, match=r"native model alone: about 11\.0 GB .* 10\.9 GB .* --layers"):
        fits_together(models, shared=2_000_000_000, available=10_900_000_000)

"""A matrix that is compressed some rows at a time comes out as one that is compressed whole."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from tiers import by_tier

from ovspec_models.export import weight_rows

nncf = pytest.importorskip("nncf", reason="needs ovspec[export]")
from nncf.quantization.algorithms.weight_compression import openvino_backend  # noqa: E402

ROWS, COLUMNS = 45, 130
MODES = nncf.CompressWeightsMode


def constants(mode: object, kind: ov.Type, **options: object) -> list[tuple[str, bytes]]:
    """Compress an embedding `[45, 130]` and a matrix `[45, 130]` of the type; types and bytes."""
    values = np.random.default_rng(3).standard_normal((2, ROWS, COLUMNS)).astype(np.float32) * 0.02
    values[0, 5], values[1, 7] = 0.0, 1e-3  # a row of zeros, one of equal values
    tables = [ops.convert(ops.constant(table, dtype=kind), ov.Type.f32) for table in values]
    tokens = ops.parameter([-1], np.int64)
    rows = ops.gather(tables[0], tokens, ops.constant(0))
    model = ov.Model([ops.matmul(rows, tables[1], False, True)], [tokens])
    compressed = nncf.compress_weights(model, mode=mode, **options)
    found = [op for op in compressed.get_ordered_ops() if op.get_type_name() == "Constant"]
    return [(op.get_element_type().get_type_name(), op.data.tobytes()) for op in found]


@pytest.mark.parametrize("kind", [ov.Type.f32, ov.Type.f16, ov.Type.bf16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    "mode", by_tier([MODES.INT8_ASYM, MODES.INT8_SYM], [MODES.INT8_ASYM]), ids=["asym", "sym"]
)
@pytest.mark.parametrize("at_once", [COLUMNS - 1, 20 * COLUMNS])
def test_bits_are_the_same(
    monkeypatch: pytest.MonkeyPatch, mode: object, kind: ov.Type, at_once: int
) -> None:
    whole = constants(mode, kind)
    monkeypatch.setattr(weight_rows, "VALUES_AT_ONCE", at_once)
    shapes: list[tuple[int, ...]] = []
    original = openvino_backend.compress_weight

    def recording(weight: object, *rest: object) -> object:
        shapes.append(tuple(weight.shape))
        return original(weight, *rest)

    monkeypatch.setattr(openvino_backend, "compress_weight", recording)
    with weight_rows.compressed_by_rows(pytest.fail):
        by_rows = constants(mode, kind)
    assert openvino_backend.compress_weight is recording
    assert by_rows == whole
    assert {kind for kind, _ in whole} & {"u8", "i8"}
    step = max(1, at_once // COLUMNS)
    assert shapes[0] == (step, COLUMNS) and len(shapes) == 2 * -(-ROWS // step)
    assert sum(rows for rows, _ in shapes) == 2 * ROWS


def test_four_bits_are_compressed_whole() -> None:
    options = {"group_size": -1, "all_layers": True}
    whole = constants(MODES.INT4_ASYM, ov.Type.f32, **options)
    with weight_rows.compressed_by_rows(pytest.fail):
        assert constants(MODES.INT4_ASYM, ov.Type.f32, **options) == whole
    assert "u4" in {kind for kind, _ in whole}

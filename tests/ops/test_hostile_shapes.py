"""Shapes and types at run time that the model left open, and that fit no operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ops.experts import Experts
from ops.mlps import Mlp
from ops.passes import OpsPass, attention_tensors
from ops.properties import examples
from ops.test_block_select import Selection
from ops.test_cache_write import Written
from ops.test_gated_mlp import rows_of, tensors_of
from ops.test_key_summary import inputs_of
from ops.test_key_summary import sizes as summary_attributes
from ops.test_linear import Layers
from ops.test_moe import tensors_of as expert_tensors

from ovspec_ops import loader


# Valid tensors of each operation, with shapes that are unknown until a pass; the test changes one shape.
def mlp_case() -> tuple[dict[str, ov.Tensor], dict[str, Any]]:
    mlp = Mlp(64, 32, "u4", (2, 1))
    return tensors_of(mlp, rows_of(mlp, 3), (20.0,), np.ones(3, np.float32)), mlp.attributes


def experts_case() -> tuple[dict[str, ov.Tensor], dict[str, Any]]:
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 3, (4, 2)).astype(np.int32)
    weights = np.full((4, 2), 0.5, np.float32)
    return expert_tensors(
        rng.standard_normal((4, 64), np.float32), indices, weights, Experts(3, 64, 32, "int8")
    ), {}


def budget_case() -> tuple[dict[str, ov.Tensor], dict[str, Any]]:
    arrays: dict[str, Any] = {
        "indices": np.array([[0, 1], [2, 1], [0, 2]], np.int32),
        "weights": np.full((3, 2), 0.5, np.float32),
        "budgets": np.array([2], np.int32),
        "begins": np.array([0, 2, 3], np.int32),
        "past": np.array([5, 5], np.int32),
    }
    attributes = {"experts": 4, "layer": 0}
    return {name: ov.Tensor(array) for name, array in arrays.items()}, attributes


def linear_case() -> tuple[dict[str, ov.Tensor], dict[str, Any]]:
    layers = Layers(64, (33, 3), "u4", 2)
    return layers.tensors(layers.rows(3)), layers.attributes


SEQUENCES = [(40, 3, True), (5, 2, False), (31, 2, True)]


def attention_case() -> tuple[dict[str, ov.Tensor], dict[str, Any]]:
    case = OpsPass(SEQUENCES, fmt="u8_token", keep=0.5, sinks=True, tree=True)
    return attention_tensors(case), case.attributes


def write_case() -> tuple[dict[str, ov.Tensor], dict[str, Any]]:
    case = Written([40, 3, 65], kv_heads=2, k_size=16, v_size=24)
    return case.tensors, case.attributes


def summary_case() -> tuple[dict[str, ov.Tensor], dict[str, Any]]:
    case = OpsPass([(past, rows, True) for past, rows, _ in SEQUENCES], fmt="u8_token")
    return inputs_of(case)[0], summary_attributes(case)


def select_case() -> tuple[dict[str, ov.Tensor], dict[str, Any]]:
    case = OpsPass(SEQUENCES)
    selection = Selection(case, [1, 2, -1], [0.5, 1.0, 1.0])
    return selection.tensors, selection.attributes


CASES = {
    "GatedMLP": mlp_case,
    "SparseMoE": experts_case,
    "ExpertBudget": budget_case,
    "Linear": linear_case,
    "VerifyAttention": attention_case,
    "CacheWrite": write_case,
    "KeySummary": summary_case,
    "BlockSelect": select_case,
}
SIZE = st.sampled_from([0, 1, 2, 3, 4, 16, 24, 31, 32, 33, 40, 64])


@st.composite
def hostile_shapes(draw: st.DrawFn, shape: list[int]) -> list[int]:
    """Any; or the valid one, with one size changed or none."""
    if draw(st.booleans()):
        return draw(st.lists(SIZE, max_size=4))
    changed = draw(st.integers(0, len(shape)))
    return [draw(SIZE) if i == changed else size for i, size in enumerate(shape)]


@pytest.mark.parametrize("op_type", CASES)
@examples(100)
@given(data=st.data())
def test_hostile_shapes_at_run_time_are_refused_or_fit(op_type: str, data: st.DataObject) -> None:
    """Types, ranks and sizes that the model left open: an error that names the operation, or a result."""
    tensors, attributes = CASES[op_type]()
    node = loader.create(
        op_type, [ov.op.Parameter(ov.Type.dynamic, ov.PartialShape.dynamic()) for _ in tensors], attributes
    )
    name = data.draw(st.sampled_from(sorted(tensors)))
    valid = tensors[name]
    others = (ov.Type.u4, ov.Type.u8, ov.Type.i32, ov.Type.f16, ov.Type.f32)
    element_type = data.draw(st.just(valid.element_type) | st.sampled_from(others))
    tensors[name] = ov.Tensor(element_type, ov.Shape(data.draw(hostile_shapes(list(valid.shape)))))
    # The valid bytes, cut off or repeated, or zeros.
    to, valid_bytes = (tensor.data.reshape(-1).view(np.uint8) for tensor in (tensors[name], valid))
    to[...] = np.resize(valid_bytes, to.size) if data.draw(st.booleans()) else 0
    outputs = [ov.Tensor(o.element_type, ov.Shape([0])) for o in node.outputs()]
    message = None
    try:
        assert node.evaluate(outputs, list(tensors.values()))
    except (ValueError, RuntimeError) as error:
        message = str(error)
    # OpenVINO refuses to read a tensor as another type.
    assert message is None or f"{op_type}: " in message or "is not representable as pointer" in message


@pytest.mark.parametrize(
    ("op_type", "attributes", "message"),
    [
        # A table of all experts, in every pass: 9 GB, and half a minute.
        (
            "ExpertBudget",
            {"experts": 2**31},
            "ExpertBudget: attribute experts is 2147483648, expected 1 to 65536",
        ),
        ("Linear", {"sizes": []}, "Linear: attribute sizes holds 0 sizes, expected 1 to 16"),
    ],
)
def test_settings_are_refused_where_no_shape_is_known(
    op_type: str, attributes: dict[str, Any], message: str
) -> None:
    tensors, valid = CASES[op_type]()
    inputs = [ov.op.Parameter(ov.Type.dynamic, ov.PartialShape.dynamic()) for _ in tensors]
    with pytest.raises(ValueError, match=message):
        loader.create(op_type, inputs, valid | attributes)

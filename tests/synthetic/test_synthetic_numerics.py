"""The synthetic graph computes what transformers computes with the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from synthetic.cases import F32, TINY_SHAPES, load_into, paged, transformers_model, weight_arrays

from ovspec_models.synthetic import build_model

torch = pytest.importorskip("torch", reason="needs ovspec[export]")

FORMATS = {"fp32": ("fp32", False), "fp16": ("fp16", False), "int8": ("int8", False)} | {
    "int4-asym": ("int4", False),
    "int4-sym": ("int4", True),
}
# Families share the decompression graphs; only the mixture has three-dimensional weights.
CASES = [
    *((family, "fp32") for family in TINY_SHAPES),
    ("llama", "int8"),
    ("qwen3", "int4-asym"),
    *(("qwen3_moe", format_id) for format_id in FORMATS if format_id != "fp32"),
]


def _build(family: str, format_id: str) -> tuple[ov.Model, Any]:
    shape = TINY_SHAPES[family]
    weight_format, sym = FORMATS[format_id]
    model = build_model(shape, weight_format, seed=3, sym=sym)
    return model, load_into(transformers_model(shape), weight_arrays(model, shape))


def _reference_logits(reference: Any, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    with torch.no_grad():
        return np.asarray(reference(input_ids=torch.from_numpy(ids)).logits)


def _step(
    request: ov.InferRequest, ids: NDArray[np.int64], past: int, beams: list[int] | None = None
) -> NDArray[np.float32]:
    batch, rows = ids.shape
    inputs = {
        "input_ids": ids,
        "attention_mask": np.ones((batch, past + rows), np.int64),
        "position_ids": np.broadcast_to(np.arange(past, past + rows), (batch, rows)),
        "beam_idx": np.array(beams or range(batch), np.int32),
    }
    return np.array(request.infer(inputs)["logits"])


def _assert_logits(reference: NDArray[np.float32], got: NDArray[np.float32]) -> None:
    # Logits have a standard deviation of about 3, so this is 3e-5 of their scale.
    np.testing.assert_allclose(got, reference, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("family", "format_id"), CASES)
def test_prefill_and_decode_match_transformers(family: str, format_id: str) -> None:
    model, reference = _build(family, format_id)
    ids = np.random.default_rng(5).integers(0, 999, (2, 63))
    expected = _reference_logits(reference, ids)
    request = ov.Core().compile_model(model, "CPU", F32).create_infer_request()
    past = 0
    # A prompt, two plain decode steps, and the verification of drafts of odd lengths.
    for rows in (37, 1, 1, 5, 19):
        got = _step(request, ids[:, past : past + rows], past)
        _assert_logits(expected[:, past : past + rows], got)
        past += rows
    assert past == ids.shape[1]


@pytest.mark.parametrize("family", TINY_SHAPES)
def test_beam_idx_reorders_the_state(family: str) -> None:
    model, reference = _build(family, "fp32")
    ids = np.random.default_rng(6).integers(0, 999, (2, 12))
    request = ov.Core().compile_model(model, "CPU", F32).create_infer_request()
    _step(request, ids[:, :11], 0)
    got = _step(request, ids[:, 11:], 11, beams=[1, 0])
    crossed = np.concatenate([ids[::-1, :11], ids[:, 11:]], axis=1)
    _assert_logits(_reference_logits(reference, crossed)[:, 11:], got)


@pytest.mark.parametrize("family", TINY_SHAPES)
def test_attention_mask_hides_left_padding(family: str) -> None:
    model, reference = _build(family, "fp32")
    ids = np.random.default_rng(7).integers(0, 999, (1, 17))
    padding = 4
    request = ov.Core().compile_model(model, "CPU", F32).create_infer_request()
    mask = np.ones((1, padding + 17), np.int64)
    mask[:, :padding] = 0
    inputs = {
        "input_ids": np.concatenate([np.full((1, padding), 8), ids], axis=1),
        "attention_mask": mask,
        "position_ids": np.concatenate([np.zeros((1, padding), np.int64), np.arange(17)[None]], axis=1),
        "beam_idx": np.zeros(1, np.int32),
    }
    got = np.array(request.infer(inputs)["logits"])[:, padding:]
    _assert_logits(_reference_logits(reference, ids), got)


@pytest.mark.parametrize("family", TINY_SHAPES)
def test_paged_model_matches_transformers(family: str) -> None:
    model, reference = _build(family, "int8")
    ids = np.random.default_rng(8).integers(0, 999, (1, 41))
    compiled = ov.Core().compile_model(paged(model), "CPU", F32)
    request = compiled.create_infer_request()
    for port in compiled.inputs:
        if "_cache." in port.any_name:
            dims = [2, *(dim.get_length() for dim in list(port.partial_shape)[1:])]
            request.set_tensor(port, ov.Tensor(port.element_type, ov.Shape(dims)))
    names = {name for port in compiled.inputs for name in port.names}
    logits = []
    for past, rows in ((0, 33), (33, 1), (34, 7)):
        inputs = {
            "input_ids": ids[0, past : past + rows],
            "position_ids": np.arange(past, past + rows),
            "past_lens": np.array([past], np.int32),
            "subsequence_begins": np.array([0, rows], np.int32),
            "block_indices": np.array([1, 0], np.int32),
            "block_indices_begins": np.array([0, 2], np.int32),
            "max_context_len": np.array(past + rows, np.int32),
        }
        assert inputs.keys() <= names
        logits.append(np.array(request.infer(inputs)["logits"]).reshape(rows, -1))
    _assert_logits(_reference_logits(reference, ids)[0], np.concatenate(logits))

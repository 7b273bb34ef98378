"""Positions of a model with scaled rotary embeddings, as config.json says them in its many forms."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ovspec_models.folder.rope_scaling import scaled_positions

YARN = {"rope_type": "yarn", "factor": 4.0}
LINEAR = {"type": "linear", "factor": 2.5}
TUNED = {"attn_temperature_tuning": True, "floor_scale": 100}
WINDOWED = {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"rope_scaling": YARN}, 2048, id="yarn"),
        pytest.param({"rope_scaling": {**YARN, "original_max_position_embeddings": 400}}, 1600, id="of"),
        pytest.param({"rope_scaling": {"type": "yarn", "factor": 4}}, 2048, id="yarn by its old key"),
        pytest.param(
            {"rope_parameters": {**YARN, "original_max_position_embeddings": 128}}, 512, id="raised already"
        ),
        pytest.param({"rope_scaling": {**YARN, "factor": 1.0}}, 512, id="factor 1"),
        pytest.param({"rope_scaling": {**YARN, "factor": None}}, 512, id="DeepSeek: no factor"),
        pytest.param({"rope_parameters": YARN, "original_max_position_embeddings": 256}, 1024, id="outside"),
        pytest.param({"rope_scaling": LINEAR}, 1280, id="linear"),
        pytest.param({"rope_scaling": {**YARN, "factor": 10**400}}, 512 * 10**400, id="a large factor"),
        pytest.param({"rope_parameters": {"rope_theta": 1e4, **LINEAR}}, 1280, id="linear, transformers 5"),
        pytest.param(
            {"rope_parameters": {"full_attention": YARN, "sliding_attention": WINDOWED}}, 2048, id="by layer"
        ),
        pytest.param(
            {
                "model_type": "gemma3_text",
                "rope_parameters": {"full_attention": LINEAR, "sliding_attention": WINDOWED},
            },
            512,
            id="Gemma 3 counts linear scaling",
        ),
        pytest.param({"model_type": "gemma3_text", "rope_scaling": YARN}, 2048, id="Gemma 3 with yarn"),
        pytest.param({"rope_scaling": {**YARN, "rope_type": "llama3"}}, 512, id="llama3"),
        pytest.param({"rope_scaling": {"type": "longrope", "factor": 4.0}}, 512, id="longrope"),
        pytest.param({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, 512, id="dynamic"),
        pytest.param({"rope_scaling": None, "rope_parameters": WINDOWED}, 512, id="none"),
        pytest.param({"rope_scaling": YARN, "max_position_embeddings": None}, None, id="no limit"),
        pytest.param({"attention_chunk_size": 160, "rope_scaling": YARN}, 160, id="the first chunk"),
        pytest.param({"attention_chunk_size": 160, **TUNED}, 99, id="before queries are scaled"),
        pytest.param(
            {"attention_chunk_size": 160, **TUNED, "attn_temperature_tuning": False}, 160, id="which are not"
        ),
        pytest.param({"attention_chunk_size": 4096}, 512, id="a chunk longer than any text"),
        pytest.param({"attention_chunk_size": 160, "max_position_embeddings": None}, 160, id="only chunks"),
    ],
)
def test_scaled_positions(changes: dict[str, Any], expected: int | None) -> None:
    config = {"model_type": "llama", "max_position_embeddings": 512, **changes}
    stated, model_type = config["max_position_embeddings"], config["model_type"]
    assert scaled_positions(config, stated, model_type) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn', expected a JSON object"),
        ({"rope_parameters": [4.0]}, r"rope_parameters is \[4.0\], expected a JSON object"),
        ({"rope_scaling": {**YARN, "factor": "4"}}, "factor of rope_scaling is '4', expected a number"),
        ({"rope_scaling": {**YARN, "factor": math.inf}}, "factor of rope_scaling is inf, expected a number"),
        ({"rope_scaling": {**YARN, "factor": -1}}, "factor of rope_scaling is -1, expected a number"),
        (
            {"rope_scaling": {**YARN, "original_max_position_embeddings": 0}},
            "original_max_position_embeddings is 0, expected a positive integer",
        ),
    ],
)
def test_scaling_of_another_form_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scaled_positions(changes, 512, "llama")

"""The plain OpenVINO model of optimum-intel, run without cache: what every logit is compared with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray


class ReferenceModel:
    """Stateful IR, run over whole prompts in f32."""

    def __init__(self, model: Path | ov.Model) -> None:
        core = ov.Core()
        graph = core.read_model(model / "openvino_model.xml") if isinstance(model, Path) else model
        properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        self._request = core.compile_model(graph, "CPU", properties).create_infer_request()

    def logits(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits `[tokens, vocab]` of every position."""
        self._request.reset_state()
        outputs = self._request.infer(
            {
                "input_ids": tokens[None],
                "attention_mask": np.ones((1, len(tokens)), np.int64),
                "position_ids": np.arange(len(tokens))[None],
                "beam_idx": np.zeros(1, np.int32),
            }
        )
        return np.array(outputs["logits"][0])

"""Properties that tests compile models with."""

from __future__ import annotations

from typing import Any

# Losslessness is a statement about f32; the default precisions are for speed.
F32: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}

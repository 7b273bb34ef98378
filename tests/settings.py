"""Properties that tests compile models with."""

from __future__ import annotations

from typing import Any

# Losslessness is a statement about f32; the default precisions are for speed. Models of this size run faster
# on one thread, and several processes test at once; the operations' own tests vary their threads.
F32_CACHE: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
F32: dict[str, Any] = {**F32_CACHE, "INFERENCE_NUM_THREADS": 1}

"""The model of a draft, as it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import openvino as ov

from ovspec.runtime.attention_config import Attention, attention_on
from ovspec.runtime.backends import Backends
from ovspec.runtime.devices import is_cpu
from ovspec.runtime.fixed_compilers import SMALL_MODEL
from ovspec.runtime.linear_backend import LinearBackend
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.tree_limits import why_rows_stay
from ovspec_models import ModelInfo
from ovspec_models.weight_options import WEIGHT_FORMATS

#: Properties that decide the precision of arithmetic.
_PRECISIONS = ("INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT", "KV_CACHE_PRECISION")


def reads_all(model: ModelInfo) -> bool:
    """Whether a draft reads its whole context where the target may not: a small one with a small cache.

    Operations of ours choose blocks, token by token. Without them one graph drafts several: four tokens of
    the demo's draft model took 0.7 ms in place of 2.7.
    """
    longest = model.max_position_embeddings
    if longest is None:
        return False
    return max(model.weight_bytes, longest * model.kv_cache_bytes_per_token("u8", "BY_TOKEN")) <= SMALL_MODEL


def draft_attention(device: str, asked: Attention | None, weight_bytes: int) -> Attention:
    """Who computes attention of a draft that reads its whole context.

    What the user asks for, else OpenVINO for small models, whose steps take 0.7 of the time that they take
    with operations of ours. Rows of a draft may depend on each other: the target decides what stands.

    Args:
        device: of the draft; what is asked for holds on a CPU.
        asked: by the user.
        weight_bytes: of the draft.
    """
    if asked and is_cpu(device):
        return asked
    return "stock" if weight_bytes <= SMALL_MODEL else attention_on(device, None)


def draft_linear(
    info: ModelInfo, device: str, attention: Attention | None, linear: LinearBackend | None
) -> LinearBackend | None:
    """Who computes linear layers of a draft or a head: what the user asks for, else we, but not beside
    `attention="stock"`.

    Our operation takes layers of one input together. Of the time with OpenVINO's products, 4 drafts of the
    demo's draft model take 0.7 (AVX2), and those of its head 0.86 (bf16), 0.82 in f32.

    Args:
        device: of the draft.
        attention, linear: asked for by the user, for the target.
    """
    if linear == "stock" or (linear is None and attention == "stock"):
        return "stock"
    return "native" if is_cpu(device) and info.weight_format() in WEIGHT_FORMATS else None


def draft_properties(
    given: Mapping[str, object], attention: Attention, linear: LinearBackend | None
) -> dict[str, object]:
    """Properties of a draft: f32 beside OpenVINO's attention, unless the user says a precision.

    Our operation reads and writes f32: a small model has as many conversions as layers in another type.
    """
    mixed = linear == "native" and attention == "stock"
    if mixed and not any(key in given for key in _PRECISIONS):
        return {**given, "INFERENCE_PRECISION_HINT": "f32"}
    return dict(given)


def draft_runner(model: Path | ov.Model, backends: Backends, weight_bytes: int) -> ModelRunner:
    """A runner whose passes take `added_rows` where the model is small and no row depends on them.

    Rows depend on others by what they choose together (blocks, experts, channels), by keys of a block that
    share scales, and by the length of the text in models with long RoPE. Layers of linear attention would
    keep the state behind added rows.

    Args:
        model: its folder, or the model itself.
        backends: the operations that compute it.
        weight_bytes: of the model; a large one waits for its weights, not for the plugin.

    Raises:
        ValueError: as `ModelRunner`.
    """
    runner = ModelRunner(model, backends=backends)
    chooses = backends.limits_weights or backends.attention.selects
    depends = chooses or runner.long_rope is not None or runner.recurrent
    alone = not depends and not why_rows_stay(runner.cache, runner.block_size)
    if runner.fixed_graphs is not None:
        runner.fixed_graphs.drafts = True
    runner.repeats_rows = backends.on_cpu and weight_bytes <= SMALL_MODEL and alone
    return runner

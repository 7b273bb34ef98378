"""A DFlash head (arXiv 2602.06036) as a stateful graph: its layers denoise a block of tokens at once.

Rows of two kinds pass it. A row of the context has the target's joined states; in every layer it leaves a key
and a value made of these. A row of the block has the embedding of a token, the last of the text or the mask
token; it goes through the layers and sees the context and the whole block. Layers with a window see less of
both: the graph is the same, and who compiles it says what rows see (`RowSight`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_models.folder.head_info import (
    OWN_EMBEDDING,
    OWN_OUTPUT,
    block_of,
    block_settings,
    boundaries_of,
    form_of,
    has_own_tokens,
    of_speculators,
)
from ovspec_models.folder.layer_windows import MOST_LAYERS, layer_windows
from ovspec_models.heads.checkpoint import (
    CheckpointWeights,
    HeadCheckpoint,
    head_model,
    is_buffer,
)
from ovspec_models.heads.convolutions import Convolutions
from ovspec_models.heads.correction_form import Sizes
from ovspec_models.heads.corrections import correction_arrays, correction_graph, correction_settings
from ovspec_models.heads.draft_vocabulary import check_tables
from ovspec_models.heads.settings import AS_COMPUTED, OF_LAYERS, HeadSettings
from ovspec_models.shapes import ModelShape
from ovspec_models.synthetic.attention import attention
from ovspec_models.synthetic.decoder import embed, kv_states, parameter, shared_inputs, text_inputs
from ovspec_models.synthetic.layers import dense_ffn, i64, i64_scalar, linear, rms_norm
from ovspec_models.synthetic.weights import Weights
from ovspec_transforms import BLOCK_ROWS

_EMBEDDING, _OUTPUT, _MIXES = "embed_tokens.weight", "lm_head.weight", "self_attn"
_WHOLE = ("fc.weight", "hidden_norm.weight", "norm.weight")
_BLOCK = ("block_size", "mask_token_id")
_CORRECTION = "correction."
# What `layer_windows` reads.
_WINDOWS = ("layer_types", "sliding_window", "use_sliding_window")
_SETTINGS = HeadSettings(
    read=(*OF_LAYERS, *_WINDOWS, "num_hidden_layers", "draft_vocab_size", *_BLOCK),
    values={
        **{name: values for name, values in AS_COMPUTED.items() if name not in _WINDOWS},
        "sample_from_anchor": (False, True),
        "sliding_window_non_causal": (False, True),
    },
    inside={"dflash_config": ("target_layer_ids", *_BLOCK)},
)


def dflash_settings(config: dict[str, Any]) -> HeadSettings:
    """What of config.json a head follows."""
    return _SETTINGS.and_those(correction_settings(config))


def dflash_model(checkpoint: HeadCheckpoint, weight_format: str | None = None) -> ov.Model:
    """The graph of a checkpoint, as `dflash_graph`.

    Raises:
        ValueError: as `dflash_arrays`.
    """
    arrays, is_f32 = dflash_arrays(checkpoint), weight_format == "fp32"
    weights = CheckpointWeights(arrays, is_f32)
    states = arrays["fc.weight"].shape[1]
    own = {
        name.removeprefix(_CORRECTION): array
        for name, array in arrays.items()
        if name.startswith(_CORRECTION)
    }
    correction = correction_graph(checkpoint.config, own, is_f32, _sizes(checkpoint))
    more = More(arrays.get("d2t"), *correction, _convolutions(checkpoint))
    return dflash_graph(dflash_shape(checkpoint), weights, states, more)


@dataclass(frozen=True, slots=True)
class More:
    """What a head has more than the paper's.

    Attributes:
        offsets: `d2t` of a head with tokens of its own, then an output too.
        inputs, outputs: of its correction.
        convolutions: around attention and MLP.
    """

    offsets: NDArray[Any] | None = None
    inputs: Sequence[ov.Node] = ()
    outputs: Mapping[str, ov.Node] = field(default_factory=dict)
    convolutions: Convolutions | None = None


def dflash_graph(shape: ModelShape, weights: Weights, states: int, more: More | None = None) -> ov.Model:
    """The graph of a head.

    Inputs ``input_ids``, ``hidden_states`` f32 ``[batch, rows, states]``, ``attention_mask``,
    ``position_ids``, ``beam_idx``, and ``block_rows`` i64 ``[block rows]``, which rows are of a block; output
    ``logits`` f32 ``[batch, rows, vocabulary]``, of meaning for these. Embedding and output layer have one
    token where the head has none of its own; the target's replace them when it is loaded.

    Args:
        shape: of the layers.
        weights: by their names in checkpoints, and the two that stand for the target's.
        states: size of the target's joined states.
        more: that the head has.
    """
    more = more or More()
    inputs, block = text_inputs(), parameter(BLOCK_ROWS, ov.Type.i64, -1)
    given = parameter("hidden_states", ov.Type.f32, -1, -1, states)
    eps, size = shape.rms_norm_eps, shape.hidden_size

    def flat(rows: ov.Node) -> ov.Node:
        return ops.reshape(rows, i64(-1, size), special_zero=False)

    def of_block(rows: ov.Node) -> ov.Node:
        return ops.gather(flat(rows), block, i64_scalar(0))

    def among_all(rows: ov.Node) -> ov.Node:
        """The context with these rows in the block's places, in the form of the inputs."""
        everything = ops.scatter_update(flat(context), block, rows, i64_scalar(0))
        return ops.reshape(everything, ops.shape_of(context, "i64"), special_zero=False)

    context = rms_norm(linear(given, weights, "fc.weight"), weights, "hidden_norm.weight", eps)
    hidden = of_block(embed(weights.matrix(_EMBEDDING), inputs.ids))
    caches = kv_states(shape, inputs)
    shared = shared_inputs(shape, inputs, context, caches)
    stores: list[ov.Node] = []
    for layer in range(shape.num_hidden_layers):
        name = f"layers.{layer}"

        def mix(rows: ov.Node, name: str = name, layer: int = layer) -> ov.Node:
            mixed, assigns = attention(
                among_all(rows), shape, weights, f"{name}.{_MIXES}", shared, caches[layer]
            )
            stores.extend(assigns)
            return of_block(mixed)

        def ffn(rows: ov.Node, name: str = name) -> ov.Node:
            return dense_ffn(rows, weights, f"{name}.mlp")

        for norm, part, compute in (("input", "attention", mix), ("post_attention", "mlp", ffn)):
            rows = rms_norm(hidden, weights, f"{name}.{norm}_layernorm.weight", eps)
            if more.convolutions:
                rows = more.convolutions.around(rows, weights, f"{name}.{part}_conv", compute)
            else:
                rows = compute(rows)
            hidden = ops.add(hidden, rows)
    logits = linear(rms_norm(among_all(hidden), weights, "norm.weight", eps), weights, _OUTPUT)
    outputs = {"logits": logits}
    if more.offsets is not None:
        outputs["d2t"] = ops.constant(more.offsets.astype(np.int64))
    every = [inputs.ids, given, *inputs[1:], block, *more.inputs]
    return head_model("dflash", {**outputs, **more.outputs}, every, stores)


def dflash_shape(checkpoint: HeadCheckpoint) -> ModelShape:
    """The sizes of the layers.

    Raises:
        ValueError: as `HeadCheckpoint.shape`, or no number of layers.
    """
    return checkpoint.shape(1, checkpoint.count("num_hidden_layers", most=MOST_LAYERS), qk_norm=True)


def dflash_arrays(checkpoint: HeadCheckpoint) -> dict[str, NDArray[Any]]:
    """The weights by the names of the graph.

    Raises:
        ValueError: a weight is missing or has another shape, or config.json does not say what is read.
    """
    config, where, shape = checkpoint.config, f"head '{checkpoint.folder}'", dflash_shape(checkpoint)
    layer_windows(checkpoint.folder, config, of_speculators(config))
    boundaries = boundaries_of(checkpoint.folder, config)
    if boundaries is None:
        raise ValueError(f"{where}: config.json has no target_layer_ids in dflash_config; get the head again")
    arrays: dict[str, NDArray[Any]] = {}
    for name, wanted in dflash_weights(shape, len(boundaries)).items():
        arrays[name] = checkpoint.array(name, f"model.{name}", dims=wanted)
    sizes = _sizes(checkpoint)
    for name, tokens in ((_EMBEDDING, sizes.target), (_OUTPUT, sizes.drafted)):
        if held := checkpoint.held(name, f"model.{name}"):
            arrays[name] = checkpoint.array(held, dims=(tokens, shape.hidden_size))
        else:
            arrays[name] = np.zeros((1, shape.hidden_size), np.float32)
    if has_own_tokens(config):
        checkpoint.array(_OUTPUT, f"model.{_OUTPUT}")
        arrays["d2t"] = checkpoint.array("d2t")
        check_tables(checkpoint.folder, sizes.drafted, arrays["d2t"], checkpoint.arrays.get("t2d"))
    if convolutions := _convolutions(checkpoint):
        arrays |= convolutions.arrays(checkpoint, shape.num_hidden_layers)
    own_correction = correction_arrays(checkpoint, sizes)
    return {**arrays, **{f"{_CORRECTION}{name}": array for name, array in own_correction.items()}}


def _sizes(checkpoint: HeadCheckpoint) -> Sizes:
    target, block = checkpoint.count("vocab_size"), block_of(checkpoint.folder, checkpoint.config)
    drafted, said = checkpoint.count("draft_vocab_size", target), block_settings(checkpoint.config)
    candidates = checkpoint.count("selector_top_k", config=said) if _is_dflash2(checkpoint) else 0
    return Sizes(checkpoint.count("hidden_size"), block[0], target, drafted, candidates)


def _convolutions(checkpoint: HeadCheckpoint) -> Convolutions | None:
    return Convolutions.of(checkpoint, _sizes(checkpoint)) if _is_dflash2(checkpoint) else None


def _is_dflash2(checkpoint: HeadCheckpoint) -> bool:
    return form_of(checkpoint.config) == "dflash2"


def dflash_ignores(name: str) -> bool:
    """Whether a weight changes nothing: which tokens it can draft, d2t says too."""
    return name == "t2d" or is_buffer(name)


def dflash_weights(shape: ModelShape, boundaries: int) -> dict[str, tuple[int, ...]]:
    """Every weight's name in checkpoints, and its shape ``(out, in)``.

    Args:
        shape: of the layers.
        boundaries: that the head reads, of states as large as its own.
    """
    hidden, found = shape.hidden_size, dict[str, tuple[int, ...]]()
    for name, dims in shape.weight_shapes().items():
        if ".layers." in name:
            found[name.removeprefix("model.")] = dims
    return {**dict(zip(_WHOLE, ((hidden, boundaries * hidden), (hidden,), (hidden,)), strict=True)), **found}


def dflash_facts(checkpoint: HeadCheckpoint) -> dict[str, Any]:
    """What config.json of the exported folder says beside the published one."""
    own = {OWN_EMBEDDING: _EMBEDDING, OWN_OUTPUT: _OUTPUT}
    return {fact: checkpoint.held(name, f"model.{name}") is not None for fact, name in own.items()}

"""Layers of Granite 4's hybrid models as OpenVINO pages them, for optimum-intel 2.1.

Its own form of such a layer begins a text anew in every pass of several rows. Here a layer is a convolution
behind the rows before, and a loop over tokens that OpenVINO joins to one operation with a state
(SelectiveSSM), as in the exports of optimum-intel 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
import openvino as ov
from openvino import opset14 as ops  # OpenVINO joins loops with the Squeeze of this opset, not of the next

from ovspec_models.folder.private_names import misfit
from ovspec_transforms.graph import i64

_PATCHER = "optimum.exporters.openvino.model_patcher"
_MIXER, _CONVOLUTION = "zamba2_mamba_mixer", "ov_causal_conv1d"
_OPERATION = "OvspecSelectiveScan"


@contextmanager
def scanned(config: Any) -> Iterator[None]:
    """Within this context, optimum-intel exports layers with states in the form of this file.

    Args:
        config: its class for this model.
    """
    patcher = getattr(config, "_MODEL_PATCHER", None)
    with ExitStack() as stack:
        if patcher is not None and not misfit(_PATCHER, [_MIXER, _CONVOLUTION]):
            stack.enter_context(patch.object(config, "_MODEL_PATCHER", _with_loops(patcher)))
            stack.enter_context(patch.object(import_module(_PATCHER), _MIXER, _mixer))
        yield


def _with_loops(patcher: Any) -> Any:
    """optimum-intel's patch of the model, whose layers get a module that becomes a loop."""
    import torch
    from openvino.frontend.pytorch import ConversionExtension, ModuleExtension

    class Scan(torch.nn.Module):  # type: ignore[misc]
        """Numbers of the loop's sizes: what follows is traced behind it."""

        def forward(self, decay: Any, steps: Any, keys: Any, values: Any, reads: Any, state: Any) -> Any:
            return torch.cat([values.flatten(), state.flatten()])

    class Patcher(patcher):  # type: ignore[misc]
        def __init__(self, config: Any, model: Any, model_kwargs: Any = None) -> None:
            super().__init__(config, model, model_kwargs)
            for layer in model.model.layers:
                if layer.mamba is not None:
                    layer.mamba.scan = Scan()
            self.module_extensions = {Scan: ModuleExtension(Scan, _OPERATION)}
            self.conversion_extensions = [ConversionExtension(_OPERATION, _scan)]

    return Patcher


def _mixer(
    self: Any, hidden_states: Any, cache_params: Any = None, attention_mask: Any = None, **_: Any
) -> Any:
    """Trace a layer that keeps a state, over rows `[batch, rows, hidden]` behind what its caches hold."""
    import torch

    convolve = getattr(import_module(_PATCHER), _CONVOLUTION)
    place = cache_params.mamba_layer_idx_mapping[self.layer_idx]
    convolutions, states = cache_params.conv_states, cache_params.ssm_states
    batch, rows, _ = hidden_states.shape
    shared = self.n_groups * self.ssm_state_size
    gate, mixed, steps = self.in_proj(hidden_states).split(
        [self.intermediate_size, self.conv_dim, self.num_heads], -1
    )
    mixed, convolutions[place] = convolve(
        convolutions[place], mixed.transpose(1, 2), self.conv1d.weight, self.conv1d.bias
    )
    values, keys, reads = self.act(mixed).transpose(1, 2).split([self.intermediate_size, shared, shared], -1)
    values = values.reshape(batch, rows, self.num_heads, self.head_dim)
    keys, reads = (part.reshape(batch, rows, self.n_groups, self.ssm_state_size) for part in (keys, reads))
    steps = torch.nn.functional.softplus(steps + self.dt_bias).clamp(*self.time_step_limit)
    found = self.scan(-self.A_log.exp(), steps, keys, values, reads, states[place])
    count = batch * rows * self.num_heads * self.head_dim
    states[place] = found[count:].reshape(states[place].shape)
    output = found[:count].reshape(batch, rows, self.num_heads, self.head_dim) + values * self.D[:, None]
    return self.out_proj(self.norm(output.reshape(batch, rows, -1), gate))


def _scan(context: Any) -> list[ov.Output]:
    """The loop of a layer.

    Its inputs are the decay `[heads]`, steps `[batch, rows, heads]`, keys and reads `[batch, rows, groups,
    size]`, values `[batch, rows, heads, width]`, and the state `[batch, heads, width, size]`. A token leaves
    state * exp(decay * step) + step * value x key; its output is that state times what it reads. Outputs
    `[batch, rows, heads, width]` and the last state come as one vector.
    """
    decay, steps, keys, values, reads, state = (context.get_input(place) for place in range(6))

    def size(node: ov.Output, axis: int) -> ov.Node:
        return ops.gather(ops.shape_of(node, "i64"), i64([axis]), i64(0))

    repeats = ops.divide(size(steps, 2), size(keys, 2))
    once = i64([1])

    def of_heads(groups: ov.Output) -> ov.Node:
        tiled = ops.tile(ops.unsqueeze(groups, i64(3)), ops.concat([once, once, once, repeats, once], 0))
        return ops.reshape(tiled, ops.concat([i64([0, 0, -1]), size(groups, 3)], 0), special_zero=True)

    # [batch, rows, heads, 1, 1], [..., width, size] and [..., 1, size]
    fades = ops.reshape(ops.exp(ops.multiply(decay, steps)), i64([0, 0, 0, 1, 1]), special_zero=True)
    written = ops.multiply(ops.unsqueeze(steps, i64(-1)), of_heads(keys))
    written = ops.multiply(ops.unsqueeze(written, i64(-2)), ops.unsqueeze(values, i64(-1)))
    read = ops.unsqueeze(of_heads(reads), i64(-2))
    loop = ops.loop(ops.convert(ops.squeeze(size(values, 1), i64(0)), "i32"), ops.constant(True))
    names = (("fade", 1, -1, 1, 1), ("write", 1, -1, -1, -1), ("read", 1, -1, 1, -1))
    sliced = [ops.parameter([-1, *dims], np.float32, name) for name, *dims in names]
    before, outputs = (ops.parameter([-1] * 4, np.float32, name) for name in ("state", "outputs"))
    token = ops.parameter([], np.int32, "token")
    fade, write, reading = (ops.squeeze(one, _i32(1)) for one in sliced)
    after = ops.add(ops.multiply(before, fade), write)
    output = ops.unsqueeze(ops.reduce_sum(ops.multiply(after, reading), _i32(-1), False), _i32(1))
    filled = ops.scatter_update(outputs, ops.unsqueeze(token, _i32(0)), output, _i32(1))
    results = [ops.result(node) for node in (ops.constant([True]), after, filled)]
    loop.set_function(ov.Model(results, [token, *sliced, before, outputs], "selective_scan"))
    for part, given in zip(sliced, (fades, written, read), strict=True):
        loop.set_sliced_input(part, given.output(0), 0, 1, 1, -1, 1)
    loop.set_merged_input(before, state, after.output(0))
    empty = ops.broadcast(ops.constant(0.0, np.float32), ops.shape_of(values))
    loop.set_merged_input(outputs, empty.output(0), filled.output(0))
    loop.set_special_body_ports([0, 0])
    found = [loop.get_iter_value(node.output(0), -1) for node in (filled, after)]
    flat = [ops.reshape(one, i64([-1]), special_zero=False) for one in found]
    return [ops.concat(flat, 0).output(0)]


def _i32(value: int) -> ov.Node:
    return ops.constant(np.array(value, np.int32))

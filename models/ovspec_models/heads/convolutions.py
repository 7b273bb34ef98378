"""DFlash2's convolutions: before and behind attention and MLP, a row takes from those of its block before it.

How much, a kernel says that every row makes for itself, added to one that is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ovspec_models.folder.head_info import block_settings
from ovspec_models.heads.checkpoint import HeadCheckpoint
from ovspec_models.heads.correction_form import Sizes
from ovspec_models.synthetic.layers import i64, i64_scalar, linear, size_of
from ovspec_models.synthetic.weights import Weights

_AROUND = ("attention_conv", "mlp_conv")
_SIDES = 2


class Convolutions:
    """Those of all layers, over the rows of whole blocks.

    Args:
        taps: rows that one takes from, itself counted.
        group: channels that share a row's own kernel.
        sizes: of the head.
    """

    def __init__(self, taps: int, group: int, sizes: Sizes) -> None:
        self._taps, self._group, self._sizes = taps, group, sizes

    @classmethod
    def of(cls, checkpoint: HeadCheckpoint, sizes: Sizes) -> Convolutions:
        """By config.json.

        Raises:
            ValueError: a number is missing, or does not go into the sizes of the head.
        """
        said = block_settings(checkpoint.config)
        taps = checkpoint.count("conv_kernel_size", config=said, most=sizes.block)
        group = checkpoint.count("conv_group_size", config=said)
        if sizes.hidden % group:
            raise ValueError(
                f"head '{checkpoint.folder}': conv_group_size of config.json is {group}, expected a divisor "
                f"of hidden_size {sizes.hidden}; get the head again"
            )
        return cls(taps, group, sizes)

    def arrays(self, checkpoint: HeadCheckpoint, layers: int) -> dict[str, NDArray[Any]]:
        """The weights by the names of the graph."""
        found, hidden = dict[str, NDArray[Any]](), self._sizes.hidden
        for name in (f"layers.{layer}.{part}" for layer in range(layers) for part in _AROUND):
            base = checkpoint.array(f"{name}.base_kernel", dims=(_SIDES, self._taps, hidden))
            for side in range(_SIDES):
                found |= {f"{name}.{side}.{tap}": base[side, tap] for tap in range(self._taps)}
            made = (_SIDES * self._taps * hidden // self._group, hidden)
            found[f"{name}.own.weight"] = checkpoint.array(f"{name}.kernel_projection.weight", dims=made)
        return found

    def around(
        self, rows: ov.Node, weights: Weights, name: str, compute: Callable[[ov.Node], ov.Node]
    ) -> ov.Node:
        """What `compute` makes of the rows ``[rows, hidden]``, with convolutions before and behind it."""
        groups = self._sizes.hidden // self._group
        kernels = ops.reshape(
            linear(rows, weights, f"{name}.own.weight"),
            i64(-1, _SIDES * self._taps, groups, 1),
            special_zero=False,
        )
        before = self._convolved(rows, kernels, weights, name, 0)
        return self._convolved(compute(before), kernels, weights, name, 1)

    def _convolved(self, rows: ov.Node, kernels: ov.Node, weights: Weights, name: str, side: int) -> ov.Node:
        hidden, group = self._sizes.hidden, self._group
        number = ops.range(i64_scalar(0), size_of(rows, 0), i64_scalar(1), "i64")
        place = ops.unsqueeze(ops.floor_mod(number, i64_scalar(self._sizes.block)), i64(1))
        found: ov.Node | None = None
        for tap in range(self._taps):
            own = ops.gather(kernels, i64_scalar(side * self._taps + tap), i64_scalar(1))
            base = weights.vector(f"{name}.{side}.{tap}", 2)
            kernel = ops.add(ops.reshape(base, i64(1, hidden // group, group), special_zero=False), own)
            taken = rows
            if tap:
                # Those before the block count nothing.
                inside = ops.convert(ops.greater_equal(place, i64_scalar(tap)), "f32")
                earlier = ops.maximum(ops.subtract(number, i64_scalar(tap)), i64_scalar(0))
                taken = ops.multiply(ops.gather(rows, earlier, i64_scalar(0)), inside)
            product = ops.multiply(taken, ops.reshape(kernel, i64(-1, hidden), special_zero=False))
            found = product if found is None else ops.add(found, product)
        assert found is not None
        return found

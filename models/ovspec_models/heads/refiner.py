"""XPress's refiner: a bias by the tokens before, which a mixer takes from every earlier place of the block.

The package refines whole blocks several times, each by the tokens of the time before; a place is final as
soon as those before it are. Going from place to place gives the same tokens.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ovspec_models.heads.checkpoint import CheckpointWeights, HeadCheckpoint
from ovspec_models.heads.correction_form import (
    BEFORE,
    GIVEN,
    GIVEN_MEAN,
    Arrays,
    CorrectionForm,
    Place,
    Sizes,
    rows_of,
)
from ovspec_models.heads.settings import HeadSettings
from ovspec_models.synthetic.layers import dense_ffn, i64, linear

_HEAD = "refiner_head"
_TOKEN, _MIX, _OUTPUT = "token.weight", "mix.weight", "output.weight"
_MLP = {"gate_proj": "mlp_gate", "up_proj": "mlp_up", "down_proj": "mlp_down"}


def _arrays(checkpoint: HeadCheckpoint, sizes: Sizes) -> Arrays:
    rank, block = checkpoint.count("xpress_rank"), sizes.block
    inner = rank * checkpoint.count("xpress_mlp_ratio", 2)

    def array(name: str, *dims: int) -> np.ndarray:
        return checkpoint.array(f"{_HEAD}.{name}", dims=dims)

    joined = array("in_proj.weight", rank, 3 * rank)
    # [channel, place, earlier place]
    mix = np.tril(array("mix_l", rank, block, block))
    return {
        BEFORE: array("token_embed.weight", sizes.target, rank),
        GIVEN: joined[:, :rank] @ array("down_h.weight", rank, sizes.hidden),
        GIVEN_MEAN: joined[:, rank : 2 * rank] @ array("down_g.weight", rank, sizes.hidden),
        _TOKEN: joined[:, 2 * rank :],
        _MIX: mix.transpose(1, 2, 0).reshape(block, block * rank),
        _OUTPUT: array("readout.weight", sizes.drafted, rank),
        **{
            f"mlp.{name}.weight": array(
                f"{theirs}.weight", *((rank, inner) if name == "down_proj" else (inner, rank))
            )
            for name, theirs in _MLP.items()
        },
    }


def _state(arrays: Arrays) -> int:
    """What every place of the block has left for later ones."""
    return int(arrays[_MIX].shape[1])


def _step(
    weights: CheckpointWeights, arrays: Arrays, place: Place, sizes: Sizes
) -> tuple[ov.Node, ov.Node | None]:
    block, rank = sizes.block, arrays[BEFORE].shape[1]
    x = ops.add(place.given, linear(place.before, weights, _TOKEN))
    here = ops.one_hot(
        place.number, ops.constant(np.array(block, np.int64)), np.float32(1), np.float32(0), -1
    )
    spread = ops.multiply(ops.unsqueeze(here, i64(2)), ops.unsqueeze(x, i64(1)))
    state = ops.add(place.state, ops.reshape(spread, i64(-1, block * rank), special_zero=False))
    mixed = ops.multiply(rows_of(weights, _MIX, place.number), state)
    by_place = ops.reshape(mixed, i64(-1, block, rank), special_zero=False)
    x = ops.add(x, ops.reduce_sum(by_place, i64(1), keep_dims=False))
    x = ops.add(x, dense_ffn(x, weights, "mlp"))
    return ops.add(place.logits, linear(x, weights, _OUTPUT)), state


REFINER = CorrectionForm(
    _arrays,
    _state,
    _step,
    # How often whole blocks would be refined.
    HeadSettings(read=("xpress_rank", "xpress_mlp_ratio", "num_jacobi_passes"), values={}),
    leads=2,
    whole=True,
)

"""Operations on more threads than this machine has cores: the same bits, and work for every thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from ops.experts import Experts, route
from ops.mlps import Mlp
from ops.passes import OpsPass, attention_tensors, evaluate
from ops.test_decoder_layers import SIZES
from ops.test_decoder_layers import Layers as DecoderLayers
from ops.test_gated_mlp import rows_of
from ops.test_gated_mlp import tensors_of as mlp_tensors
from ops.test_linear import Layers
from ops.test_moe import tensors_of as expert_tensors

from ovspec_ops import loader

Load = tuple[str, dict[str, ov.Tensor], dict[str, Any]]


def attention(sequences: int, context: int, rows: int, **sizes: Any) -> Load:
    case = OpsPass(
        [(context, rows, True)] * sequences, **{"fmt": "u8_token", "k_size": 64, "v_size": 64, **sizes}
    )
    return "VerifyAttention", attention_tensors(case), case.attributes


def linear(inputs: int, outputs: int, rows: int) -> Load:
    layers = Layers(inputs, (outputs,))
    return "Linear", layers.tensors(layers.rows(rows)), layers.attributes


def gated_mlp() -> Load:
    mlp = Mlp(512, 1024, "u4", (4, 8))
    return "GatedMLP", mlp_tensors(mlp, rows_of(mlp, 8)), mlp.attributes


def experts() -> Load:
    x = np.random.default_rng(2).standard_normal((40, 512)).astype(np.float32)
    return (
        "SparseMoE",
        expert_tensors(x, *route(np.random.default_rng(2), 40, 3, 8), Experts(8, 512, 384, "int8")),
        {},
    )


def layers() -> Load:
    made = DecoderLayers(SIZES[3], rows=5)
    return "DecoderLayers", made.tensors, {"program": made.program}


LOADS: dict[str, Callable[[], Load]] = {
    "a layer of 1,024 outputs, 5 rows": lambda: linear(1024, 1024, 5),
    "a layer of 1,024 outputs, a prompt": lambda: linear(256, 1024, 200),
    "32 sequences of 5 rows": lambda: attention(32, 300, 5),
    "a sequence of 1,024 tokens, 2 KV heads, 5 rows": lambda: attention(1, 1024, 5, group=7),
    "a row behind 1,024 tokens, 2 KV heads": lambda: attention(1, 1024, 1, group=7),
    "a sequence of 3,000 tokens, a part of the blocks": lambda: attention(1, 3000, 8, keep=0.2),
    "a tree": lambda: attention(1, 3000, 17, tree=True, kv_heads=8),
    "a prompt": lambda: attention(1, 100, 400, kv_heads=1),
    "gated MLP": gated_mlp,
    "experts": experts,
    "decoder layers": layers,
}  # fmt: skip


#: What is too small for 32 threads: items into which it can be divided.
ITEMS = {
    "a row behind 1,024 tokens, 2 KV heads": 6,
    "gated MLP": 22,
    "a sequence of 1,024 tokens, 2 KV heads, 5 rows": 30,
    "a sequence of 3,000 tokens, a part of the blocks": 24,
    "a prompt": 31,
}


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("load", LOADS)
def test_threads_of_an_operation_change_no_bit(load: str, threads: int) -> None:
    """Attribute `threads`, on a stream of one thread."""
    op_type, tensors, attributes = LOADS[load]()
    wanted = evaluate(op_type, tensors, attributes)
    for want, have in zip(
        wanted, evaluate(op_type, tensors, {**attributes, "threads": threads}), strict=True
    ):
        np.testing.assert_array_equal(have, want)


def test_callers_that_meet_at_shared_threads_get_their_own_results() -> None:
    """One operation has them at a time; the others go on without, also where one fails."""
    op_type, tensors, attributes = attention(1, 1024, 5, group=7)
    wanted = evaluate(op_type, tensors, attributes)[0]
    broken = {**tensors, "verify_tables": ov.Tensor(np.zeros(1, np.int32))}

    def call(number: int) -> bool:
        for _ in range(20):
            if number == 0:
                with pytest.raises(ValueError, match="verify_tables holds 1 values"):
                    evaluate(op_type, broken, {**attributes, "threads": 2})
            elif not np.array_equal(evaluate(op_type, tensors, {**attributes, "threads": 2})[0], wanted):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(4)))


@pytest.mark.parametrize("threads", [-1, 257])
def test_an_operation_refuses_numbers_of_threads(threads: int) -> None:
    op_type, tensors, attributes = linear(64, 32, 1)
    with pytest.raises(ValueError, match=f"Linear: attribute threads is {threads}, expected 1 to 256, or 0"):
        evaluate(op_type, tensors, {**attributes, "threads": threads})


@pytest.mark.parametrize("threads", [1, 3, 8, 32])
@pytest.mark.parametrize("load", LOADS)
def test_bits_and_work_for_every_thread(load: str, threads: int) -> None:
    op_type, tensors, attributes = LOADS[load]()
    got = list[NDArray[Any]]()
    call_on_threads = ctypes.CDLL(str(loader.extension_path())).ovspec_call_on_threads
    call_on_threads.restype = ctypes.c_size_t
    call = ctypes.CFUNCTYPE(None)(lambda: got.extend(evaluate(op_type, tensors, attributes)))
    items = call_on_threads(threads, call)  # of the loop that has the most
    assert items >= min(threads, ITEMS.get(load, threads))
    busiest = -(-items // threads)
    assert load in ITEMS or busiest * threads <= 1.5 * items, "threads wait for one that has more items"
    for want, have in zip(evaluate(op_type, tensors, attributes), got, strict=True):
        np.testing.assert_array_equal(have, want)

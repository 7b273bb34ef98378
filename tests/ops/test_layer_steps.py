"""Every step of DecoderLayers but those of whole layers, against its reference and its operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ops.compare import assert_close
from ops.experts import Experts, route
from ops.mlps import PARTS, Mlp
from ops.passes import OpsPass, evaluate
from ops.properties import examples
from ops.test_key_summary import UNTOUCHED, check_summaries, inputs_of
from ops.test_key_summary import sizes as summary_sizes

from ovspec_ops.decoder_layers.reference import VERSION, decoder_layers
from ovspec_ops.key_summary.reference import summarise

OF_VALUES = ("silu", "gelu_tanh", "gelu_erf", "relu", "sigmoid", "tanh", "softmax", "normalize")
OF_PARTS = ("rms", "layer_norm", "rope", "rope_pairs", "halves")
OF_TWO = ("add", "multiply", "silu_multiply", "weights", "scale")


def both(program: str, inputs: list[NDArray[Any]]) -> None:
    """Check the outputs of a program."""
    names = [word.partition(":")[0] for word in program.splitlines()[1].split()[1:]]
    tensors = dict(zip(names, map(ov.Tensor, inputs), strict=True))
    got = evaluate("DecoderLayers", tensors, {"program": program})
    for want, found in zip(decoder_layers(program, inputs), got, strict=True):
        assert_close("rows", want, found, 1e-5)


def steps_of_parts(kind: str, width: int, size: int) -> str:
    if kind in ("rms", "layer_norm"):
        return f"y:{width} = {kind} x w@8 size={size} eps=1e-05"
    if kind == "halves":
        return f"y:{width} = rope x hc hs size={size}"
    return f"y:{width} = {kind} x cos sin"


@pytest.mark.parametrize("kind", [*OF_VALUES, *OF_PARTS, *OF_TWO])
@examples(3)
@given(data=st.data())
def test_random_rows(isa: str, kind: str, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    rows, parts, half = (data.draw(st.integers(1, most)) for most in (5, 4, 20))
    size = 2 * half
    width = parts * size
    arrays = [
        rng.standard_normal((rows, n)).astype(np.float32) for n in (width, width, size, size, half, half)
    ]
    factor = rng.standard_normal((rows, 1)).astype(np.float32)
    slab = np.concatenate(
        [np.full(8, 0xA5, np.uint8), rng.standard_normal(width).astype(np.float32).view(np.uint8)]
    )
    if kind in OF_PARTS:
        step = steps_of_parts(kind, width, size)
    elif kind in OF_VALUES:
        arrays[0] = np.abs(arrays[0]) if kind == "normalize" else arrays[0] * 4
        arrays[0][:, 0] = 1.0  # the tails of an activation alone have no scale of errors
        step = f"y:{width} = {kind} x"
    else:
        second = {"weights": "w@8", "scale": "f"}.get(kind, "b")
        step = f"y:{width} = {'multiply' if kind == 'weights' else kind} x {second}"
    names = f"x:{width} b:{width} cos:{size} sin:{size} hc:{half} hs:{half} f:1 w"
    both(f"{VERSION}\ninput {names}\n{step}\noutput y", [*arrays, factor, slab])


def test_tanh_of_small_values(isa: str) -> None:
    """Each by itself: a difference of exponentials loses their digits."""
    x = np.array([[sign * value for value in np.logspace(-12, 0, 40) for sign in (1, -1)]], np.float32)
    program = f"{VERSION}\ninput x:{x.size}\ny:{x.size} = tanh x\noutput y"
    (got,) = evaluate("DecoderLayers", {"x": ov.Tensor(x)}, {"program": program})
    np.testing.assert_allclose(got, np.tanh(x.astype(np.float64)), rtol=5e-6, atol=0)


@examples(40)
@given(st.data())
def test_slices_joined_again(data: st.DataObject) -> None:
    """Slices of parts, and the largest values."""
    rows, parts = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    first, a, b, rest = (data.draw(st.integers(1, 9)) for _ in range(4))
    size = first + a + b + rest
    x = np.random.default_rng(size).standard_normal((rows, parts * size)).astype(np.float32)
    x[:, -1] = x[:, 0]  # equals
    count = data.draw(st.integers(1, parts * size))
    lines = [
        f"a:{parts * a} b:{parts * b} = slice x size={size} first={first}",
        f"y:{parts * (a + b)} = concat b a parts={parts}",
        f"v:{count} i:i32[?,{count}] = top_k x",
    ]
    both("\n".join([VERSION, f"input x:{parts * size}", *lines, "output y v i"]), [x])


@pytest.mark.parametrize("computed", [0, 1])
def test_steps_that_a_pass_leaves_out(computed: int) -> None:
    """Their tables have no row; a place behind the end, another type and a negative place are refused."""
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    lines = ["a:8 = silu x if=f#1", "v:2 i:i32[?,2] = top_k a if=f#1", "y:8 = either a x if=f#1"]
    program = "\n".join([VERSION, "input x:8 f", *lines, "output y i"])
    both(program, [x, np.array([1 - computed, computed], np.int32)])
    for flags in (np.zeros(1, np.int32), np.zeros(2, np.int64)):
        with pytest.raises(ValueError, match=r"input 1 has . values of type i.., expected more than 1"):
            both(program, [x, flags])
    with pytest.raises((ValueError, RuntimeError), match=r"'-1' in the line .* is no number"):
        both(program.replace("f#1", "f#-1"), [x, np.zeros(2, np.int32)])


def as_step(op_type: str, step: str, forms: list[str], arrays: list[Any], attributes: dict[str, Any]) -> None:
    """An operation computes the same as a step; `forms` are those of its outputs."""
    names = [f"i{n}" for n in range(len(arrays))]
    tensors = dict(zip(names, map(ov.Tensor, map(np.ascontiguousarray, arrays)), strict=True))
    words = [f"{name}={value}" for name, value in attributes.items()]
    is_rows = [array.dtype == np.float32 and array.ndim == 2 and array.shape[1] > 0 for array in arrays]
    rows = len(arrays[0])
    heads = [
        f"{name}:{array.shape[1]}" if of_pass and len(array) == rows else name
        for name, array, of_pass in zip(names, arrays, is_rows, strict=True)
    ]
    made = [f"o{n}:{form}" for n, form in enumerate(forms)]
    line = " ".join([*made, "=", step, *names, *words])
    outputs = " ".join(word.partition(":")[0] for word in made)
    program = "\n".join([VERSION, "input " + " ".join(heads), line, f"output {outputs}"])
    alone = evaluate(op_type, tensors, attributes)
    for want, found in zip(alone, evaluate("DecoderLayers", tensors, {"program": program}), strict=True):
        np.testing.assert_array_equal(want, found)
    for want, found in zip(decoder_layers(program, arrays), alone, strict=True):
        assert_close(step, want, found, 2e-4)


@pytest.mark.parametrize("limit", [-1.0, 21.0])
def test_gated_mlp(isa: str, limit: float) -> None:
    mlp, rng = Mlp(72, 96, "u8"), np.random.default_rng(1)
    weights = [tensor for part in PARTS for tensor in mlp.parts[part]]
    hidden = rng.standard_normal((5, 72)).astype(np.float32)
    limits = [np.array([limit], np.float32), np.array([1, 0, 1, 1, 1], np.float32)]
    attributes = {"activation": "silu", **mlp.attributes, "layer": 0, "row_bits": 16}
    as_step("GatedMLP", "gated_mlp", ["72", "i32[1]"], [hidden, *weights, *limits], attributes)


def test_experts(isa: str) -> None:
    experts, rng = Experts(6, 64, 48, "int8"), np.random.default_rng(2)
    hidden = rng.standard_normal((5, 64)).astype(np.float32)
    routing = route(rng, 5, 2, 6)
    attributes = {"limit": 0.0, "alpha": 1.0}
    as_step("SparseMoE", "experts", ["64", "i32[1]"], [hidden, *routing, *experts.tensors], attributes)
    tables = [np.array([-1, 3], np.int32), np.array([0, 2, 5], np.int32), np.array([4, -1], np.int32)]
    as_step(
        "ExpertBudget", "expert_budget", ["i32[?,2]", "2"], [*routing, *tables], {"experts": 6, "layer": 1}
    )


def test_tables_stacked() -> None:
    """One behind the other; another shape is refused."""
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    lines = ["a:2 i:i32[?,2] = top_k x", "b:2 j:i32[?,2] = top_k y", "s:i32[2,?,2] = stack j i"]
    both("\n".join([VERSION, "input x:8 y:8", *lines, "output s i"]), [x, -x])
    lines[1] = "b:3 j:i32[?,3] = top_k y"
    with pytest.raises(ValueError, match=r"joins tables of shapes \[3,3\] and \[3,2\]"):
        both("\n".join([VERSION, "input x:8 y:8", *lines, "output s i"]), [x, -x])


def test_key_summary(isa: str) -> None:
    case = OpsPass([(150, 3, True), (40, 4, True)])
    tensors, summary = inputs_of(case)
    arrays = [tensor.data for tensor in tensors.values()]
    program = f"{VERSION}\ninput k a:{arrays[1].shape[1]} s t l\n"
    program += f"o:i32[1] = key_summary k a s t l kv_heads={case.kv_heads} k_size={case.k_size}\noutput o"
    named = dict(zip("kastl", tensors.values(), strict=True))
    evaluate("DecoderLayers", named, {"program": program})
    by_step = summary.copy()
    summary[...] = UNTOUCHED
    decoder_layers(program, arrays)
    check_summaries(summary, by_step, case.k_size)
    summary[...] = UNTOUCHED
    evaluate("KeySummary", tensors, summary_sizes(case))
    np.testing.assert_array_equal(by_step, summary)
    # By their addresses, as in a model.
    key_cache = arrays[0]
    table = np.array([len(key_cache), key_cache.ctypes.data, 0, summary.ctypes.data], np.uint64)
    summary[...] = UNTOUCHED
    program = f"{VERSION}\ninput c a:{arrays[1].shape[1]} t l\n"
    program += "o:i32[1] = key_summary c#0 a c#2 t l cache_type=f32 "
    program += f"kv_heads={case.kv_heads} k_size={case.k_size}\noutput o"
    named = {"c": ov.Tensor(table.view(np.uint8)), **{name: named[name] for name in "atl"}}
    evaluate("DecoderLayers", named, {"program": program})
    np.testing.assert_array_equal(by_step, summary)
    table[3] = 0
    named["c"] = ov.Tensor(table.view(np.uint8))
    with pytest.raises(ValueError, match=f"the summaries .* are of 0 blocks, its cache of {len(key_cache)}"):
        evaluate("DecoderLayers", named, {"program": program})


def test_summaries_of_fewer_blocks_than_the_cache() -> None:
    case = OpsPass([(150, 3, True)])
    tensors, summary = inputs_of(case)
    named = dict(zip("kastl", tensors.values(), strict=True)) | {"s": ov.Tensor(summary[:1].copy())}
    program = f"{VERSION}\ninput k a:{tensors['attention'].shape[1]} s t l\n"
    program += f"o:i32[1] = key_summary k a s t l kv_heads={case.kv_heads} k_size={case.k_size}\noutput o"
    with pytest.raises(ValueError, match="the summaries of a step key_summary are of 1 blocks"):
        evaluate("DecoderLayers", named, {"program": program})


@pytest.mark.parametrize(
    ("lists", "message"),
    [("none c", "has selected blocks without counts, or the reverse"), ("x x", "takes rows where a table")],
)
def test_lists_that_are_none(lists: str, message: str) -> None:
    case = OpsPass([(150, 3, True)])
    width = case.inputs["query"].shape[1]
    program = f"{VERSION}\ninput x:{width} k v t c\ny:{width} = attention x k v x t {lists} none "
    heads = f"kv_heads={case.kv_heads} k_size={case.k_size} v_size={case.k_size}"
    program += f"{heads} sliding_window=0 scale=1\noutput y"
    named = {"x": case.tensor("query"), "k": case.tensor("key_cache"), "v": case.tensor("value_cache")}
    named |= {"t": ov.Tensor(case.tables), "c": ov.Tensor(np.zeros(case.kv_heads, np.int32))}
    with pytest.raises(ValueError, match=message):
        evaluate("DecoderLayers", named, {"program": program})


def test_block_select(isa: str) -> None:
    case = OpsPass([(150, 3, True), (40, 4, True)])
    keys = case.inputs["key_cache"]
    summaries = np.stack([summarise(block, 32, case.k_size) for block in keys])
    limits = [np.array([2, -1], np.int32), np.ones(2, np.float32)]
    sizes = {"kv_heads": case.kv_heads, "k_size": case.k_size}
    attributes = {**sizes, "rule": "mass", "sink_blocks": 1, "local_blocks": 1, "scale": 0.25}
    arrays = [case.inputs["query"], summaries, np.zeros(1, np.int32), case.tables, *limits]
    as_step("BlockSelect", "block_select", ["i32[2,?]", "i32[2,?]"], arrays, attributes)

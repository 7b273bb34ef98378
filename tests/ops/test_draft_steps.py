"""A program that drafts, against its reference and against its own passes of one token."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ops.caches import BLOCK
from ops.compare import assert_close
from ops.passes import compile_op, evaluate, infer
from ops.properties import examples

from ovspec.sampling.coupling import Coupling
from ovspec.sampling.sampling import SamplingParams, sampling_distribution
from ovspec_ops.decoder_layers.draft_reference import choose
from ovspec_ops.decoder_layers.reference import VERSION, decoder_layers
from ovspec_ops.decoder_layers.sampling import SAMPLING
from ovspec_ops.linear.layout import pack_linear
from ovspec_ops.verify_attention import pack_tables

FORMATS = ("f32", "f16", "bf16", "u8", "i8")
HEADS, SIZE = 2, 8


@dataclass(frozen=True)
class Text:
    """Tokens in the cache, tokens that a pass reads behind them, and how many it drafts."""

    past: int
    rows: int
    drafts: int
    sampling: tuple[float, int, float, float] | None = None  # temperature, top_k, top_p, min_p


LAWS = st.tuples(
    st.sampled_from([0.3, 1.0, 1.7]), st.sampled_from([0, 1, 5]), st.floats(0.2, 1), st.floats(0, 0.5)
)


def samplings(texts: list[Text], seed: int = 0) -> NDArray[np.uint8]:
    """How each text draws what follows its rows; nothing where none does."""
    found = np.zeros(len(texts), SAMPLING)
    for index, text in enumerate(texts):
        temperature, top_k, top_p, min_p = text.sampling or (0.0, 0, 1.0, 0.0)
        found[index] = (seed + index * 7919, text.past + text.rows, top_k, temperature, top_p, min_p, 0)
    return found[: len(texts) if any(text.sampling for text in texts) else 0].view(np.uint8)


@dataclass
class Model:
    """One layer with random weights between an embedding and a choice; caches of several texts."""

    texts: list[Text]
    hidden: int = 24
    vocab: int = 70
    fmt: str = "f16"
    groups: int = 1
    seed: int = 0
    program: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._rng, self._slab = np.random.default_rng(self.seed), np.full(64, 0xA5, np.uint8)
        blocks = [-(-(t.past + t.rows + t.drafts) // BLOCK) for t in self.texts]
        ids = self._rng.permutation(sum(blocks) + 2).astype(np.int32)
        ends = list(accumulate(blocks))
        self.tables = [ids[end - count : end] for end, count in zip(ends, blocks, strict=True)]
        cache = (len(ids), 1, BLOCK, SIZE)
        self.keys, self.values = (self._rng.standard_normal(cache).astype(np.float32) for _ in range(2))
        self.table = self._embedding()
        self.program = "\n".join([VERSION, *self._lines()])
        self.tokens = [self._rng.integers(0, self.vocab, t.rows) for t in self.texts]

    def _place(self, data: NDArray[Any]) -> str:
        first = len(self._slab)
        padding = np.full(-data.nbytes % 64 + 64, 0xA5, np.uint8)
        self._slab = np.concatenate([self._slab, np.ascontiguousarray(data).view(np.uint8).ravel(), padding])
        return f"w@{first}"

    def _embedding(self) -> NDArray[np.uint8]:
        numbers = self._rng.standard_normal((self.vocab, self.hidden)).astype(np.float32)
        if self.fmt in ("u8", "i8"):
            shape = (self.vocab, self.groups)
            scales = self._rng.uniform(0.005, 0.02, shape).astype(np.float16)
            zeros = self._rng.integers(100, 160, shape) if self.fmt == "u8" else np.full(shape, 128)
            self._integers = f" {self._place(scales)} {self._place(zeros.astype(np.uint8))}"
            self._integers += f" groups={self.groups}"
            return self._rng.integers(0, 256, numbers.shape).astype(np.uint8)
        self._integers = ""
        if self.fmt == "bf16":
            return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return numbers.astype(np.float16 if self.fmt == "f16" else np.float32).view(np.uint8)

    def _linear(self, inputs: int, *outputs: int) -> str:
        weights = [self._rng.standard_normal((out, inputs)).astype(np.float32) for out in outputs]
        parts = [pack_linear(of / inputs**0.5, fmt="f32") for of in weights]
        return f"{self._place(np.concatenate(parts))} format=f32 groups=1 row_bits=32"

    def _lines(self) -> list[str]:
        hidden, query, key = self.hidden, HEADS * SIZE, SIZE
        heads = f"kv_heads=1 k_size={SIZE} v_size={SIZE}"
        norm = self._place(self._rng.uniform(0.5, 1.5, hidden).astype(np.float32))
        return [
            f"input ids cos:{SIZE} sin:{SIZE} slots tables sampled plan sampling k v table w",
            f"x:{hidden} = embedding ids table{self._integers} format={self.fmt} ids={self.vocab}",
            f"n:{hidden} = rms x {norm} size={hidden} eps=1e-05",
            f"q:{query} kn:{key} vn:{key} = linear n {self._linear(hidden, query, key, key)}",
            f"qr:{query} = rope q cos sin",
            f"kr:{key} = rope kn cos sin",
            f"c:0 = cache_write kr vn k v slots {heads}",
            f"a:{query} = attention qr k v c tables {heads} scale=0.35 sliding_window=0",
            f"o:{hidden} = linear a {self._linear(query, hidden)}",
            f"y:{hidden} = add x o",
            f"s:{hidden} = take y sampled",
            f"l:{self.vocab} = linear s {self._linear(hidden, self.vocab)}",
            "t:i32[?,?] = choose l plan sampling slots tables",
            "output l t",
        ]

    def inputs(self, texts: list[Text], tokens: list[NDArray[Any]], most: int) -> dict[str, NDArray[Any]]:
        """A pass over texts, the first of those of the model."""
        runs = [[t for t in texts if t.drafts > run] for run in range(1, max(t.drafts for t in texts))]
        rows = sum(t.rows for t in texts)
        positions = [np.arange(t.past, t.past + t.rows) for t in texts]
        slots = [self._slots(index, at) for index, at in enumerate(positions)]
        for run, drafting in enumerate(runs):
            for index, text in enumerate(drafting):
                positions.append(np.array([text.past + text.rows + run]))
                slots.append(self._slots(index, positions[-1]))
        angles = np.concatenate(positions)[:, None] * np.array([1.0, 0.3, 0.1, 0.03])
        angles = np.concatenate([angles, angles], axis=1)
        ends = np.cumsum([t.rows for t in texts])
        tables = self.tables[: len(texts)]
        return {
            "ids": np.concatenate(tokens).astype(np.int32),
            "cos": np.cos(angles).astype(np.float32),
            "sin": np.sin(angles).astype(np.float32),
            "slots": np.concatenate(slots),
            "tables": pack_tables(
                np.array([0, *ends], np.int32),
                np.array([t.past for t in texts], np.int32),
                np.concatenate(tables),
                np.cumsum([0, *map(len, tables)]).astype(np.int32),
            ),
            "sampled": (ends - 1).astype(np.int32),
            "plan": np.array([most, rows, *map(len, runs)], np.int32),
            "sampling": samplings(texts, self.seed),
            "k": self.keys,
            "v": self.values,
            "table": self.table,
            "w": self._slab,
        }

    def _slots(self, index: int, positions: NDArray[Any]) -> NDArray[np.int32]:
        return (self.tables[index][positions // BLOCK] * BLOCK + positions % BLOCK).astype(np.int32)


def tensors(inputs: dict[str, NDArray[Any]]) -> dict[str, ov.Tensor]:
    return {name: ov.Tensor(array, shared_memory=True) for name, array in inputs.items()}


def drafted(model: Model, most: int) -> list[NDArray[Any]]:
    """Logits of the last run, and the tokens of all."""
    inputs = model.inputs(model.texts, model.tokens, most)
    return evaluate("DecoderLayers", tensors(inputs), {"program": model.program})


def step_by_step(model: Model, most: int) -> list[list[int]]:
    """The same tokens from a pass for each, of each text."""
    texts, tokens = list(model.texts), list(model.tokens)
    found: list[list[int]] = [[] for _ in texts]
    while drafting := sum(t.drafts > len(of) for t, of in zip(model.texts, found, strict=True)):
        one = [replace(t, drafts=1) for t in texts[:drafting]]
        inputs = model.inputs(one, tokens[:drafting], most)
        _, chosen = evaluate("DecoderLayers", tensors(inputs), {"program": model.program})
        for index in range(drafting):
            found[index].append(int(chosen[0, index]))
            texts[index] = replace(texts[index], past=texts[index].past + texts[index].rows, rows=1)
            tokens[index] = chosen[0, index : index + 1]
    return found


@st.composite
def models(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    texts = draw(
        st.lists(
            st.builds(Text, st.integers(0, 40), st.integers(1, 4), st.integers(1, 5), st.none() | LAWS),
            min_size=1,
            max_size=4,
        )
    )
    texts.sort(key=lambda text: -text.drafts)
    groups = draw(st.sampled_from([1, 3]))
    vocab = draw(st.integers(20, 90))
    options = {
        "texts": texts,
        "hidden": 8 * groups * draw(st.integers(1, 4)),
        "vocab": vocab,
        "fmt": draw(st.sampled_from(FORMATS)),
        "groups": groups,
        "seed": draw(st.integers(0, 99)),
    }
    return options, draw(st.integers(1, vocab + 5))


@examples(12)
@given(models())
def test_random_drafts(isa: str, drawn: tuple[dict[str, Any], int]) -> None:
    options, most = drawn
    made, same, apart = (Model(**options) for _ in range(3))
    want = decoder_layers(made.program, list(made.inputs(made.texts, made.tokens, most).values()))
    logits, tokens = drafted(same, most)
    np.testing.assert_array_equal(want[1], tokens)
    assert_close("logits", want[0], logits, 2e-5)
    assert_close("keys", made.keys, same.keys, 2e-5)
    for column, own in zip(tokens.T, step_by_step(apart, most), strict=True):
        assert [*own, *[-1] * (len(column) - len(own))] == column.tolist()
    np.testing.assert_array_equal(same.keys, apart.keys)
    np.testing.assert_array_equal(same.values, apart.values)


def test_the_plugins_threads_draft_the_same() -> None:
    """Shapes are known there before the operation runs."""
    texts = [Text(20, 2, 4), Text(0, 5, 2)]
    alone, threaded = Model(texts, hidden=136), Model(texts, hidden=136)
    inputs = tensors(threaded.inputs(texts, threaded.tokens, 70))
    compiled = compile_op("DecoderLayers", inputs, {"program": threaded.program})
    for mine, theirs in zip(drafted(alone, 70), infer(compiled, inputs), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_run_behind_no_token(isa: str) -> None:
    """Logits of NaN choose none, and the runs behind them are computed."""
    model = Model([Text(3, 1, 3)], fmt="f32")
    model.table.view(np.float32)[model.tokens[0]] = np.nan
    _, tokens = drafted(model, 70)
    assert tokens[0, 0] == -1


def chosen(logits: NDArray[np.float32], *sampling: Any) -> int:
    """The token of one row of logits, the second of three, and what the reference says of it."""
    width = len(logits)
    program = f"{VERSION}\ninput x:{width} ids sampled plan sampling slots tables e"
    program += "\nz:8 = embedding ids e format=f32 ids=1"
    program += f"\nl:{width} = take x sampled\nt:i32[?,?] = choose l plan sampling slots tables\noutput t"
    x = np.stack([np.zeros_like(logits), logits, np.zeros_like(logits)])
    numbers = ([0, 0, 0], [1], [width, 3], [0, 0, 0], [])
    ids, sampled, plan, slots, tables = (np.array(of, np.int32) for of in numbers)
    drawn = np.array([sampling] if sampling else [], SAMPLING).view(np.uint8)
    arrays = [x, ids, sampled, plan, drawn, slots, tables, np.zeros(32, np.uint8)]
    names = program.splitlines()[1].split()[1:]
    given = {name.partition(":")[0]: ov.Tensor(array) for name, array in zip(names, arrays, strict=True)}
    (tokens,) = evaluate("DecoderLayers", given, {"program": program})
    (want,) = choose([logits[None], plan, drawn], {}, [])
    assert tokens.item() == want.item()
    return int(tokens.item())


@pytest.mark.parametrize("place", [0, 15, 16, 63, 64, 69])
def test_the_largest_logit_is_chosen(isa: str, place: int) -> None:
    """The first of equal ones; none beside NaN, or where it is not finite."""
    logits = np.full(70, -np.inf, np.float32)
    assert chosen(logits) == -1
    logits[place:] = -1.0
    assert chosen(logits) == place
    for value in (np.nan, np.inf):
        logits[place] = value
        assert chosen(logits) == -1


@examples(40)
@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**31 - 2),
    st.integers(1, 300),
    st.sampled_from([1.0, 4.0, 12.0]),
    st.booleans(),
    st.tuples(
        st.sampled_from([1e-30, 0.2, 1.0, 3.0]),
        st.sampled_from([0, 1, 3, 40, 400]),
        st.sampled_from([1e-6, 0.5, 0.9, 1.0]),
        st.sampled_from([0.0, 0.02, 0.99]),
    ),
)
def test_a_token_is_drawn_as_the_reference_draws_it(
    isa: str,
    key: int,
    position: int,
    width: int,
    scale: float,
    equal: bool,
    law: tuple[float, int, float, float],
) -> None:
    logits = np.random.default_rng(key).standard_normal(width).astype(np.float32) * np.float32(scale)
    logits = np.rint(logits) if equal else logits  # many of the same
    logits[1 + np.arange(width // 3)] = -np.inf
    temperature, top_k, top_p, min_p = law
    chosen(logits, key, position, top_k, temperature, top_p, min_p, 0)


@pytest.mark.parametrize(
    ("top_k", "temperature", "top_p", "min_p"), [(0, 0.8, 1.0, 0.0), (9, 1.3, 0.8, 0.0), (0, 1.0, 0.9, 0.1)]
)
def test_drawn_tokens_are_those_of_the_sampler(
    top_k: int, temperature: float, top_p: float, min_p: float
) -> None:
    logits = np.random.default_rng(5).standard_normal(50).astype(np.float32) * np.float32(2)
    of = SamplingParams(do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    law = sampling_distribution(logits, of)
    for seed in range(40):
        coupling = Coupling(seed)
        for position in range(10):
            drawn = (coupling.key, position, top_k, temperature, top_p, min_p, 0)
            assert chosen(logits, *drawn) == coupling.draw(law, position)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plan": [70, 2, 1, 1]}, "has 1 rows in run 2 behind 3 others, the inputs hold 5"),
        ({"plan": [70, 2, 3]}, "has 3 rows in run 1"),
        ({"plan": [70]}, "a draft plan holds 1 numbers"),
        ({"plan": [70, 2, -1, 4]}, "number 2 of a draft plan is -1"),
        ({"sampled": [2]}, "row 2 is taken of the 2 of a pass"),
        ({"ids": [3, 70]}, "token 70 of row 1 is none of the 70"),
        ({"ids": [3]}, "holds 1 ids, expected one for each of 2 rows"),
        ({"slots": [3, 4]}, "holds 2 slots, expected one for each of 5 rows"),
        ({"sampling": [0] * 31}, "holds 31 bytes, expected none, or 32 for each of 1 rows"),
        (
            {"sampling": np.array([(1, 2, 0, -1.0, 1.0, 0.0, 0)], SAMPLING).view(np.uint8)},
            "a draft is sampled with temperature -1",
        ),
        ({"tables": [1, 2, 0, 2, 9, 0, 1, -1, 0, 1]}, "has 1 sequences of trees"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    model = Model([Text(9, 2, 4)])
    inputs = model.inputs(model.texts, model.tokens, 70)
    inputs |= {name: np.array(value, inputs[name].dtype) for name, value in change.items()}
    with pytest.raises((ValueError, RuntimeError), match=message):
        evaluate("DecoderLayers", tensors(inputs), {"program": model.program})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (" = linear s", " = linear y", "reads 'y', rows of which `take` has left some out"),
        ("output l t", "output l t y", "'y' is an output of a program that drafts"),
        ("x:24 = embedding ids table format=f16 ids=70\n", "", "comes without a step embedding"),
        ("format=f16", "format=f8", "format is 'f8'"),
        ("ids=70", f"ids={2**62}", "has 4611686018427387904 ids"),
        ("embedding ids table", "embedding", "has 0 operands"),
        ("take y sampled", "take y sampled if=plan#0", "or not OUTPUT = take ROWS INPUT"),
        (
            "s:24 =",
            "u:i32[?,?] = choose y plan sampling slots tables\ns:24 =",
            "reads other rows than those that take",
        ),
        ("slots tables\noutput", "slots tables if=plan#0\noutput", "may be left out"),
        ("output l t", "u:i32[?,?] = choose l plan sampling slots tables\noutput l t", "is a second one"),
    ],
)
def test_a_program_that_can_not_draft_is_refused(old: str, new: str, message: str) -> None:
    model = Model([Text(9, 2, 4)])
    assert old in model.program
    program = model.program.replace(old, new)
    if not new:
        program = program.replace("input ids", "input ids x:24")
    inputs = tensors(model.inputs(model.texts, model.tokens, 70))
    if not new:
        inputs = {"ids": inputs.pop("ids"), "x": ov.Tensor(np.zeros((5, 24), np.float32)), **inputs}
    with pytest.raises((ValueError, RuntimeError), match=message):
        evaluate("DecoderLayers", inputs, {"program": program})

"""Random programs of DecoderLayers: each line is compared with its reference, or words of it are changed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import openvino as ov
from hunts.fuzz_hunt import Given
from numpy.typing import NDArray
from ops.compare import assert_close
from ops.experts import Experts
from ops.mlps import PARTS, Mlp
from ops.passes import evaluate
from ops.test_linear import TOPS, tolerance
from ops.test_linear import Layers as Linears

from ovspec_ops.common.cache_layout import BLOCK_SIZE
from ovspec_ops.decoder_layers.reference import STEPS, VERSION, leave_out
from ovspec_ops.verify_attention import pack_chain

Tensors = dict[str, ov.Tensor]
Array = NDArray[Any]

_OF_VALUES = ("silu", "gelu_tanh", "gelu_erf", "relu", "sigmoid", "tanh", "softmax")
_OTHERS = ("norm", "norm", "linear", "linear", "rope", "attention", "of_two", "of_two", "weights", "scale")
_MORE = ("parts", "top_k", "gated_mlp", "experts", "left_out", "left_out")
_SEEDS = 2**31


def program_sizes(chance: random.Random) -> Given:
    """What a program follows from."""
    return {
        "seed": chance.randrange(_SEEDS),
        "rows": chance.choice((1, 2, 5, chance.randint(1, 40))),
        "steps": chance.randint(1, 14),
        "past": chance.choice((0, 31, 32, chance.randrange(200))),
        "by_address": chance.random() < 0.5,
    }


class Program:
    """A program that fits, and its inputs.

    Attributes:
        lines: of its steps.
        inputs: arrays by name; caches that are read by their addresses are in `caches` alone.
        caches: f32, by the words that name them.
        made: names of rows and tables that a pass always writes.
    """

    def __init__(self, seed: int, rows: int, steps: int, past: int, by_address: bool) -> None:
        self._chance, self._numbers = random.Random(seed), np.random.default_rng(seed)
        self._rows, self._by_address = rows, by_address
        self.lines, self.made = list[str](), list[str]()
        self._widths: dict[str, int] = {}
        self._slab, self._slab_bytes = list[NDArray[np.uint8]](), 0
        self._condition = ""
        self.inputs: dict[str, Array] = {}
        self.caches: dict[str, Array] = {}
        for name in "ab":
            self._given(name, 8 * self._chance.randint(1, 12))
        self._describe_pass(past)
        self.inputs["flags"] = self._numbers.integers(0, 2, 4, dtype=np.int32)
        for _ in range(steps):
            self._add(self._chance.choice((*_OF_VALUES, *_OTHERS, *_MORE)))
        if by_address:
            addresses = [cache.ctypes.data for cache in self.caches.values()]
            self.inputs["table"] = np.array([self._blocks, *addresses], np.int64).view(np.uint8)
        else:
            self.inputs |= self.caches
        self.inputs["w"] = np.concatenate([*self._slab, np.zeros(64, np.uint8)])

    def text(self, outputs: list[str]) -> str:
        """The program with these outputs."""
        names = [f"{n}:{self._widths[n]}" if n in self._widths else n for n in self.inputs]
        return "\n".join([VERSION, "input " + " ".join(names), *self.lines, "output " + " ".join(outputs)])

    @property
    def tensors(self) -> Tensors:
        """The inputs, which share their memory."""
        return {name: ov.Tensor(array, shared_memory=True) for name, array in self.inputs.items()}

    def _given(self, name: str, width: int) -> str:
        self.inputs[name] = self._numbers.standard_normal((self._rows, width)).astype(np.float32)
        self._widths[name] = width
        return name

    def _describe_pass(self, past: int) -> None:
        rows = self._rows
        used = -(-(past + rows) // BLOCK_SIZE)
        self._blocks = used + 2
        table = self._numbers.permutation(self._blocks)[:used].astype(np.int32)
        at = np.arange(past, past + rows)
        self.inputs["slots"] = (table[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE).astype(np.int32)
        self.inputs["tables"] = pack_chain(rows, past, table)

    def _add(self, kind: str) -> None:
        if kind in _OF_VALUES:
            x = self._any()
            self._step([self._widths[x]], kind, x)
        else:
            getattr(self, f"_{kind}")()

    def _any(self, width: int = 0) -> str:
        """Rows of a width, 0: of any multiple of 8; made of others where there are none."""
        names = [
            name for name, known in self._widths.items() if (known == width if width else known % 8 == 0)
        ]
        if names:
            return self._chance.choice(names)
        if width % 8 == 0:
            return self._product(self._any(), [width])[0]
        # A sum of products may be much smaller than what it is of, and a few have no scale of errors.
        x = self._any()
        return self._step([width], "slice", x, f"size={self._widths[x]}", "first=0")[0]

    def _step(self, widths: list[int], name: str, *words: str, table: str = "") -> list[str]:
        """A line; the rows that it makes, and behind them a table of a form."""
        made = [f"r{len(self.lines)}_{i}" for i in range(len(widths))]
        forms = [f"{name}:{width}" for name, width in zip(made, widths, strict=True)]
        tables = [f"t{len(self.lines)}"] if table else []
        forms += [f"{name}:{table}" for name in tables]
        conditions = [self._condition] if self._condition else []
        self.lines.append(" ".join([*forms, "=", name, *words, *conditions]))
        self._widths |= dict(zip(made, widths, strict=True))
        self.made += [*(made if is_computed(conditions, self.inputs) else []), *tables]
        return made + tables

    def _place(self, data: Array) -> str:
        data = data.view(np.uint8).ravel()
        padded = np.full(-(-len(data) // 64) * 64, 0xA5, np.uint8)
        padded[: len(data)] = data
        self._slab.append(padded)
        self._slab_bytes += len(padded)
        return f"w@{self._slab_bytes - len(padded)}"

    def _floats(self, size: int) -> str:
        return self._place(self._numbers.uniform(0.5, 1.5, size).astype(np.float32))

    def _product(self, x: str, widths: list[int]) -> list[str]:
        fmt, inputs = self._chance.choice(("u8", "u4", "f32", "bf16")), self._widths[x]
        groups = self._chance.choice((1, inputs // 8)) if fmt in TOPS else 1
        bits = self._chance.choice((16, 32)) if fmt in TOPS else 32
        layers = Linears(inputs, widths, fmt, groups, bits, self._chance.randrange(1000))
        settings = (f"format={fmt}", f"groups={groups}", f"row_bits={bits}")
        return self._step(widths, "linear", x, self._place(layers.packed), *settings)

    def _linear(self) -> None:
        widths = [8 * self._chance.randint(1, 12) for _ in range(self._chance.randint(1, 3))]
        self._product(self._any(), widths)

    def _norm(self) -> None:
        x = self._any()
        size = self._chance.choice((self._widths[x], 8))
        name = self._chance.choice(("rms", "layer_norm"))
        self._step([self._widths[x]], name, x, self._floats(size), f"size={size}", "eps=1e-05")

    def _rope(self) -> None:
        x, kind = self._any(), self._chance.choice(("rope", "rope_pairs", "halves"))
        angles = 4 if kind == "halves" else 8
        cos, sin = (self._angles(f"{name}{angles}", angles) for name in ("cos", "sin"))
        settings = ("size=8",) if kind == "halves" else ()
        self._step([self._widths[x]], "rope" if kind == "halves" else kind, x, cos, sin, *settings)

    def _angles(self, name: str, width: int) -> str:
        if name not in self.inputs:
            self._given(name, width)
        return name

    def _attention(self) -> None:
        kv_heads, size = self._chance.randint(1, 3), 8 * self._chance.randint(1, 5)
        heads, number = kv_heads * self._chance.randint(1, 3), len(self.caches)
        q, k, v = self._product(self._any(), [heads * size, kv_heads * size, kv_heads * size])
        caches = [f"table#{number + i}" if self._by_address else f"cache{number + i}" for i in (0, 1)]
        shape = (self._blocks, kv_heads, BLOCK_SIZE, size)
        self.caches |= {name: self._numbers.standard_normal(shape).astype(np.float32) for name in caches}
        sizes = [f"kv_heads={kv_heads}", f"k_size={size}", f"v_size={size}"]
        sizes += ["cache_type=f32"] if self._by_address else []
        (written,) = self._step([0], "cache_write", k, v, *caches, "slots", *sizes)
        del self._widths[written]  # no rows for others
        sight = self._chance.choice(
            (
                *(["sliding_window=0"], ["sliding_window=1"], ["sliding_window=20"]),
                *(["sliding_window=0", f"past_window={window}"] for window in (1, 20)),
                *(["sliding_window=0", "causal=0"], ["sliding_window=0", "past_window=3", "causal=0"]),
            )
        )
        settings = (*sizes, f"scale={size**-0.5:.9g}", *sight)
        self._step([heads * size], "attention", q, *caches, written, "tables", *settings)

    def _of_two(self) -> None:
        a = self._any()
        kind = self._chance.choice(("add", "add", "multiply", "silu_multiply"))
        self._step([self._widths[a]], kind, a, self._any(self._widths[a]))

    def _weights(self) -> None:
        a = self._any()
        kind = self._chance.choice(("add", "multiply"))
        self._step([self._widths[a]], kind, a, self._floats(self._widths[a]))

    def _scale(self) -> None:
        x = self._any()
        self._step([self._widths[x]], "scale", x, self._any(1))

    def _parts(self) -> None:
        """Cut into parts, and joined in another order."""
        x = self._any()
        count = self._widths[x] // 8
        first, rest = sorted(self._chance.sample(range(1, 8), 2))
        sizes = ("size=8", f"first={self._chance.randint(0, 8 - rest)}")
        cut = self._step([first * count, (rest - first) * count], "slice", x, *sizes)
        self._step([rest * count], "concat", *cut[::-1], f"parts={count}")
        for name in cut:
            del self._widths[name]  # of odd widths

    def _top_k(self) -> None:
        x = self._any()
        count = self._chance.randint(1, self._widths[x])
        found = self._step([count], "top_k", x, table=f"i32[?,{count}]")
        del self._widths[found[0]]

    def _gated_mlp(self) -> None:
        x = self._any()
        mlp = Mlp(self._widths[x], 8 * self._chance.randint(1, 20), "u8", seed=self._chance.randrange(1000))
        number = len(self.lines)
        names = list[str]()
        for part in PARTS:
            for i, array in enumerate(mlp.parts[part]):
                names.append(f"{part}{number}_{i}")
                self.inputs[names[-1]] = np.ascontiguousarray(array)
        settings = {"activation": "silu", **mlp.attributes, "layer": 0, "row_bits": 16}
        words = [f"{name}={value}" for name, value in settings.items()]
        self._step([self._widths[x]], "gated_mlp", x, *names, "none", "none", *words, table="i32[1]")

    def _experts(self) -> None:
        x, count = self._any(), self._chance.randint(2, 6)
        hidden = self._widths[x]
        experts = Experts(count, hidden, 8 * self._chance.randint(1, 8), "int8")
        (scores,) = self._step([count], "softmax", self._any(count))
        top = self._chance.randint(1, min(count, 3))
        values, places = self._step([top], "top_k", scores, table=f"i32[?,{top}]")
        (shares,) = self._step([top], "normalize", values)
        names = list[str]()
        for i, array in enumerate(experts.tensors):
            names.append(f"e{len(self.lines)}_{i}")
            self.inputs[names[-1]] = np.ascontiguousarray(array)
        settings = ("limit=0", "alpha=1")
        self._step([hidden], "experts", x, places, shares, *names, *settings, table="i32[1]")

    def _left_out(self) -> None:
        """A stretch that a number of `flags` leaves out."""
        if self._condition:
            return
        x, place = self._any(), self._chance.randrange(4)
        known = dict(self._widths)
        self._condition = f"if=flags#{place}"
        for _ in range(self._chance.randint(1, 3)):
            self._add(self._chance.choice(("norm", "linear", "attention", "top_k", *_OF_VALUES[:3])))
        made = [name for name in self._widths if name not in known]
        y = self._any() if not made else made[-1]
        if self._widths[y] != self._widths[x]:
            (y,) = self._product(y, [self._widths[x]])
        condition, self._condition = self._condition, ""
        self._widths = known
        self._step([self._widths[x]], "either", y, x, condition)


def program_tensors(sizes: Given) -> tuple[Tensors, Given]:
    """Of a program whose caches are inputs: addresses can't be checked."""
    program = Program(**{**sizes, "by_address": False})
    return program.tensors, {"program": program.text(program.made)}


def compare_program(isa: str, **sizes: Any) -> None:
    """Each line by itself with the rows that the operation gave it; then the same with fewer outputs."""
    program = Program(**sizes)
    before = {name: cache.copy() for name, cache in program.caches.items()}
    text = program.text(program.made)
    arrays = evaluate("DecoderLayers", program.tensors, {"program": text})
    found = dict(zip(program.made, arrays, strict=True))
    known = {**program.inputs, **program.caches, **found}
    for line in program.lines:
        _check_line(line, known, before)
    for name, cache in program.caches.items():
        cache[...] = before[name]
    some = program.made[-1:]
    (again,) = evaluate("DecoderLayers", program.tensors, {"program": program.text(some)})
    np.testing.assert_array_equal(found[some[0]], again)


def _check_line(line: str, known: dict[str, Array], before: dict[str, Array]) -> None:
    left, _, right = line.partition(" = ")
    kind, *words = right.split()
    settings = dict(word.split("=") for word in words if "=" in word)
    names, forms = zip(*(word.split(":") for word in left.split()), strict=True)
    operands = [word for word in words if "=" not in word]
    widths = [0 if "[" in form else int(form) for form in forms]
    if not is_computed(words, known):
        arrays = [known.get(word, np.zeros((0, 0))) for word in operands]
        wanted = leave_out(kind, forms, arrays, settings, widths)
        assert all(np.array_equal(before[word], known[word]) for word in operands if word in before), line
        for name, want in zip(names, wanted, strict=True):
            if name in known and (kind == "either" or want.dtype.kind == "i"):
                np.testing.assert_array_equal(want, known[name], err_msg=line)
        return
    caches = before if kind == "cache_write" else known
    arrays = [caches[word].copy() if word in before else _operand(known, word) for word in operands]
    wanted = STEPS[kind](arrays, settings, widths)
    if kind == "cache_write":
        for word, array in zip(operands, arrays, strict=True):
            if word in before:
                np.testing.assert_array_equal(array, known[word], err_msg=line)
    limit = _tolerance(kind, settings, arrays)
    for name, want in zip(names, wanted, strict=True):
        if want.dtype.kind == "i":
            np.testing.assert_array_equal(want, known[name], err_msg=line)
        else:
            assert_close(line, want, known[name], limit)


def _tolerance(kind: str, settings: dict[str, str], arrays: list[Array]) -> float:
    """Of random numbers; ten times that of the tests, which try less of them."""
    if kind == "linear":
        return 10 * tolerance(int(settings["row_bits"]), settings["format"])
    if kind == "layer_norm":  # a mean of large numbers, less numbers that are almost the same
        parts = arrays[0].astype(np.float64).reshape(-1, int(settings["size"]))
        return 1e-4 + 4e-6 * float((np.abs(parts).max(1) / (parts.std(1) + 1e-3)).max())
    return 2e-3 if kind in ("gated_mlp", "experts") else 1e-4


def is_computed(words: list[str], known: dict[str, Array]) -> bool:
    """Whether a pass computes a step with these words."""
    tables = [word.removeprefix("if=").split("#") for word in words if word.startswith("if=")]
    return all(known[table][int(place)] for table, place in tables)


def _operand(known: dict[str, Array], word: str) -> Array:
    name, _, first = word.partition("@")
    if name == "none":
        return np.zeros(0, np.uint8)
    return known[name][int(first) :] if first else known[name]


def changed_program(text: str, chance: random.Random) -> str:
    """The program with other words."""
    lines = text.split("\n")
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(lines))
        words = lines[at].split(" ")
        kind, place = chance.random(), chance.randrange(len(words))
        if kind < 0.1:
            del lines[at]
            if not lines:
                lines = [""]
        elif kind < 0.2:
            lines.insert(at, chance.choice(lines))
        elif kind < 0.5:
            words[place] = _other_number(words[place], chance)
            lines[at] = " ".join(words)
        elif kind < 0.7:
            words[place] = chance.choice(chance.choice(lines).split(" "))
            lines[at] = " ".join(words)
        elif kind < 0.85:
            del words[place]
            lines[at] = " ".join(words)
        else:
            words.insert(place, chance.choice((*words, "", "=", "none", "x:8", "if=flags#9", "t:i32[?,2]")))
            lines[at] = " ".join(words)
    return "\n".join(lines)


def _other_number(word: str, chance: random.Random) -> str:
    """One of its numbers changed."""
    digits = [i for i, letter in enumerate(word) if letter.isdigit()]
    if not digits:
        return word + chance.choice(("", "1", ":", "@", "#", "=", "\x00"))
    begin = end = chance.choice(digits)
    while begin and word[begin - 1].isdigit():
        begin -= 1
    while end < len(word) and word[end].isdigit():
        end += 1
    value = int(word[begin:end])
    near = (value + 1, value - 1, 2 * value, value // 2)
    other = chance.choice((0, 1, -1, *near, 7, 8, 1000, 2**31, 2**63, 2**70))
    return f"{word[:begin]}{other}{word[end:]}"

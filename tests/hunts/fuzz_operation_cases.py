"""Operations at random sizes: valid tensors and attributes, and a comparison with the reference."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import openvino as ov
from hunts.fuzz_hunt import Given
from hunts.fuzz_programs import compare_program, program_sizes, program_tensors
from ops.caches import FORMATS
from ops.experts import FORMATS as EXPERT_FORMATS
from ops.experts import Experts, route
from ops.mlps import FORMATS as MLP_FORMATS
from ops.mlps import Mlp
from ops.passes import OpsPass, attention_tensors, evaluate
from ops.test_block_select import Selection
from ops.test_cache_write import Written, test_rows_in_their_slots
from ops.test_draft_steps import FORMATS as EMBEDDING_FORMATS
from ops.test_draft_steps import Model, Text, drafted, step_by_step, tensors
from ops.test_expert_budget import tensors_of as budget_tensors
from ops.test_gated_mlp import rows_of, tensors_of
from ops.test_key_summary import UNTOUCHED, check_summaries, inputs_of, reference
from ops.test_key_summary import sizes as summary_attributes
from ops.test_linear import FORMS, TOPS, Layers
from ops.test_linear_properties import test_random_layers
from ops.test_mlp_properties import test_random_experts, test_random_gated_mlps
from ops.test_moe import tensors_of as expert_tensors
from ops.test_verify_attention_properties import test_random_passes

from ovspec_ops.moe.reference import expert_budget

Tensors = dict[str, ov.Tensor]
SEEDS = 2**31


def _divisor(chance: random.Random) -> int:
    return chance.choice((1, 2, 3, 5))


def _sequences(chance: random.Random) -> list[Any]:
    return [
        (
            chance.choice((0, 5, 31, 32, 64, chance.randrange(400))),
            chance.randint(1, 40),
            chance.random() < 0.7,
        )
        for _ in range(chance.randint(1, 3))
    ]


def _sight(chance: random.Random) -> Given:
    """What rows see of each other and of the past."""
    windows, tree = (0, 0, 1, 40, 200), chance.random() < 0.5
    return chance.choice(
        (
            {"window": chance.choice(windows), "tree": tree},
            {"past_window": chance.choice(windows), "tree": tree},
            {"past_window": chance.choice(windows), "causal": False},
        )
    )


def _pass_sizes(chance: random.Random) -> Given:
    return {
        "sequences": _sequences(chance),
        "kv_heads": chance.randint(1, 3),
        "group": chance.randint(1, 5),
        "k_size": 8 * chance.randint(1, 20),
        "v_size": 8 * chance.randint(1, 20),
        "fmt": chance.choice(FORMATS),
        "seed": chance.randrange(SEEDS),
        **_sight(chance),
        "keep": chance.choice((None, None, 0.2, 0.7)),
        "sinks": chance.random() < 0.5,
    }


def _gated_mlp_sizes(chance: random.Random) -> Given:
    return {
        "formats": [chance.choice(MLP_FORMATS) for _ in range(3)],
        "hidden": chance.choice((32 * chance.randint(1, 12), 2 * chance.randint(1, 40))),
        "channels": chance.randint(1, 200),
        "groups": [_divisor(chance), _divisor(chance)],
        "rows": chance.randint(1, 20),
        "row_bits": chance.choice((8, 16)),
        "density": chance.choice((None, chance.uniform(0.05, 1))),
        "seed": chance.randrange(SEEDS),
    }


def _expert_sizes(chance: random.Random) -> Given:
    return {
        "fmt": chance.choice(EXPERT_FORMATS),
        "group": 32,
        "sizes": [chance.randint(1, 9), chance.randint(1, 9)],
        "odd": int(chance.choice([0, 0, 2, 4, 6])),
        "experts": chance.randint(1, 9),
        "rows": chance.randint(1, 20),
        "top_k": chance.randint(1, 4),
        "dropped": chance.uniform(0, 0.7),
        "seed": chance.randrange(SEEDS),
    }


def _linear_sizes(chance: random.Random) -> Given:
    fmt, row_bits = chance.choice(sorted({(fmt, bits) for fmt, _, bits in FORMS}))
    return {
        "fmt": fmt,
        "row_bits": row_bits,
        "inputs": chance.randint(1, 900),
        "groups": chance.randint(1, 12),
        "group": 8 * chance.randint(1, 30),
        "sizes": [chance.randint(1, 150) for _ in range(chance.randint(0, 3))],
        "wide": chance.randint(32, 150),
        "rows": chance.choice((chance.randint(1, 20), chance.randint(21, 300))),
        "zero_point": chance.choice((None, 0.0, 0.5, 1.0)),
        "seed": chance.randrange(SEEDS),
    }


def _budget_sizes(chance: random.Random) -> Given:
    experts = chance.randint(1, 40)
    return {
        "experts": experts,
        "top_k": chance.randint(1, min(8, experts)),
        "rows": chance.randint(1, 40),
        "budget": chance.choice((-1, 1, min(2, experts), experts, chance.randint(1, experts))),
        "seed": chance.randrange(SEEDS),
    }


def _write_sizes(chance: random.Random) -> Given:
    return {
        "seed": chance.randrange(SEEDS),
        "sizes": [8 * chance.randint(1, 40), 8 * chance.randint(1, 40)],
        "heads": chance.randint(1, 5),
        "rows": chance.randint(1, 96),
    }


def _select_sizes(chance: random.Random) -> Given:
    return {
        **_pass_sizes(chance),
        "fmt": "f32", "window": 0, "keep": None, "sinks": False, "tree": False,
        "rule": chance.choice(("mass", "paper")),
        "sink_blocks": chance.choice((1, 2, 30)), "local_blocks": chance.choice((1, 3, 40)),
        "budget": chance.choice((-1, 1, 2, 9, 64)), "coverage": chance.choice((1.0, 0.8, 1e-6, 0.999999)),
    }  # fmt: skip


def _layers_sizes(chance: random.Random) -> Given:
    """Of a program, or of one that drafts: it has texts."""
    if chance.random() < 0.6:
        return program_sizes(chance)
    texts = [
        [chance.randrange(70), chance.randint(1, 5), chance.randint(1, 5)]
        for _ in range(chance.randint(1, 4))
    ]
    vocab = chance.randint(20, 200)
    return {
        "texts": sorted(texts, key=lambda text: -text[2]),
        "group": chance.randint(1, 6),
        "groups": chance.choice((1, 2, 3)),
        "vocab": vocab,
        "fmt": chance.choice(EMBEDDING_FORMATS),
        "most": chance.randint(1, vocab + 5),
        "seed": chance.randrange(SEEDS),
    }


# Valid tensors and attributes of these sizes, for changes.
def _mlp(s: Given) -> tuple[Tensors, Given]:
    hidden, channels = s["hidden"] * s["groups"][0], s["channels"] * s["groups"][1]
    mlp = Mlp(
        hidden,
        channels,
        "u8",
        tuple(s["groups"]),
        s["seed"] % 1000,
        dict(zip(("gate", "up", "down"), s["formats"], strict=True)),
    )
    limits = () if s["density"] is None else (max(1, round(s["density"] * channels)),)
    return tensors_of(mlp, rows_of(mlp, s["rows"]), limits), {**mlp.attributes, "row_bits": s["row_bits"]}


def _experts(s: Given) -> tuple[Tensors, Given]:
    hidden, inner = (32 * size + s["odd"] for size in s["sizes"])
    groups = tuple(s["sizes"]) if s["fmt"] == "int4" and not s["odd"] else (1, 1)
    rng = np.random.default_rng(s["seed"])
    indices = rng.integers(-1, s["experts"], (s["rows"], s["top_k"])).astype(np.int32)
    weights = rng.dirichlet(np.ones(s["top_k"]), s["rows"]).astype(np.float32)
    x = rng.standard_normal((s["rows"], hidden)).astype(np.float32)
    return expert_tensors(x, indices, weights, Experts(s["experts"], hidden, inner, s["fmt"], groups)), {}


def _linear(s: Given) -> tuple[Tensors, Given]:
    groups = s["groups"] if s["fmt"] == "u4" else 1
    inputs = groups * s["group"] if groups > 1 else s["inputs"]
    point = (
        None
        if s["zero_point"] is None or s["fmt"] not in TOPS
        else round(s["zero_point"] * (TOPS[s["fmt"]] - 1))
    )
    layers = Layers(inputs, [*s["sizes"], s["wide"]], s["fmt"], groups, s["row_bits"], s["seed"], point)
    return layers.tensors(layers.rows(s["rows"])), layers.attributes


def _attention(s: Given) -> tuple[Tensors, Given]:
    case = OpsPass(**s)
    return attention_tensors(case), case.attributes


def _compare_passes(isa: str, **s: Any) -> None:
    sight = {name: s.pop(name) for name in ("window", "tree", "past_window", "causal") if name in s}
    _inner(test_random_passes)(isa=isa, sight=sight, **s)


def _summary(s: Given) -> tuple[Tensors, Given]:
    case = OpsPass(**{**s, "sequences": [(past, rows, True) for past, rows, _ in s["sequences"]]})
    return inputs_of(case)[0], summary_attributes(case)


def _selection(s: Given) -> Selection:
    s = dict(s)
    own = {name: s.pop(name) for name in ("rule", "sink_blocks", "local_blocks", "budget", "coverage")}
    case, count = OpsPass(**s), len(s["sequences"])
    return Selection(case, [own.pop("budget")] * count, [own.pop("coverage")] * count, **own)


def _select(s: Given) -> tuple[Tensors, Given]:
    selection = _selection(s)
    return selection.tensors, selection.attributes


def _write(s: Given) -> tuple[Tensors, Given]:
    slots = np.random.default_rng(s["seed"]).permutation(96)[: s["rows"]].tolist()
    case = Written(slots, s["heads"], *s["sizes"], s["seed"])
    return case.tensors, case.attributes


def _budget(s: Given) -> tuple[Tensors, Given]:
    indices, weights = route(np.random.default_rng(s["seed"]), s["rows"], s["top_k"], s["experts"])
    return budget_tensors(indices, weights, [s["budget"]]), {"experts": s["experts"], "layer": 0}


def _model(s: Given) -> Model:
    texts = [Text(*text) for text in s["texts"]]
    return Model(texts, 8 * s["group"] * s["groups"], s["vocab"], s["fmt"], s["groups"], s["seed"])


def _layers(s: Given) -> tuple[Tensors, Given]:
    if "texts" not in s:
        return program_tensors(s)
    model = _model(s)
    return tensors(model.inputs(model.texts, model.tokens, s["most"])), {"program": model.program}


# Comparisons with the references.
def _compare_summary(isa: str, **s: Any) -> None:
    case = OpsPass(**{**s, "sequences": [(past, rows, True) for past, rows, _ in s["sequences"]]})
    ends = [past + rows for past, rows, _ in s["sequences"]]
    case.summarised = np.random.default_rng(s["seed"]).integers(-1, ends).astype(np.int32)
    tensors, summary = inputs_of(case)
    evaluate("KeySummary", tensors, summary_attributes(case))
    expected = reference(case)
    written = (expected != UNTOUCHED).any(axis=(1, 2))
    np.testing.assert_array_equal(summary[~written], expected[~written])
    check_summaries(expected[written], summary[written], case.k_size)


def _compare_budget(isa: str, **s: Any) -> None:
    indices, weights = route(np.random.default_rng(s["seed"]), s["rows"], s["top_k"], s["experts"])
    got = evaluate("ExpertBudget", *_budget(s))
    if s["budget"] < 0:
        expected = (indices, weights)
    else:
        every = np.ones(s["rows"], bool)
        expected = expert_budget(indices, weights, every, budget=s["budget"], experts=s["experts"])
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-6)


def _compare_layers(isa: str, **s: Any) -> None:
    """Drafts with passes of one token: the bits are the same, where a reference may choose another one."""
    if "texts" not in s:
        return compare_program(isa, **s)
    made, apart = _model(s), _model(s)
    _, tokens = drafted(made, s["most"])
    for column, own in zip(tokens.T, step_by_step(apart, s["most"]), strict=True):
        assert [*own, *[-1] * (len(column) - len(own))] == column.tolist()
    np.testing.assert_array_equal(made.keys, apart.keys)
    np.testing.assert_array_equal(made.values, apart.values)
    return None


def _inner(test: Any) -> Callable[..., None]:
    """The function below a test of Hypothesis."""
    return test.hypothesis.inner_test  # type: ignore[no-any-return]


Case = tuple[Callable[[random.Random], Given], Callable[[Given], tuple[Tensors, Given]], Callable[..., None]]
CASES: Mapping[str, Case] = {
    "GatedMLP": (_gated_mlp_sizes, _mlp, _inner(test_random_gated_mlps)),
    "SparseMoE": (_expert_sizes, _experts, _inner(test_random_experts)),
    "ExpertBudget": (_budget_sizes, _budget, _compare_budget),
    "Linear": (_linear_sizes, _linear, _inner(test_random_layers)),
    "VerifyAttention": (_pass_sizes, _attention, _compare_passes),
    "CacheWrite": (_write_sizes, _write, _inner(test_rows_in_their_slots)),
    "KeySummary": (_pass_sizes, _summary, _compare_summary),
    "BlockSelect": (_select_sizes, _select, lambda isa, **s: _selection(s).check() and None),
    "DecoderLayers": (_layers_sizes, _layers, _compare_layers),
}

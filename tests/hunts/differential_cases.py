"""Random small architectures of every family, and smaller ones on which a difference may stay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from hunts.differential_switches import draw_switches
from tiny_checkpoints import TINY, VOCAB, Tiny

#: ALiBi that the plugin loses is refused.
_REFUSED = ("MPT", "Falcon, ALiBi")
FAMILIES = tuple(name for name in TINY if name not in _REFUSED)
FORMATS = ("fp32", "fp16", "int8", "int4")
# Their heads need not make up the hidden size.
_FREE_HEADS = (
    *("Llama", "Mistral", "Qwen3", "Gemma", "Gemma 2", "Gemma 3", "Qwen3-MoE", "GPT-OSS", "GLM", "GLM, 4"),
)
_ROPE = ("Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3-MoE", "OLMo 2", "SmolLM3", "Granite")
_ONE_WINDOW = ("Mistral", "StarCoder2")
_MIXED_WINDOWS = ("Gemma 2", "Gemma 3", "GPT-OSS")
_UNTIED = (
    *("GPT-OSS", "Falcon", "Falcon, new architecture", "Bloom", "Gemma", "Gemma 2", "Gemma 3", "Gemma 3n"),
    "Cohere",
)
# Of them, those whose hidden size transformers wants to be a multiple of their number.
_MULTIPLE = ("Llama", "Gemma 2", "Gemma 3")
_GRANITE_4 = ("Granite 4 hybrid", "Granite 4 hybrid, no positions and experts")
_ATTENTION_ALONE = "Granite 4 hybrid, attention alone"
#: What layers with a state in place of keys and values are called, and the others.
_WITH_STATES = {
    **dict.fromkeys(("Qwen3.5", "Qwen3-Next"), ("linear_attention", "full_attention")),
    **dict.fromkeys(("LFM2", "LFM2-MoE"), ("conv", "full_attention")),
    **dict.fromkeys(_GRANITE_4, ("mamba", "attention")),
}
#: Layers of families that have lists with a value for each, or share the keys of earlier ones.
_LAYERS = {"Gemma 3n": 4, "Gemma 4": 4, "Gemma 4, experts": 2}


@dataclass(frozen=True)
class Setting:
    """How a model is run beside plain decoding.

    Attributes:
        drafter: a name of `differential_check.DRAFTERS`.
        verify: "dense" or "commit".
        rows: of a pass.
        options: of drafting.
        together: prompts in a call.
    """

    drafter: str
    verify: str
    rows: int
    options: dict[str, Any]
    together: int


@dataclass(frozen=True)
class Case:
    """A model and how it is run.

    Attributes:
        family: a name of `TINY`.
        sizes: what differs from the tiny checkpoint of that name.
        weights: format.
    """

    family: str
    sizes: dict[str, Any]
    weights: str
    settings: tuple[Setting, ...]

    @property
    def tiny(self) -> Tiny:
        """The checkpoint."""
        return replace(TINY[self.family], sizes={**TINY[self.family].sizes, **self.sizes})

    def write(self, file: Path, what: str) -> None:
        """Write the case to a file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"what": what, "case": asdict(self)}, indent=1), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Case:
        """What `write` wrote."""
        found = json.loads(file.read_text(encoding="utf-8"))["case"]
        return cls(**{**found, "settings": tuple(Setting(**one) for one in found["settings"])})


def random_case(rng: Random) -> Case:
    """A family with random sizes, in a random format, and three settings to run it with."""
    family = rng.choice(FAMILIES)
    return Case(family, _sizes(rng, family), rng.choice(FORMATS), tuple(_setting(rng) for _ in range(3)))


def _setting(rng: Random) -> Setting:
    drafter = rng.choice(
        ("prompt_lookup", "suffix", "sparse_self", "layer_skip", "assistant", "trees", "auto")
    )
    options: dict[str, Any] = {"num_assistant_tokens": rng.choice((1, 3, 5, 16, 63))}
    if drafter == "trees":
        depth = rng.randint(1, 4)
        options |= {"tree_depth": depth, "branching_factor": rng.randint(1, 4)}
        options["num_assistant_tokens"] = max(depth, options["num_assistant_tokens"])
    rows = rng.choice((16, 40, 512))
    return Setting(drafter, rng.choice(("dense", "commit")), rows, options, rng.choice((1, 3)))


def _sizes(rng: Random, family: str) -> dict[str, Any]:
    sizes: dict[str, Any]
    layers = _LAYERS.get(family) or rng.randint(2 if family in _WITH_STATES else 1, 4)
    kv_heads = rng.choice((1, 2, 3))
    heads = kv_heads * rng.choice((1, 2, 3, 4))
    head = rng.choice((16, 16, 24, 32, 48, 64, 80, 96, 128))
    free = family in _FREE_HEADS
    hidden = 32 * rng.randint(1, 6) if free else heads * head
    if family in _MULTIPLE:
        hidden = heads * 16 * rng.randint(1, 2)
    if family == "Bloom":
        sizes = {"n_layer": layers, "n_head": heads, "hidden_size": hidden}
        return {**sizes, **draw_switches(rng, family)}
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": hidden}
    if family.startswith("Falcon"):
        shared = {"num_kv_heads": kv_heads} if "new" in family else {}
        return {**sizes, **shared, **draw_switches(rng, family)}
    sizes |= {"num_key_value_heads": kv_heads, "intermediate_size": 32 * rng.randint(1, 6)}
    sizes["vocab_size"] = rng.choice((VOCAB, VOCAB, VOCAB + 64, 5003))
    if free:
        sizes["head_dim"] = head
    if family in (*_GRANITE_4, _ATTENTION_ALONE):  # an inner size of twice the hidden one
        sizes["mamba_n_heads"] = hidden // 8
    if family == _ATTENTION_ALONE:
        sizes["layer_types"] = ["attention"] * layers
    if family == "Llama 4":
        sizes["no_rope_layers"] = [rng.randrange(2) for _ in range(layers)]
    if family in ("Gemma 2", "Gemma 3"):
        sizes["query_pre_attn_scalar"] = head
    if family not in _UNTIED:
        sizes["tie_word_embeddings"] = rng.random() < 0.5
    return {
        **sizes,
        **_rope(rng, family, hidden // heads),
        **_windows(rng, family, layers),
        **_experts(rng, family),
        **draw_switches(rng, family),
    }


def _rope(rng: Random, family: str, head: int) -> dict[str, Any]:
    theta = rng.choice((1e4, 5e5))
    if family == "SmolLM3":
        return {"no_rope_layers": [rng.randrange(2) for _ in range(4)]}
    if family == "Phi-3":
        part = rng.choice((0.5, 0.75, 1.0))
        rope = {**TINY[family].sizes["rope_parameters"], "partial_rotary_factor": part}
        factors = {"short_factor": 1.0 + rng.random(), "long_factor": 2.0 + 4 * rng.random()}
        for name, first in factors.items():
            rope[name] = [first + 0.1 * i for i in range(int(head * part) // 2)]
        return {"rope_parameters": rope}
    if family not in _ROPE:
        return {}
    kinds: tuple[dict[str, Any], ...] = (
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 64},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    )  # fmt: skip
    return {"rope_parameters": {"rope_theta": theta, **rng.choice(kinds)}}


def _windows(rng: Random, family: str, layers: int) -> dict[str, Any]:
    window = rng.choice((8, 24, 48, 100))
    if family in _ONE_WINDOW:
        return {"sliding_window": rng.choice((None, window))}
    kinds = ("sliding_attention", "full_attention")
    if family in _MIXED_WINDOWS:
        return {"sliding_window": window, "layer_types": [rng.choice(kinds) for _ in range(layers)]}
    if family in _WITH_STATES:
        kinds = _WITH_STATES[family]  # transformers computes no model of one kind alone
        return {"layer_types": rng.sample([*kinds, *rng.choices(kinds, k=layers - 2)], layers)}
    return {}


def _experts(rng: Random, family: str) -> dict[str, Any]:
    number = rng.choice((2, 3, 4, 8))
    used = {"num_experts_per_tok": rng.randint(1, min(number, 4))}
    if family in ("Mixtral", "GPT-OSS"):
        return {"num_local_experts": number, **used}
    if family in ("Qwen2-MoE", "Qwen3-MoE", "LFM2-MoE"):
        inner = {"moe_intermediate_size": 32 * rng.randint(1, 3)}
        shared = {"shared_expert_intermediate_size": 32 * rng.randint(1, 3)} if family == "Qwen2-MoE" else {}
        return {"num_experts": number, **used, **inner, **shared}
    return {}


def smaller(case: Case) -> Iterator[Case]:
    """The case with something left out."""
    if len(case.settings) > 1:
        for setting in case.settings:
            yield replace(case, settings=(setting,))
    if case.weights != "fp32":
        yield replace(case, weights="fp32")
    for name in case.sizes:  # back to the tiny checkpoint's
        yield replace(case, sizes={key: value for key, value in case.sizes.items() if key != name})
    layers = case.sizes.get("num_hidden_layers", 1)
    if layers > 1:
        sizes = {**case.sizes, "num_hidden_layers": layers - 1}
        if "layer_types" in sizes:
            sizes["layer_types"] = sizes["layer_types"][1:]
        yield replace(case, sizes=sizes)
    for setting in case.settings:
        for change in ({"verify": "dense"}, {"rows": 512}, {"together": 1}):
            yield replace(case, settings=(replace(setting, **change),))

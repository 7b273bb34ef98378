"""Random requests of the soak, and lists of them, which a file can hold."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from hunts.soak_faults import DRAFTER_FAULTS, ROW_FAULTS
from hunts.soak_models import MODELS
from prompts import PROMPTS, STORY

_POOL = 150
_LENGTHS = (1, 2, 5, 16, 33, 48, 64, 96)


@dataclass(frozen=True)
class Ask:
    """What decides an answer.

    Attributes:
        prompt: text; it begins with the name of a drafter's fault where the drafter is to fail.
        options: fields of a generation configuration.
        logprobs, index: as of `Request`.
    """

    prompt: str
    options: dict[str, Any]
    logprobs: int | None = None
    index: int = 0

    @property
    def key(self) -> str:
        """The same for the same."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Asked:
    """A request among others: what must not change its answer, and what ends it early.

    Attributes:
        drafts: options of drafting.
        verify: "dense", "commit", "sparse".
        arrives: number of outputs (of all requests) after which it comes; with threads it comes in its turn.
        leaves: number of outputs after which it is aborted, counted from its arrival; `None`: never.
        fault: one of the faults, or empty.
    """

    ask: Ask
    drafts: dict[str, Any] = field(default_factory=dict)
    verify: str = "dense"
    arrives: int = 0
    leaves: int | None = None
    fault: str = ""


@dataclass(frozen=True)
class Load:
    """Requests to one model.

    Attributes:
        model: a name of `MODELS`.
        cache_tokens: what the target's cache has room for; `None`: for all.
        prefix: whether prompts share their beginnings.
        rows, seqs: rows of a pass, and requests that run at a time.
        threads: several clients with a thread each; else one thread, and the same order in every run.
        fault_at: the pass that fails; 0: none.
    """

    model: str
    requests: tuple[Asked, ...]
    cache_tokens: int | None = None
    prefix: bool = True
    rows: int = 128
    seqs: int = 8
    threads: bool = False
    fault_at: int = 0

    def write(self, file: Path, what: str) -> None:
        """Write the requests to a file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"what": what, "load": asdict(self)}, indent=1), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Load:
        """What `write` wrote."""
        found = json.loads(file.read_text(encoding="utf-8"))["load"]
        requests = (Asked(**{**asked, "ask": Ask(**asked["ask"])}) for asked in found["requests"])
        return cls(**{**found, "requests": tuple(requests)})


def random_asks(rng: Random, number: int = _POOL) -> list[Ask]:
    """Different requests, each of which has one right answer."""
    return [_ask(rng) for _ in range(number)]


def _ask(rng: Random) -> Ask:
    prompt = rng.choice(PROMPTS)
    if rng.random() < 0.4:  # long ones, which share beginnings
        prompt = STORY[: rng.choice((200, 400, 401, 900, 1600, 2400))] + "\n" * rng.randrange(2) + prompt
    options: dict[str, Any] = {"max_new_tokens": rng.choice(_LENGTHS), "apply_chat_template": False}
    if rng.random() < 0.6:
        options["ignore_eos"] = True
    if rng.random() < 0.3:
        options["stop_token_ids"] = sorted(rng.sample(range(2, 400), 12))
    if rng.random() < 0.3:
        options["min_new_tokens"] = rng.randint(1, options["max_new_tokens"])
    if rng.random() < 0.5:
        options |= {
            "do_sample": True,
            "rng_seed": rng.randrange(2**32),
            "temperature": rng.choice((0.3, 0.9, 2.0)),
        }
        options["top_p"] = rng.choice((1.0, 0.95, 0.3))
        options["top_k"] = rng.choice((0, 1, 40))
        options["min_p"] = rng.choice((0.0, 0.05))
    if rng.random() < 0.3:
        options["repetition_penalty"] = rng.choice((1.3, 0.8))
    if rng.random() < 0.3:
        options |= {"presence_penalty": rng.choice((0.5, -1.0)), "frequency_penalty": rng.choice((0.2, -0.3))}
    if rng.random() < 0.2:  # a call of `generate`, where there are threads
        options["stop_strings"] = rng.sample((" and", ".", " the", "\n", " a", "said"), 2)
        options["include_stop_str_in_output"] = rng.random() < 0.3
        return Ask(prompt, options)
    return Ask(prompt, options, rng.choice((None, None, None, 0, 5)), rng.randrange(2))


def random_load(rng: Random, model: str, asks: list[Ask], faults: bool) -> Load:
    """Requests to one of `MODELS`, some of which leave early; with `faults` some that can't be answered."""
    number = rng.randint(3, 24)
    asked = [_asked(rng, model, rng.choice(asks), faults) for _ in range(number)]
    arrives = 0
    for at in range(number):
        asked[at] = replace(asked[at], arrives=arrives)
        arrives += rng.choice((0, 0, 1, 3, 10))
    return Load(
        model,
        tuple(asked),
        cache_tokens=rng.choice((None, None, 160, 256, 480, 960)),
        prefix=rng.random() < 0.6,
        rows=rng.choice((16, 64, 128, 512)) if "prefill" not in MODELS[model] else 128,
        seqs=rng.choice((1, 3, 8, 8)),
        threads=rng.random() < 0.4,
        fault_at=rng.randint(1, 60) if faults and rng.random() < 0.1 else 0,
    )


def _asked(rng: Random, model: str, ask: Ask, faults: bool) -> Asked:
    fault = ""
    if faults and rng.random() < 0.08:
        fault = rng.choice(ROW_FAULTS + (DRAFTER_FAULTS if model == "own" else ()))
        if fault in DRAFTER_FAULTS:
            ask = replace(ask, prompt=f"{fault}. {ask.prompt}")
    modes = ["dense"]
    if MODELS[model].get("verify") is not None:
        modes += ["commit", "commit", "sparse"]
    elif "prefill" in MODELS[model]:
        modes += ["sparse"]
    leaves = rng.choice((0, 1, 2, 5, 20, 60)) if rng.random() < 0.2 else None
    return Asked(ask, _drafts(rng, model, ask.options), rng.choice(modes), leaves=leaves, fault=fault)


def _drafts(rng: Random, model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options of drafting that go with a model and with the others."""
    if MODELS[model].get("drafter") == "none":
        return {}
    number = rng.choice((0, 1, 3, 5, 8, 16, 63))
    if model in ("assistant", "auto", "eagle3", "float") and rng.random() < 0.3:
        depth = rng.randint(1, 6)
        return {
            "tree_depth": depth,
            "branching_factor": rng.randint(1, 4),
            "num_assistant_tokens": max(depth, number),
            **({"num_assistant_tokens_schedule": "auto"} if rng.random() < 0.3 else {}),
        }
    if model in ("assistant", "eagle3") and rng.random() < 0.15:
        return {"assistant_confidence_threshold": rng.choice((0.1, 0.4, 0.8))}
    drafts: dict[str, Any] = {"num_assistant_tokens": number}
    if number and rng.random() < 0.6:
        drafts["num_assistant_tokens_schedule"] = rng.choice(("constant", "auto"))
    if model == "prompt_lookup" and rng.random() < 0.3:
        drafts["max_ngram_size"] = rng.randint(1, 5)
    return drafts

"""Models of the soak: pipelines of the demo pair, a drafter that fails when asked to, answers alone."""

from __future__ import annotations

import functools
import itertools
from array import array
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from hunts.caches import fill_caches, runners
from openvino_genai import GenerationFinishReason, Tokenizer

import ovspec
from ovspec.drafters import Auto, LayerSkip, SparseSelf, Suffix
from ovspec.drafters.prompt_lookup import as_text, lookup
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request, RequestOutput
from ovspec.generation.inputs import encode
from ovspec.modes.verify_mode import VerifyMode
from ovspec_models import demo_pair_path

if TYPE_CHECKING:
    from hunts.soak_requests import Ask

VOCAB = 4096
#: Tokens of a cache that is never full.
ROOMY = 8192
SPARSE = ovspec.SparseVerify(L0=96, rho=0.1)
COMMIT = ovspec.CommitVerify(SPARSE)
VERIFY: dict[str, VerifyMode] = {"dense": "dense", "commit": COMMIT, "sparse": SPARSE}
_F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


class Own:
    """A user's drafter: chains and trees, of what it finds and of chance, which follows from the context."""

    name = "own"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._faults = {fault: encode(tokenizer, f"{fault}.") for fault in ("Drafter raises", "Drafter lies")}

    def propose(self, context: list[int], k: int) -> tuple[list[int], Any, list[int] | None]:
        rng = Random(f"{len(context)} {context[-1]} {k}")
        for fault, tokens in self._faults.items():
            if context[: len(tokens)] == tokens and rng.random() < 0.3:
                if fault == "Drafter raises":
                    raise RuntimeError("injected: the drafter failed")
                return [VOCAB] * k, None, None
        found, _ = lookup(as_text(context), 3, k)
        if rng.random() < 0.5:
            return [*found, *(rng.randrange(VOCAB) for _ in range(k - len(found)))][:k], None, None
        tokens, parents, parent = list[int](), list[int](), -1
        for token in found:
            tokens += [rng.randrange(VOCAB), token]
            parents += [parent, parent]
            parent = len(tokens) - 1
        return tokens[:k], None, parents[:k]


def _model(folder: str) -> dict[str, Any]:
    """A draft model or head that drafts alone."""
    return {"draft_model": folder, "drafter": "assistant"}


#: Arguments of the pipelines; those that call for it are made when they are used.
MODELS: Mapping[str, dict[str, Any]] = {
    "plain": {"drafter": "none"},
    "assistant": {**_model("draft"), "verify": COMMIT},
    "assistant, dense": _model("draft"),
    "eagle3": _model("eagle3"),
    "prompt_lookup": {"drafter": "prompt_lookup", "verify": COMMIT},
    "suffix": {"drafter": Suffix(), "verify": SPARSE},
    "sparse_self": {"drafter": SparseSelf(SPARSE), "verify": COMMIT},
    "layer_skip": {"drafter": LayerSkip(share=0.4, sparse=SPARSE), "verify": COMMIT},
    "auto": {"draft_model": "draft", "drafter": Auto(), "verify": COMMIT},
    "own": {"drafter": "own", "verify": COMMIT},
    "sparse prompts": {**_model("draft"), "prefill": ovspec.SparsePrefill(L0=128, rho=0.2)},
    "float": {**_model("draft"), "verify": COMMIT, **_F32},
}


@functools.cache
def pipeline(name: str) -> ovspec.LLMPipeline:
    """The pipeline of a name, made once."""
    given = dict(MODELS[name])
    if "draft_model" in given:
        given["draft_model"] = ovspec.draft_model(demo_pair_path() / given["draft_model"])
    if given.get("drafter") == "own":
        given["drafter"] = Own(Tokenizer(str(demo_pair_path())))
    return ovspec.LLMPipeline(demo_pair_path(), "CPU", INFERENCE_NUM_THREADS=1, **given)


@functools.cache
def plain_float() -> ovspec.LLMPipeline:
    """Plain decoding in f32."""
    return ovspec.LLMPipeline(demo_pair_path(), "CPU", drafter="none", INFERENCE_NUM_THREADS=1, **_F32)


def grow(name: str) -> None:
    """Let a pipeline take all the memory and threads that requests can make it take."""
    made = pipeline(name)
    made.engine.start()
    made.engine.engine.warm_up()
    for runner in runners(made.engine.engine):
        runner.limit_cache(None, 0)
    fill_caches(made.engine.engine, ROOMY)


class Answer:
    """An answer: tokens, why it ended, log probabilities where they were asked for.

    Attributes:
        logprobs: of a token, that of itself, then id and log probability of the most probable ones.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.reason = GenerationFinishReason.NONE
        self.logprobs = array("d")
        self.error: Exception | None = None

    def add(self, output: RequestOutput) -> None:
        """Take an output."""
        self.tokens += output.token_ids
        for one in output.logprobs:
            self.logprobs.append(one.logprob)
            self.logprobs.extend(itertools.chain.from_iterable(one.top))
        self.reason, self.error = output.finish_reason, output.error


def _source(model: str) -> str:
    """The model that says what plain decoding gives."""
    return model if model in ("float", "sparse prompts") else "plain"


def _plain(source: str) -> ovspec.LLMPipeline:
    return plain_float() if source == "float" else pipeline(source)


class Alone:
    """Answers of requests that nothing else is computed beside."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], Answer] = {}
        self._texts: dict[tuple[str, str], str] = {}

    def answer(self, model: str, ask: Ask, verify: str) -> Answer:
        """The right answer: what plain decoding gives in the same precision.

        Sparse prompts and sparse verification are compared with themselves.
        """
        source = model if verify == "sparse" else _source(model)
        mode = verify if verify == "sparse" else "dense"
        key = (source, mode, ask.key)
        if key not in self._known:
            self._known[key] = self._compute(source, ask, mode)
        return self._known[key]

    def text(self, model: str, ask: Ask) -> str:
        """The right text of a call of `generate`."""
        source = _source(model)
        if (source, ask.key) not in self._texts:
            made = _plain(source)
            drafts = {"num_assistant_tokens": 0} if made.drafts else {}
            made.runner.limit_cache(None, 0)
            self._texts[source, ask.key] = made.generate(ask.prompt, None, None, **ask.options, **drafts)
        return self._texts[source, ask.key]

    def _compute(self, source: str, ask: Ask, mode: str) -> Answer:
        # Only the model's own pipeline selects blocks.
        made = pipeline(source) if mode == "sparse" else _plain(source)
        ids = encode(made.get_tokenizer(), ask.prompt)
        drafts = {"num_assistant_tokens": 0} if made.drafts else {}
        settings = made.settings(None, **ask.options, **drafts)
        length = made.max_model_len
        engine = LLMEngine(made.runner, None, VERIFY[mode], 512, max_model_len=length, prefix_cache_bytes=0)
        engine.add_request(Request("alone", ids, settings, logprobs=ask.logprobs, index=ask.index))
        answer = Answer()
        while engine.has_unfinished_requests:
            for output in engine.step():
                answer.add(output)
        if answer.error is not None:
            raise answer.error
        return answer

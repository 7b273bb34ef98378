"""Speculative sampling through real models follows the target's exact distribution, whoever drafts."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from drafters.own_drafters import Chance, Trees
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray
from openvino_genai import GenerationConfig
from sampling.table_models import dense
from scipy.stats import chisquare
from settings import F32
from tiers import by_tier

from ovspec.cache.cache import CachedSequence
from ovspec.drafters import (
    AssistantDrafter,
    AutoDrafter,
    LayerSkipDrafter,
    PromptLookupDrafter,
    SparseSelfDrafter,
    SuffixDrafter,
    UserDrafter,
)
from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.engine.requests.request_step import RequestStep
from ovspec.engine.verify import commit, speculation
from ovspec.engine.verify.accept import accept
from ovspec.generation.generation_config import GenerationSettings, resolve, updated
from ovspec.generation.grammars.grammar import Grammar
from ovspec.generation.raw_metrics import RawPerfMetrics
from ovspec.generation.sequence import Sequence
from ovspec.modes.commit_verify import CommitVerify
from ovspec.modes.verify_mode import VerifyMode
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec.sampling.acceptance import Accepted
from ovspec.sampling.constraint import Constraint
from ovspec.sampling.sampling import SamplingParams, sampling_distribution
from ovspec.sampling.tree_acceptance import AcceptedPath
from ovspec.schedule.schedule import Plan, Schedule, StepState
from ovspec_models.folder.sparse_verify import SparseVerify
from ovspec_models.shapes import ModelShape
from ovspec_models.synthetic import build_model

VOCAB = 5
LETTERS = "abcde"
# Five whole blocks, which all runs share, and one token.
SHARED = 160
PROMPT = np.random.default_rng(3).integers(0, VOCAB, SHARED + 1).tolist()
# The first token comes out of the prompt's pass, three more out of speculation.
POSITIONS, LIMIT, DRAFT = 4, 5, 3
RUNS, MANY_RUNS, BATCH = 1500, 20_000, 500

SHAPE = ModelShape(
    name="enumerable",
    model_type="qwen3",
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    max_position_embeddings=256,
    rope_theta=10000.0,
    qk_norm=True,
    tie_word_embeddings=False,
    vocab_size=VOCAB,
)
SPARSE = SparseVerify(budget=96)
COMMIT = CommitVerify(SPARSE, interval=2)
TREE = {"tree_depth": DRAFT, "branching_factor": 2, "num_assistant_tokens": 6}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain sampling": {},
    "temperature": {"temperature": 2.0},
    "top-k and top-p": {"temperature": 1.5, "top_k": 4, "top_p": 0.9},
    "repetition penalty": {"temperature": 1.5, "repetition_penalty": 1.4},
    "biases and n-grams": {"temperature": 2.0, "no_repeat_ngram_size": 4},
    "grammar": {"temperature": 2.0, "top_p": 0.95},
}
BIASES = ((0, 1.5), (3, -2.0))
# Of every two letters the second depends on the first.
FOLLOWERS = {"a": "cde", "b": "cd", "c": "ab", "d": "ab", "e": "ab"}
GRAMMAR = Grammar.of_regex("(?:" + "|".join(f"{a}[{b}]" for a, b in FOLLOWERS.items()) + ")*", "regex")


class LetterGrammars:
    """Grammars over tokens of one letter each; the model has no end-of-sequence token."""

    eos_token_id, bos_token_id, special_token_ids = VOCAB, None, (VOCAB,)
    tokens = (*(letter.encode() for letter in LETTERS), b"<end>")

    def __call__(self, text: bytes) -> list[int]:
        return [LETTERS.index(letter) for letter in text.decode()]

    def constraint(self, grammar: Grammar) -> Constraint:
        return Constraint(LLMatcher(letter_tokens(), grammar.text), VOCAB, ())


@functools.cache
def letter_tokens() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(LetterGrammars()))


@functools.cache
def models() -> tuple[ModelRunner, ModelRunner]:
    """A target and an independent draft, which disagree strongly; the draft draws its tokens in one pass."""
    target, selects = build_model(SHAPE, "fp32", seed=4), AttentionConfig(selects=True)
    backends = Backends.resolve(target, "CPU", F32, selects, skips_layers=True)
    draft = build_model(SHAPE, "fp32", seed=2)
    drafter = ModelRunner(draft, backends=replace(Backends.resolve(draft, "CPU", F32), drafts=True))
    assert drafter.drafts
    return ModelRunner(target, backends=backends), drafter


def assistant() -> AssistantDrafter:
    return AssistantDrafter(models()[1], VOCAB, 64)


class Confident(AssistantDrafter):
    """Says how likely its tokens are by the tokens themselves, as DSpark's heads do."""

    def propose(self, *arguments: Any) -> list[Proposal]:
        proposals = super().propose(*arguments)
        for proposal in proposals:
            said = np.array([0.9 if token % 2 else 0.1 for token in proposal.tokens])
            proposal.confidences = np.cumprod(said).tolist()
        return proposals


class OfConfidence(Schedule):
    """As many tokens as ever; those are verified whose draft is likely to be right."""

    def plan(self, state: StepState) -> Plan:
        return Plan(DRAFT)

    def least_confidence(self, confidences: SequenceOf[float]) -> float:
        return 0.5


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "assistant": assistant,
    "confident": lambda: Confident(models()[1], VOCAB, 64),
    "assistant trees": assistant,
    "prompt_lookup": PromptLookupDrafter,
    "suffix": SuffixDrafter,
    "sparse_self": lambda: SparseSelfDrafter(models()[0], SparseVerify(budget=32)),
    "layer_skip": lambda: LayerSkipDrafter(models()[0]),
    "auto": lambda: AutoDrafter(SuffixDrafter(), assistant()),
    "own": lambda: UserDrafter(Chance(VOCAB), VOCAB),
    "own trees": lambda: UserDrafter(Trees(VOCAB), VOCAB),
}


@dataclass(frozen=True)
class Case:
    """A way to sample."""

    drafter: str
    verify: VerifyMode = "dense"
    setting: str = "temperature"
    together: int = BATCH
    rule: str = "coupled"

    def __str__(self) -> str:
        verify = self.verify if isinstance(self.verify, str) else f"commit {COMMIT.interval}"
        rule = "" if self.rule == "coupled" else f", {self.rule}"
        return f"{self.drafter}, {verify}, {self.setting}, {self.together} together{rule}"

    def settings(self) -> GenerationSettings:
        fixed = {"max_new_tokens": LIMIT, "num_assistant_tokens": DRAFT, "do_sample": True, "rng_seed": 20}
        fixed["acceptance_rule"] = self.rule
        shape = TREE if self.drafter == "assistant trees" else {}
        config = updated(GenerationConfig(), {**fixed, **SETTINGS[self.setting], **shape})
        grammar = GRAMMAR if self.setting == "grammar" else None
        settings = resolve(config, (), has_draft=True, grammar=grammar)
        biases = BIASES if self.setting == "biases and n-grams" else ()
        return replace(settings, sampling=replace(settings.sampling, logit_bias=biases))

    def draw(self, runs: int) -> tuple[Counter[tuple[int, ...]], RawPerfMetrics]:
        """First tokens of many runs through the engine, in batches of interleaved sequences."""
        target, draft = models()
        drafter = DRAFTERS[self.drafter]()
        engine, settings, metrics = (
            LLMEngine(target, drafter, self.verify, 64, self.together, grammars=LetterGrammars()),
            self.settings(),
            RawPerfMetrics(),
        )
        shared = CachedSequence(), CachedSequence()
        for runner, cached in zip((target, draft), shared, strict=True):
            runner.prefill(cached, np.array(PROMPT[:SHARED], np.int64), 64)
        seen: Counter[tuple[int, ...]] = Counter()
        for start in range(0, runs, BATCH):
            own = [
                tuple(CachedSequence(prompt.table.copy(), prompt.length) for prompt in shared)
                for _ in range(BATCH)
            ]
            requests = [
                Request(
                    str(index),
                    PROMPT,
                    settings,
                    index=start + index,
                    metrics=metrics,
                    cached=cached,
                    schedule=OfConfidence() if self.drafter == "confident" else None,
                )
                for index, cached in enumerate(own)
            ]
            for tokens in engine.generate(requests).values():
                seen[tuple(tokens[:POSITIONS])] += 1
            for pair in own:
                for runner, cached in zip((target, draft), pair, strict=True):
                    cached.table = cached.table[SHARED // target.block_size :]
                    runner.release(cached)
        for runner, cached in zip((target, draft), shared, strict=True):
            runner.release(cached)
        return seen, metrics

    def p_value(self, runs: int) -> tuple[float, RawPerfMetrics]:
        """Of the joint distribution of the first tokens, against the exact one."""
        exact = exact_distribution(self.setting)
        seen, metrics = self.draw(runs)
        assert all(exact.get(outcome, 0) > 0 for outcome in seen), "an impossible continuation was drawn"
        # Rare outcomes are pooled, as the chi-square test asks for at least five expected of each.
        outcomes = itertools.product(range(VOCAB), repeat=POSITIONS)
        common = [outcome for outcome in outcomes if exact.get(outcome, 0) * runs >= 5]
        expected = np.array([exact[outcome] * runs for outcome in common])
        observed = np.array([seen[outcome] for outcome in common], float)
        if (rest := runs - expected.sum()) >= 5:
            expected, observed = np.append(expected, rest), np.append(observed, runs - observed.sum())
        assert len(expected) > 10
        return chisquare(observed, expected * observed.sum() / expected.sum()).pvalue, metrics


@functools.cache
def exact_distribution(setting: str) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of so many tokens, one dense pass per context, no drafts."""
    target, _ = models()
    params = Case("assistant", setting=setting).settings().sampling
    cached = CachedSequence()
    target.prefill(cached, np.array(PROMPT[:SHARED], np.int64), 64)

    def next_token(context: tuple[int, ...]) -> NDArray[np.float64]:
        tokens = np.array([*PROMPT, *context], np.int64)
        cached.rollback(SHARED)
        row = target.forward([Rows(cached, tokens[SHARED:])]).logits[0].copy()
        if setting == "grammar" and len(context) % 2:
            followers = FOLLOWERS[LETTERS[context[-1]]]
            row = np.where([letter in followers for letter in LETTERS], row, -np.inf).astype(np.float32)
        return dense(sampling_distribution(penalised(row, tokens, params), params), VOCAB)

    exact = {(): 1.0}
    for _ in range(POSITIONS):
        exact = {
            (*context, token): probability * p
            for context, probability in exact.items()
            for token, p in enumerate(next_token(context))
            if probability * p > 0
        }
    target.release(cached)
    return exact


def penalised(
    row: NDArray[np.float32], tokens: NDArray[np.int64], params: SamplingParams
) -> NDArray[np.float32]:
    out, n, text = row.copy(), params.no_repeat_ngram_size, tokens.tolist()
    for token, bias in params.logit_bias:
        out[token] += bias
    for token in set(text):
        out[token] *= params.repetition_penalty if out[token] < 0 else 1 / params.repetition_penalty
    if params.excludes_ngrams:
        seen = {tuple(text[at : at + n]) for at in range(len(text) - n + 1)}
        again = [token for token in range(len(out)) if (*text[len(text) - n + 1 :], token) in seen]
        out[again] = -np.inf
    return out


FIRST = [
    Case("assistant", setting="top-k and top-p"),
    Case("own trees", COMMIT),
    Case("sparse_self", COMMIT),
]
CASES = [
    *FIRST,
    Case("assistant", COMMIT, "grammar"),
    Case("assistant trees", COMMIT, "biases and n-grams"),
    Case("assistant trees", COMMIT, "top-k and top-p", 4),
    *(
        Case("assistant", setting=setting)
        for setting in ("plain sampling", "temperature", "repetition penalty")
    ),
    *(Case("assistant trees", verify, together=n) for verify in ("dense", COMMIT) for n in (1, 4)),
    Case("sparse_self", COMMIT, "repetition penalty"),
    Case("layer_skip"),
    Case("own"),
    Case("prompt_lookup"),
    Case("assistant", COMMIT),
    Case("layer_skip", COMMIT),
    Case("auto", COMMIT, "top-k and top-p"),
    Case("assistant trees", setting="grammar", together=4),
    Case("own trees", setting="grammar"),
    Case("own", setting="grammar", rule="block"),
    Case("assistant", setting="grammar", rule="block"),
    Case("assistant", setting="biases and n-grams"),
    Case("sparse_self", COMMIT, "biases and n-grams"),
    Case("own", setting="biases and n-grams", rule="block"),
]
EVERY_CASE = [
    Case(drafter, verify, setting)
    for drafter in DRAFTERS
    for verify in ("dense", COMMIT)
    for setting in SETTINGS
]


@pytest.mark.parametrize("case", by_tier(CASES, FIRST), ids=str)
def test_positions_follow_the_exact_distribution(case: Case) -> None:
    p_value, metrics = case.p_value(RUNS)
    assert p_value > 1e-3
    # Drafts were rejected at every offset, and accepted whole with a bonus token.
    longest = 2 if case.drafter == "own trees" else DRAFT
    assert set(metrics.accepted_lengths) == set(range(longest + 1))
    if case.verify != "dense":
        assert 0 < sum(metrics.confirmed_lengths) < sum(metrics.provisional_lengths)


@pytest.mark.parametrize("rule", ["coupled", pytest.param("block", marks=pytest.mark.slow)])
def test_confidences_that_depend_on_tokens_leave_the_law(rule: str) -> None:
    assert Case("confident", rule=rule).p_value(2 * RUNS)[0] > 1e-3


@pytest.mark.sweep
@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_positions_follow_the_exact_distribution_in_many_runs(case: Case) -> None:
    assert case.p_value(MANY_RUNS)[0] > 1e-4


@pytest.mark.slow
def test_draft_and_sparse_target_differ_from_the_target() -> None:
    """Otherwise the tests above would pass with any acceptance rule."""
    exact = exact_distribution("temperature")
    for drafter, verify in (("assistant", SPARSE), ("sparse_self", SPARSE)):
        seen, _ = Case(drafter, verify).draw(RUNS)
        assert sum(abs(exact.get(outcome, 0) - count / RUNS) for outcome, count in seen.items()) / 2 > 0.15


def confirm_everything(sequence: Sequence, proposal: Proposal, logits: NDArray[np.float32]) -> Accepted:
    count = len(proposal.tokens)
    p = sequence.processor.distribution(logits[count], proposal.tokens)
    return Accepted(count, sequence.coupling.draw(p, len(sequence.tokens) + count))


def take_the_likeliest(
    sequence: Sequence, proposal: Proposal, parents: list[int], logits: NDArray[np.float32]
) -> AcceptedPath:
    """Accepts the first node whatever the target draws there."""
    p = sequence.processor.distribution(logits[1], proposal.tokens[:1])
    return AcceptedPath([0], sequence.coupling.draw(p, len(sequence.tokens) + 1))


@pytest.mark.parametrize("verify", by_tier(["dense", COMMIT], ["dense"]), ids=["dense", "commit"])
def test_wrong_trees_fail_the_same_test(verify: VerifyMode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "accept_tree", take_the_likeliest)
    assert Case("assistant trees", verify).p_value(RUNS)[0] < 1e-6


def test_wrong_commits_fail_the_same_test(monkeypatch: pytest.MonkeyPatch) -> None:
    due = set[int]()

    def noted(requests: list[RequestStep]) -> list[RequestStep]:
        advanced = commit.take_back(requests)
        due.clear()
        due.update(id(request.state.sequence) for request in advanced if request.provisional)
        return advanced

    def wrong(sequence: Sequence, proposal: Proposal, logits: NDArray[np.float32]) -> Accepted:
        return (confirm_everything if id(sequence) in due else accept)(sequence, proposal, logits)

    monkeypatch.setattr(speculation, "take_back", noted)
    monkeypatch.setattr(speculation, "accept", wrong)
    assert Case("assistant", COMMIT).p_value(RUNS)[0] < 1e-6

"""Acceptance rules: the output follows the target's exact law, and wrong rules fail the same test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling.table_models import (
    CASES,
    LENGTH,
    TARGET,
    VOCAB,
    Context,
    Model,
    Rule,
    decode,
    exact_joint,
    p_value,
    p_value_of,
)
from scipy import stats
from tiers import by_tier

from ovspec.sampling.acceptance import (
    Accepted,
    RandomStreams,
    greedy_accept,
    lenient_accept,
    speculative_sample,
)
from ovspec.sampling.coupling import Coupling
from ovspec.sampling.logits_processors import LogitsProcessor
from ovspec.sampling.sampling import Distribution, SamplingParams, sampling_distribution

FIRST = ("random_q", "disjoint_zeros", "opposed_q", "opposed_argmax_without_q", "q_for_some_positions")


@pytest.mark.parametrize("name", by_tier(CASES, FIRST))
def test_three_positions_follow_the_target_exactly(name: str) -> None:
    assert p_value_of(CASES[name], speculative_sample) > 1e-3


def residual_drawn_from_p(
    draft_tokens: Sequence[int],
    q: Sequence[Distribution | None] | None,
    p: Callable[[int], Distribution],
    streams: RandomStreams,
) -> Accepted:
    accepted = speculative_sample(draft_tokens, q, p, streams)
    if accepted.n == len(draft_tokens):
        return accepted
    return Accepted(accepted.n, p(accepted.n).sample(streams.residual.random()))


def accept_everything(
    draft_tokens: Sequence[int],
    q: Sequence[Distribution | None] | None,
    p: Callable[[int], Distribution],
    streams: RandomStreams,
) -> Accepted:
    k = len(draft_tokens)
    return Accepted(k, p(k).sample(streams.residual.random()))


def rejects_on_argmax_mismatch(
    draft_tokens: Sequence[int],
    q: Sequence[Distribution | None] | None,
    p: Callable[[int], Distribution],
    streams: RandomStreams,
) -> Accepted:
    for i, x in enumerate(draft_tokens):
        if x != p(i).dense(VOCAB).argmax():
            return Accepted(i, p(i).sample(streams.residual.random()))
    return Accepted(len(draft_tokens), p(len(draft_tokens)).sample(streams.residual.random()))


def p_of_the_context_only(
    draft_tokens: Sequence[int],
    q: Sequence[Distribution | None] | None,
    p: Callable[[int], Distribution],
    streams: RandomStreams,
) -> Accepted:
    return speculative_sample(draft_tokens, q, lambda i: p(min(i, 1)), streams)


# A drafter that is hardly ever right cannot show what a rule does with the tokens it accepts.
WRONG = [
    (name, rule)
    for rule in (residual_drawn_from_p, accept_everything, rejects_on_argmax_mismatch, p_of_the_context_only)
    for name in ("random_q", "opposed_q", "q_with_zeros")
    if name != "opposed_q" or rule in (residual_drawn_from_p, accept_everything)
]


@pytest.mark.parametrize(("name", "rule"), WRONG, ids=[f"{name}-{rule.__name__}" for name, rule in WRONG])
def test_wrong_rules_fail_the_same_test(name: str, rule: Rule) -> None:
    assert p_value_of(CASES[name], rule, runs=2000) < 1e-6


def test_misreported_q_fails_the_same_test() -> None:
    # A drafter that draws from q, but reports another distribution, must show.
    case = CASES["random_q"]
    wrong = Distribution.from_probs(np.full(VOCAB, 1 / VOCAB))

    def rule(
        draft_tokens: Sequence[int],
        q: Sequence[Distribution | None] | None,
        p: Callable[[int], Distribution],
        streams: RandomStreams,
    ) -> Accepted:
        return speculative_sample(draft_tokens, [wrong] * len(draft_tokens), p, streams)

    assert p_value_of(case, rule, runs=2000) < 1e-6


def test_context_dependent_processors_keep_the_law() -> None:
    params = SamplingParams(
        do_sample=True, temperature=0.9, top_p=0.9, repetition_penalty=1.5, frequency_penalty=0.9,
        presence_penalty=0.4, min_new_tokens=2, stop_token_ids=frozenset({4}),
    )  # fmt: skip
    p_logits, q_logits = np.array([[1.0, 0.4, 1.6, 0.1, 1.9], [0.2, 1.5, 0.3, 1.0, 0.9]], dtype=np.float32)

    def model(logits: NDArray[np.float32]) -> Model:
        def distribution(context: Context) -> Distribution:
            processor = LogitsProcessor(params, [2])
            processor.extend(context)
            return processor.distribution(logits)

        rows = {
            context: distribution(context)
            for length in range(LENGTH + 3)
            for context in itertools.product(range(VOCAB), repeat=length)
        }
        return rows.__getitem__

    reference = model(p_logits)
    joint = exact_joint(reference)
    assert np.abs(joint.sum((1, 2)) - joint.sum((0, 2))).max() > 0.05, "the context must matter"
    outputs = []
    for run in range(5000):
        streams, processor, out = RandomStreams(5, run), LogitsProcessor(params, [2]), []
        while len(out) < LENGTH:
            draft: list[int] = []
            q: list[Distribution] = []
            for _ in range(2):
                q.append(processor.distribution(q_logits, draft))
                draft.append(q[-1].sample(streams.draft.random()))
            accepted = speculative_sample(
                draft,
                q,
                lambda i, d=draft, c=processor: c.distribution(p_logits, d[:i]),  # type: ignore[misc]
                streams,
            )
            new = [*draft[: accepted.n], accepted.next_token]
            processor.extend(new)
            out += new
        outputs.append(tuple(out[:LENGTH]))
    assert p_value(outputs, joint) > 1e-3


@pytest.mark.parametrize("name", ["random_q", "opposed_q", "q_with_zeros", "disjoint_zeros"])
def test_acceptance_rate_is_one_minus_total_variation(name: str) -> None:
    p, q = CASES[name].target(()), CASES[name].drafter(())
    expected = float(np.minimum(p.dense(VOCAB), q.dense(VOCAB)).sum())
    runs, accepted = 6000, 0
    for run in range(runs):
        streams = RandomStreams(31, run)
        x = q.sample(streams.draft.random())
        accepted += speculative_sample([x], [q], lambda i: p, streams).n
    assert stats.binomtest(accepted, runs, expected).pvalue > 1e-3


def test_equal_distributions_never_reject() -> None:
    rng = np.random.default_rng(0)
    for run in range(300):
        p = sampling_distribution(
            (rng.normal(size=501) * 3).astype(np.float32), SamplingParams(do_sample=True, top_p=0.95)
        )
        streams = RandomStreams(run)
        draft = [p.sample(u) for u in streams.draft.random(6)]
        assert speculative_sample(draft, [p] * 6, lambda i, p=p: p, streams).n == 6  # type: ignore[misc]


def test_without_draft_tokens_the_next_token_is_drawn_from_p() -> None:
    p = Distribution.one_hot(3)
    assert speculative_sample([], [], lambda i: p, RandomStreams(0)) == Accepted(0, 3)
    assert speculative_sample([], None, lambda i: p, RandomStreams(0)) == Accepted(0, 3)
    assert greedy_accept([], [3]) == Accepted(0, 3)


@pytest.mark.parametrize("wrong_at", [None, 0, 1, 2, 3])
def test_greedy_accepts_up_to_the_first_difference(wrong_at: int | None) -> None:
    draft, target = [4, 2, 2, 0], [4, 2, 2, 0, 1]
    if wrong_at is not None:
        draft[wrong_at] = 3
    n = 4 if wrong_at is None else wrong_at
    assert greedy_accept(draft, target) == Accepted(n, target[n])
    assert greedy_accept(np.array(draft), np.array(target)) == Accepted(n, target[n])


@pytest.mark.parametrize("wrong_at", [None, 0, 2])
def test_greedy_acceptance_is_sampling_from_the_argmax(wrong_at: int | None) -> None:
    logits = np.random.default_rng(4).normal(size=(5, 97)).astype(np.float32)
    target = [int(token) for token in logits.argmax(1)]
    draft = target[:4]
    if wrong_at is not None:
        draft[wrong_at] = (draft[wrong_at] + 1) % 97
    sampled = speculative_sample(
        draft, None, lambda i: sampling_distribution(logits[i], SamplingParams()), RandomStreams(9)
    )
    assert sampled == greedy_accept(draft, target)


def test_coupled_draws_follow_the_target_exactly() -> None:
    """The rule of greedy decoding over tokens that the target draws with the numbers of their positions."""
    target, drafter = TARGET, CASES["opposed_q"].drafter
    outputs, accepted = [], 0
    for run in range(5000):
        coupling = Coupling(17, run)
        draft: Context = ()
        for position in range(LENGTH):
            draft += (coupling.draw(drafter(draft), position),)
        out = greedy_accept(draft, (coupling.draw(target(draft[:i]), i) for i in range(LENGTH + 1)))
        tokens = (*draft[: out.n], out.next_token)
        accepted += out.n
        while len(tokens) < LENGTH:
            tokens += (coupling.draw(target(tokens), len(tokens)),)
        outputs.append(tokens[:LENGTH])
    assert 0 < accepted < 5000 * LENGTH
    assert p_value(outputs, exact_joint(target)) > 1e-3


def test_threshold_accepts_every_token_above_it() -> None:
    threshold, case, met = 0.3, CASES["random_q"], set()
    p, q = case.target(()), case.drafter(())
    for run in range(500):
        streams = RandomStreams(6, run)
        x = q.sample(streams.draft.random())
        exact = speculative_sample([x], [q], lambda i: p, RandomStreams(6, run))
        lenient = speculative_sample([x], [q], lambda i: p, RandomStreams(6, run), threshold)
        above = p.prob(x) / q.prob(x) >= threshold
        assert lenient.n == 1 if above else lenient == exact
        met.add((above, exact.n))
    assert met == {(True, 0), (True, 1), (False, 0), (False, 1)}


def test_threshold_of_one_is_the_exact_rule_and_below_it_the_law_changes() -> None:
    def rule(threshold: float) -> Rule:
        return lambda x, q, p, streams: speculative_sample(x, q, p, streams, threshold)

    case = CASES["random_q"]
    for run in range(200):
        exact = decode(case, speculative_sample, RandomStreams(1, run))
        assert decode(case, rule(1.0), RandomStreams(1, run)) == exact
    assert p_value_of(case, rule(0.5), runs=2000) < 1e-6


@pytest.mark.parametrize(
    ("threshold", "n", "asked"),
    [(0.5, 3, [1, 2]), (0.7, 2, [1, 2]), (0.95, 1, [1])],
    ids=["low", "middle", "high"],
)
def test_lenient_acceptance_compares_what_is_not_the_targets_choice(
    threshold: float, n: int, asked: list[int]
) -> None:
    seen: list[int] = []

    def ratio(i: int) -> float:
        seen.append(i)
        return (1.0, 0.9, 0.6)[i]

    accepted = lenient_accept([5, 6, 7], iter([5, 1, 2, 3]), ratio, threshold)
    assert accepted == Accepted(n, [5, 1, 2, 3][n]) and seen == asked


def test_target_rows_are_computed_only_as_far_as_needed() -> None:
    asked: list[int] = []

    def p(i: int) -> Distribution:
        asked.append(i)
        return Distribution.one_hot(7 if i < 2 else 8)

    assert speculative_sample([7, 7, 7, 7], None, p, RandomStreams(0)) == Accepted(2, 8)
    assert asked == [0, 1, 2]
    rows = iter([7, 7, 8, 7, 7])
    assert greedy_accept([7, 7, 7, 7], rows) == Accepted(2, 8)
    assert list(rows) == [7, 7]


def test_empty_residual_falls_back_to_p() -> None:
    # p below q everywhere cannot come from two normalised distributions, only from rounding; made large here.
    p, q = Distribution(np.array([0.1, 0.3])), Distribution(np.array([0.5, 0.5]))
    assert p.residual(q) is None
    runs, corrections = 4000, []
    for run in range(runs):
        accepted = speculative_sample([0], [q], lambda i: p, RandomStreams(8, run))
        if accepted.n == 0:
            corrections.append(accepted.next_token)
    assert stats.binomtest(runs - len(corrections), runs, 0.2).pvalue > 1e-3
    # `sample` reads p as it is, without normalising it: what lies past its sum falls to the last token.
    assert stats.binomtest(corrections.count(0), len(corrections), 0.1).pvalue > 1e-3


def test_errors_name_the_argument() -> None:
    p = Distribution.one_hot(1)
    with pytest.raises(
        ValueError, match=r"^draft_tokens\[1\] = 2 has probability 0 under q\[1\]; the drafter must"
    ):
        speculative_sample([1, 2], [p, p], lambda i: p, RandomStreams(0))
    with pytest.raises(ValueError, match=r"^q must have one entry for each of 2 draft tokens, got 1"):
        speculative_sample([1, 1], [p], lambda i: p, RandomStreams(0))
    with pytest.raises(ValueError, match=r"^target_argmax must have 3 entries for 2 draft tokens, got 2"):
        greedy_accept([1, 1], [1, 1])
    with pytest.raises(
        ValueError, match=r"^target_argmax must have 3 entries for 2 draft tokens, but ended early"
    ):
        greedy_accept([1, 1], iter([1, 1]))
    with pytest.raises(ValueError, match=r"^target_choice must have 3 entries for 2 draft tokens"):
        lenient_accept([1, 1], iter([1, 1]), lambda i: 1.0, 0.5)
    with pytest.raises(ValueError, match=r"^seed must be >= 0, got -1"):
        RandomStreams(-1)
    with pytest.raises(ValueError, match=r"^sequence_index must be >= 0, got -2"):
        RandomStreams(1, -2)

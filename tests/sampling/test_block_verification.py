"""Block verification: exact laws over few tokens in closed form, and the wrong rules that they catch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling import table_models

from ovspec.sampling.acceptance import Accepted
from ovspec.sampling.block_verification import block_accept, block_stops
from ovspec.sampling.coupling import Coupling
from ovspec.sampling.sampling import Distribution

VOCAB = 3
Law = NDArray[np.float64]
Model = dict[tuple[int, ...], Law]
Draw = Callable[[Distribution, int], int]
Rule = Callable[[Sequence[int], Sequence[Law], Sequence[Law], Sequence[float], Draw], Accepted]


def model(seed: int, kind: str = "drawn") -> Model:
    """After every path a law of the next token: one of three tokens may be impossible, or all but one."""
    rng, found = np.random.default_rng(seed), Model()
    for count in range(4):
        for path in itertools.product(range(VOCAB), repeat=count):
            law = rng.dirichlet(np.ones(VOCAB))
            if kind == "chosen":
                law = np.eye(VOCAB)[rng.integers(VOCAB)]
            elif rng.random() < 0.3:
                law[rng.integers(VOCAB)] = 0
            found[path] = law / law.sum()
    return found


def along(laws: Model, path: tuple[int, ...], count: int) -> list[Law]:
    return [laws[path[:place]] for place in range(count)]


def drafts(q: Model, k: int, last: tuple[int, ...], path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """The drafts of up to k tokens that are possible; those of `last` end one."""
    if len(path) == k or (path and path[-1] in last):
        yield path
        return
    for token in np.flatnonzero(q[path]).tolist():
        yield from drafts(q, k, last, (*path, token))


def outcome(rule: Rule, p: Model, q: Model, k: int, last: tuple[int, ...] = ()) -> tuple[Law, float]:
    """The law of k + 1 tokens, those behind the rule's by the target, and the expected number accepted."""
    found, accepted = np.zeros((VOCAB,) * (k + 1)), 0.0
    for path in drafts(q, k, last):
        ours, theirs = along(p, path, len(path) + 1), along(q, path, len(path))
        drawn = np.prod([law[x] for law, x in zip(theirs, path, strict=True)])
        ratios = [min(1.0, ours[i][x] / theirs[i][x]) for i, x in enumerate(path)]
        # What the rules compare their numbers with: between two of these, every number does the same.
        ends = np.unique([0.0, 1.0, *ratios, *block_stops(ours, theirs, path)[1]])
        for places in itertools.product(range(len(ends) - 1), repeat=len(path)):
            part = drawn * np.prod([ends[i + 1] - ends[i] for i in places])
            laws: list[Law] = []

            def draw(law: Distribution, n: int, laws: list[Law] = laws) -> int:
                laws.append(law.dense(VOCAB))
                return n

            n = rule(path, ours, theirs, [(ends[i] + ends[i + 1]) / 2 for i in places], draw).n
            accepted += part * n
            for behind in itertools.product(range(VOCAB), repeat=k + 1 - n):
                whole = (*path[:n], *behind)
                more = [p[whole[:i]][whole[i]] for i in range(n + 1, k + 1)]
                found[whole] += part * laws[0][behind[0]] * np.prod(more)
    return found, accepted


def exact(p: Model, k: int) -> Law:
    wholes = itertools.product(range(VOCAB), repeat=k + 1)
    return np.reshape([np.prod([p[w[:i]][w[i]] for i in range(k + 1)]) for w in wholes], (VOCAB,) * (k + 1))


def residual(p: Law, q: Law, weight: float = 1.0) -> Distribution:
    rest = np.maximum(weight * p - q, 0)
    return Distribution(rest / rest.sum()) if rest.sum() > 0 else Distribution(p)


def first_rejected(x: Sequence[int], p: Sequence[Law], q: Sequence[Law], uniform: Sequence[float]) -> int:
    ratios = [p[i][token] / q[i][token] for i, token in enumerate(x)]
    return next((i for i, ratio in enumerate(ratios) if uniform[i] >= ratio), len(x))


def token_wise(
    x: Sequence[int], p: Sequence[Law], q: Sequence[Law], uniform: Sequence[float], draw: Draw
) -> Accepted:
    """The rule of Leviathan et al., which is exact too."""
    n = first_rejected(x, p, q, uniform)
    return Accepted(n, draw(residual(p[n], q[n]) if n < len(x) else Distribution(p[n]), n))


def token_wise_with_block_residual(
    x: Sequence[int], p: Sequence[Law], q: Sequence[Law], uniform: Sequence[float], draw: Draw
) -> Accepted:
    n, (weights, _) = first_rejected(x, p, q, uniform), block_stops(p, q, x)
    return Accepted(n, draw(residual(p[n], q[n], weights[n]) if n < len(x) else Distribution(p[n]), n))


def block_with_token_residual(
    x: Sequence[int], p: Sequence[Law], q: Sequence[Law], uniform: Sequence[float], draw: Draw
) -> Accepted:
    n = block_accept(x, p, q, uniform, lambda law, n: 0).n
    return Accepted(n, draw(residual(p[n], q[n]) if n < len(x) else Distribution(p[n]), n))


def block_without_residual(
    x: Sequence[int], p: Sequence[Law], q: Sequence[Law], uniform: Sequence[float], draw: Draw
) -> Accepted:
    return block_accept(x, p, q, uniform, lambda law, n: draw(Distribution(p[n]), n))


def up_to_the_first_that_falls(
    x: Sequence[int], p: Sequence[Law], q: Sequence[Law], uniform: Sequence[float], draw: Draw
) -> Accepted:
    weights, stands = block_stops(p, q, x)
    n = next((i for i, eta in enumerate(uniform) if eta >= stands[i + 1]), len(x))
    return Accepted(n, draw(residual(p[n], q[n], weights[n]) if n < len(x) else Distribution(p[n]), n))


WRONG = [
    token_wise_with_block_residual,
    block_with_token_residual,
    block_without_residual,
    up_to_the_first_that_falls,
]


@pytest.mark.parametrize("last", [(), (0,)], ids=["of one length", "ended by a token"])
@pytest.mark.parametrize("kind", ["drawn", "chosen"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_law_is_the_targets_and_no_fewer_stand_than_token_by_token(
    k: int, kind: str, last: tuple[int, ...]
) -> None:
    gains = []
    for seed in range(5 if k < 3 else 2):
        p, q = model(seed), model(100 + seed, kind)
        (law, accepted), (other, fewer) = (
            outcome(rule, p, q, k, last) for rule in (block_accept, token_wise)
        )
        np.testing.assert_allclose(law, exact(p, k), rtol=0, atol=1e-12)
        np.testing.assert_allclose(other, exact(p, k), rtol=0, atol=1e-12)
        gains.append(accepted - fewer)
    assert min(gains) > -1e-12
    if kind == "chosen" or k == 1:  # then both rules are one
        assert max(gains) < 1e-12
    else:
        assert max(gains) > 0.01


@pytest.mark.parametrize("rule", WRONG)
def test_wrong_rules_fail_the_same_test(rule: Rule) -> None:
    pairs = [(model(seed), model(100 + seed)) for seed in range(5)]
    apart = [np.abs(outcome(rule, p, q, 2)[0] - exact(p, 2)).sum() / 2 for p, q in pairs]
    assert max(apart) > 0.02


def decode(run: int, drafter: str, rule: Rule, is_coupled: bool) -> table_models.Context:
    """Tokens of drafts of two, until there are enough."""
    coupling, random = Coupling(17, run), np.random.default_rng((17, run))
    draft, target, size = table_models.DRAFTERS[drafter], table_models.TARGET, table_models.VOCAB
    out: table_models.Context = ()
    while len(out) < table_models.LENGTH:
        x: table_models.Context = ()
        for i in range(2):
            q = draft(out + x)
            x += (coupling.draw(q, len(out) + i) if is_coupled else q.draw(random.random()),)
        laws = [[model(out + x[:i]).dense(size) for i in range(3)] for model in (target, draft)]
        uniform = random.random(2).tolist()
        begin = len(out)
        accepted = rule(
            x, laws[0], laws[1][:2], uniform, lambda law, n, begin=begin: coupling.draw(law, begin + n)
        )
        out += (*x[: accepted.n], accepted.next_token)
    return out[: table_models.LENGTH]


@pytest.mark.parametrize("drafter", table_models.DRAFTERS)
def test_several_drafts_follow_the_exact_law(drafter: str) -> None:
    outputs = [decode(run, drafter, block_accept, is_coupled=False) for run in range(4000)]
    assert table_models.p_value(outputs, table_models.exact_joint(table_models.TARGET)) > 1e-3


@pytest.mark.parametrize(
    ("drafter", "rule", "is_coupled"),
    [("random", token_wise_with_block_residual, False), ("opposed", block_accept, True)],
    ids=["token-wise acceptance", "coupled drafts"],
)
def test_wrong_rules_and_coupled_drafts_do_not(drafter: str, rule: Rule, is_coupled: bool) -> None:
    outputs = [decode(run, drafter, rule, is_coupled) for run in range(6000)]
    assert table_models.p_value(outputs, table_models.exact_joint(table_models.TARGET)) < 1e-6


def test_equal_models_accept_everything() -> None:
    p = along(model(3), (0, 1, 2), 4)
    drawn: list[Distribution] = []

    def draw(law: Distribution, n: int) -> int:
        drawn.append(law)
        return 7

    tokens = [int(law.argmax()) for law in p[:3]]
    assert block_accept(tokens, p, p[:3], [1 - 2.0**-53] * 3, draw) == Accepted(3, 7)
    np.testing.assert_array_equal(drawn[0].dense(VOCAB), p[3])


def test_a_rejection_that_only_rounding_explains_draws_from_the_target() -> None:
    p, q = np.array([0.5, 0.5]), np.array([0.5 + 2**-52, 0.5])
    laws: list[Distribution] = []
    accepted = block_accept([0], [p, p], [q], [1 - 2**-53], lambda law, n: laws.append(law) or 1)
    assert accepted == Accepted(0, 1)
    np.testing.assert_array_equal(laws[0].dense(2), p)


@pytest.mark.parametrize("ids", [None, np.array([1, 2, 5])])
def test_a_distribution_is_drawn_from_by_one_number(ids: NDArray[np.int64] | None) -> None:
    p = Distribution(np.array([0.25, 0.0, 0.75]), ids)
    names = [0, 1, 2] if ids is None else ids.tolist()
    drawn = [p.draw(uniform) for uniform in (0.0, 0.2499, 0.25, 0.9, 1 - 2.0**-53)]
    assert drawn == [names[place] for place in (0, 0, 2, 2, 2)]
    np.testing.assert_array_equal(p.dense(7), [p.prob(token) for token in range(7)])

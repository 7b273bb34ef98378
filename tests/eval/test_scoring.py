"""Log-likelihoods against what generation itself reports."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prompts import STORY

import ovspec
from ovspec.engine.requests.request import Request
from ovspec.eval.scoring import Scorer
from ovspec.generation.inputs import tokenized

MakePipeline = Callable[..., ovspec.LLMPipeline]


def generated(pipeline: ovspec.LLMPipeline, prompt: list[int], count: int) -> tuple[list[int], float]:
    """Greedy tokens after a prompt, and the sum of their log-probabilities."""
    settings = pipeline.settings(max_new_tokens=count, ignore_eos=True, do_sample=False)
    outputs = list(pipeline.engine.run([Request("score", prompt, settings, logprobs=0)]))
    tokens = [token for output in outputs for token in output.token_ids]
    return tokens, sum(entry.logprob for output in outputs for entry in output.logprobs)


@pytest.mark.parametrize("count", [1, 2, 30, 90])
def test_a_score_is_the_sum_of_the_log_probabilities(make_pipeline: MakePipeline, count: int) -> None:
    pipeline = make_pipeline()
    prompt = tokenized(pipeline.get_tokenizer(), STORY[:300], special_tokens=True)
    tokens, expected = generated(pipeline, prompt, count)
    total, greedy = Scorer(pipeline).score(prompt, tokens)
    assert total == pytest.approx(expected, abs=1e-3) and greedy
    other = [*tokens[:-1], (tokens[-1] + 1) % 4096]
    worse, still = Scorer(pipeline).score(prompt, other)
    assert worse < total and not still
    # One token more, one log-probability more.
    assert Scorer(pipeline).score([*prompt, *tokens[:-1]], tokens[-1:])[0] == pytest.approx(
        total - Scorer(pipeline).score(prompt, tokens[:-1])[0], abs=1e-3
    )


@pytest.mark.slow
def test_sparse_scores_are_those_of_sparse_passes(make_pipeline: MakePipeline) -> None:
    dense, commit = (
        make_pipeline(),
        make_pipeline(verify=ovspec.CommitVerify(ovspec.SparseVerify(L0=96, rho=0.1))),
    )
    sparse = make_pipeline(verify=ovspec.SparseVerify(L0=96, rho=0.1))
    everything = make_pipeline(verify=ovspec.SparseVerify(budget=100_000))
    prompt = tokenized(dense.get_tokenizer(), STORY, special_tokens=True)
    tokens, _ = generated(dense, prompt, 24)
    expected, _ = Scorer(dense).score(prompt, tokens)
    assert Scorer(commit).score(prompt, tokens)[0] == pytest.approx(expected, abs=1e-3)
    assert Scorer(everything).score(prompt, tokens)[0] == pytest.approx(expected, abs=1e-3)
    assert Scorer(sparse).score(prompt, tokens)[0] != pytest.approx(expected, abs=1e-3)


def test_nothing_to_score(make_pipeline: MakePipeline) -> None:
    assert Scorer(make_pipeline()).score([1], []) == (0.0, True)
    with pytest.raises(ValueError, match="no tokens"):
        Scorer(make_pipeline()).score([], [1])


@pytest.mark.parametrize("shared", [True, False])
def test_many_continuations_have_the_scores_of_each(make_pipeline: MakePipeline, shared: bool) -> None:
    pipeline = make_pipeline()
    text = tokenized(pipeline.get_tokenizer(), STORY, special_tokens=True)
    prompt, rest = text[37:137], text[137:]  # the pipeline may know the beginning from other tests
    continuations = [rest[:1], rest[:40], rest[7:600], rest[3:60]]  # together more rows than a pass has
    scorer = Scorer(pipeline)
    found = scorer.score_all(prompt, continuations, shared)
    for logprobs, tokens in zip(found.logprobs, continuations, strict=True):
        assert len(logprobs) == len(tokens)
        assert logprobs.sum() == pytest.approx(scorer.score(prompt, tokens)[0], abs=1e-3)
    rows, size = sum(map(len, continuations)) - len(continuations), pipeline.runner.block_size
    whole = 99 // size * size
    assert found.num_read == rows + (whole + 4 * (100 - whole) if shared else 4 * 100)
    # The next call finds the prompt, and nobody holds blocks.
    again = scorer.score_all(prompt, continuations, shared)
    assert again.num_read == rows + 4 * (100 - whole if shared else 100)
    assert pipeline.runner.blocks.usage == 0.0

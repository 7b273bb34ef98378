"""Sampling parameters, logits processors and distributions against slow, obvious references."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import openvino_genai
import pytest
from numpy.typing import NDArray
from sampling.table_models import dense

from ovspec.sampling.logits_processors import LogitsProcessor
from ovspec.sampling.sampling import Distribution, SamplingParams, greedy_token, sampling_distribution

PARAMS = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 3.5},
    "top_k": {"top_k": 13},
    "top_k_1": {"top_k": 1},
    "top_p": {"top_p": 0.9},
    "top_p_small": {"top_p": 0.05},
    "top_p_near_1": {"top_p": 0.99999},
    "min_p": {"min_p": 0.1},
    "min_p_starves_top_p": {"min_p": 0.4, "top_p": 0.95},
    "top_k_then_top_p": {"top_k": 40, "top_p": 0.8, "temperature": 1.3},
    "everything": {"top_k": 29, "top_p": 0.85, "min_p": 0.02, "temperature": 0.8},
}
PENALTIES = {
    "repetition": {"repetition_penalty": 1.3},
    "repetition_below_1": {"repetition_penalty": 0.8},
    "presence": {"presence_penalty": 0.7},
    "frequency": {"frequency_penalty": 0.35},
    "negative_frequency": {"frequency_penalty": -1.1},
    "openais": {"presence_penalty": 0.7, "frequency_penalty": -0.3, "subtracts_penalties": True},
    "bias": {"logit_bias": ((3, 2.5), (50, -20.0), (17, -0.25))},
    "ngrams": {"no_repeat_ngram_size": 2},
    "tokens once": {"no_repeat_ngram_size": 1},
    "longer_ngrams": {"no_repeat_ngram_size": 4},
    "everything": {"logit_bias": ((3, 4.0),), "no_repeat_ngram_size": 3, "repetition_penalty": 1.2},
    "all_three": {"repetition_penalty": 1.2, "presence_penalty": -0.4, "frequency_penalty": 0.6},
}


def reference_penalties(
    logits: NDArray[np.float32], params: SamplingParams, prompt: Sequence[int], generated: Sequence[int]
) -> NDArray[np.float64]:
    row = [float(value) for value in logits]
    if len(generated) < params.min_new_tokens:
        for token in params.stop_token_ids:
            row[token] = -math.inf
    for token, bias in params.logit_bias:
        row[token] += bias
    for token in set(prompt) | set(generated):
        row[token] *= params.repetition_penalty if row[token] < 0 else 1 / params.repetition_penalty
    for token in set(generated):
        rises = row[token] < 0 and not params.subtracts_penalties
        row[token] += params.presence_penalty if rises else -params.presence_penalty
    for token in set(generated):
        amount = params.frequency_penalty * list(generated).count(token)
        row[token] += amount if row[token] < 0 and not params.subtracts_penalties else -amount
    text, n = [*prompt, *generated], params.no_repeat_ngram_size
    seen = {tuple(text[at : at + n]) for at in range(len(text) - n + 1)}
    for token in range(len(row)):
        if (*text[len(text) - n + 1 :], token) in seen and params.excludes_ngrams:
            row[token] = -math.inf
    return np.array(row)


def reference_distribution(logits: NDArray[np.floating], params: SamplingParams) -> NDArray[np.float64]:
    logits = logits.astype(np.float64)
    order = sorted(range(logits.size), key=lambda token: (-logits[token], token))
    if params.top_k > 0:
        order = order[: params.top_k]
    weights = {token: math.exp((logits[token] - logits[order[0]]) / params.temperature) for token in order}
    total = math.fsum(weights.values())
    kept, mass = [], 0.0
    for token in order:
        if weights[token] >= params.min_p:
            kept.append(token)
            mass += weights[token]
            if params.top_p < 1 and mass > params.top_p * total:
                break
    probs = np.zeros(logits.size)
    probs[kept] = [weights[token] for token in kept]
    return probs / probs.sum()


def random_logits(vocab: int, spread: float, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).normal(size=vocab) * spread).astype(np.float32)


def assert_same_law(got: Distribution, expected: NDArray[np.float64], tolerance: float = 2e-6) -> None:
    found = dense(got, expected.size)
    assert np.array_equal(found > 0, expected > 0), "the supports differ"
    assert np.abs(found - expected).max() <= tolerance * expected.max()
    assert abs(got.probs.sum() - 1) < 1e-12


@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0], ids=["flat", "middling", "peaked"])
@pytest.mark.parametrize("vocab", [53, 1025, 4099])
@pytest.mark.parametrize("name", PARAMS)
def test_distribution_matches_reference(name: str, vocab: int, spread: float) -> None:
    params = SamplingParams(do_sample=True, **PARAMS[name])
    logits = random_logits(vocab, spread, seed=vocab)
    before = logits.copy()
    assert_same_law(sampling_distribution(logits, params), reference_distribution(logits, params))
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("vocab", [32_000, 32_749])
def test_top_p_matches_reference_on_a_real_vocabulary(vocab: int) -> None:
    for seed, spread in enumerate([0.3, 1.0, 2.0, 4.0, 8.0]):
        params = SamplingParams(do_sample=True, temperature=0.8, top_p=0.9)
        logits = random_logits(vocab, spread, seed)
        # At this size float32 weights tie, so that rounding may move the cut by a token: compare the mass.
        got = dense(sampling_distribution(logits, params), vocab)
        assert np.abs(got - reference_distribution(logits, params)).sum() < 1e-4


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_match_reference(name: str) -> None:
    params = SamplingParams(do_sample=True, **PENALTIES[name])
    rng = np.random.default_rng(7)
    prompt, generated = rng.integers(0, 101, 30).tolist(), rng.integers(0, 101, 50).tolist()
    generated += [*prompt[5:9], *generated[20:23], *prompt[5:8]]  # n-grams may come again
    processor = LogitsProcessor(params, prompt)
    processor.extend(generated)
    logits = random_logits(101, 3.0, seed=5)
    expected = reference_penalties(logits, params, prompt, generated)
    assert np.allclose(processor.process(logits), expected, rtol=1e-6, atol=1e-6)
    assert not np.allclose(logits, expected, rtol=1e-3)
    assert processor.argmax(logits) == int(expected.argmax())
    assert_same_law(processor.distribution(logits), reference_distribution(expected, params), 2e-5)


@pytest.mark.parametrize("name", PENALTIES)
def test_drafted_prefix_counts_like_generated_tokens_and_leaves_no_trace(name: str) -> None:
    params = SamplingParams(do_sample=True, **PENALTIES[name])
    rng = np.random.default_rng(11)
    prompt, generated = rng.integers(0, 257, 40).tolist(), rng.integers(0, 257, 50).tolist()
    # New tokens, tokens of the prompt, generated tokens and repetitions, beyond the initial room for slots.
    drafted = [*rng.integers(0, 257, 200).tolist(), prompt[0], generated[3], 256, 256, *generated[:5], 9]
    drafted += generated[1:4]
    speculative, plain = LogitsProcessor(params, prompt), LogitsProcessor(params, prompt)
    speculative.extend(generated)
    plain.extend(generated)
    logits = random_logits(257, 2.0)
    first = speculative.process(logits)
    for i in range(len(drafted) + 1):
        assert np.array_equal(speculative.process(logits, drafted[:i]), plain.process(logits))
        plain.extend(drafted[i : i + 1])
    assert np.array_equal(speculative.process(logits), first)
    plain.rollback(len(drafted))
    assert np.array_equal(plain.process(logits), first)


def test_stop_tokens_are_suppressed_until_min_new_tokens() -> None:
    params = SamplingParams(min_new_tokens=3, stop_token_ids=frozenset({2, 4}))
    processor = LogitsProcessor(params, [2, 4])
    logits = np.array([0.0, 1.0, 5.0, 3.0, 9.0], dtype=np.float32)
    assert processor.argmax(logits) == 3
    assert [processor.argmax(logits, [3] * i) for i in range(5)] == [3, 3, 3, 4, 4]
    processor.extend([3, 3])
    assert [processor.argmax(logits, [3] * i) for i in range(3)] == [3, 4, 4]
    processor.rollback(1)
    assert [processor.argmax(logits, [3] * i) for i in range(3)] == [3, 3, 4]


def test_failed_row_leaves_the_context_as_it_was() -> None:
    processor = LogitsProcessor(SamplingParams(repetition_penalty=2.0), [0])
    logits = np.array([1.0, 3.0, 2.0], dtype=np.float32)
    with pytest.raises(ValueError, match="got 3 logits and id 9"):
        processor.process(logits, [1, 9])
    with pytest.raises(ValueError, match="tokens must be ids >= 0, got -1"):
        processor.process(logits, [1, -1])
    assert processor.process(logits).tolist() == [0.5, 3.0, 2.0]


def test_processing_is_free_when_nothing_is_set() -> None:
    logits = random_logits(11, 1.0)
    assert LogitsProcessor(SamplingParams(do_sample=True, top_p=0.5), [1]).process(logits, [2]) is logits


WARPERS = {
    "temperature": ("TemperatureLogitsWarper", {"temperature": 0.6}, {"temperature": 0.6}),
    "top_k": ("TopKLogitsWarper", {"top_k": 17}, {"top_k": 17}),
    "top_p": ("TopPLogitsWarper", {"top_p": 0.8}, {"top_p": 0.8}),
    "min_p": ("MinPLogitsWarper", {"min_p": 0.07}, {"min_p": 0.07}),
    "repetition": ("RepetitionPenaltyLogitsProcessor", {"penalty": 1.4}, {"repetition_penalty": 1.4}),
    "min_new_tokens": (
        "MinNewTokensLengthLogitsProcessor",
        {"prompt_length_to_skip": 9, "min_new_tokens": 6, "eos_token_id": [3, 5]},
        {"min_new_tokens": 6, "stop_token_ids": frozenset({3, 5})},
    ),
}


@pytest.mark.parametrize("spread", [0.5, 4.0], ids=["flat", "peaked"])
@pytest.mark.parametrize("name", WARPERS)
def test_processors_match_transformers(name: str, spread: float) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    warper, theirs, ours = WARPERS[name]
    kwargs = theirs | ({"device": "cpu"} if "eos_token_id" in theirs else {})
    rng = np.random.default_rng(3)
    prompt, generated = rng.integers(0, 211, 9).tolist(), rng.integers(0, 211, 5).tolist()
    logits = random_logits(211, spread, seed=1)
    scores = getattr(transformers, warper)(**kwargs)(
        torch.tensor([prompt + generated]), torch.tensor(logits)[None].clone()
    )
    processor = LogitsProcessor(SamplingParams(do_sample=True, **ours), prompt)
    processor.extend(generated)
    expected = torch.softmax(scores[0].double(), -1).numpy()
    assert_same_law(processor.distribution(logits), expected)
    assert not np.allclose(expected, torch.softmax(torch.tensor(logits).double(), -1).numpy(), rtol=1e-3)


@pytest.mark.parametrize("vocab", [10, 4099])
def test_ties_go_to_the_lower_ids(vocab: int) -> None:
    logits = np.zeros(vocab, dtype=np.float32)
    assert greedy_token(logits) == 0
    top_k = sampling_distribution(logits, SamplingParams(do_sample=True, top_k=4))
    assert top_k.ids is not None
    assert top_k.ids.tolist() == [0, 1, 2, 3]
    top_p = sampling_distribution(logits, SamplingParams(do_sample=True, top_p=0.55))
    assert top_p.ids is not None
    assert top_p.ids.tolist() == list(range(math.floor(0.55 * vocab) + 1))


def test_ties_at_the_cut_keep_the_larger_logits() -> None:
    logits = np.array([1, 3, 1, 2, 1, 3, 1], dtype=np.float32)
    assert greedy_token(logits) == 1
    top_k = sampling_distribution(logits, SamplingParams(do_sample=True, top_k=5))
    assert top_k.ids is not None
    assert top_k.ids.tolist() == [0, 1, 2, 3, 5]
    both = sampling_distribution(logits, SamplingParams(do_sample=True, top_k=5, top_p=0.93))
    assert both.ids is not None
    assert both.ids.tolist() == [0, 1, 3, 5]


def test_top_p_keeps_the_token_that_reaches_the_mass_exactly() -> None:
    logits = np.zeros(4, dtype=np.float32)
    kept = sampling_distribution(logits, SamplingParams(do_sample=True, top_p=0.5))
    # As in OpenVINO GenAI the mass must exceed top_p: a sum of exactly 0.5 takes one token more.
    assert kept.ids is not None
    assert kept.ids.tolist() == [0, 1, 2]


def test_top_p_keeps_all_that_min_p_left_when_that_is_too_little() -> None:
    weights = np.array([1.0] + [0.022] * 9 + [0.01] * 990)
    params = SamplingParams(do_sample=True, min_p=0.02, top_p=0.5)
    kept = sampling_distribution(np.log(weights).astype(np.float32), params)
    assert kept.ids is not None
    assert kept.ids.tolist() == list(range(10))


@pytest.mark.parametrize("temperature", [1e-40, 1e-30, 1e-6])
@pytest.mark.parametrize("more", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.5}], ids=str)
def test_tiny_temperature_is_greedy(temperature: float, more: dict[str, float]) -> None:
    logits = random_logits(1027, 3.0)
    got = sampling_distribution(logits, SamplingParams(do_sample=True, temperature=temperature, **more))
    assert got.prob(greedy_token(logits)) == 1.0


@pytest.mark.parametrize(
    "more",
    [{}, {"top_k": 37}, {"top_k": 10**6}, {"top_k": 2**64 - 1}, {"top_p": 1.0}, {"min_p": 0.0}],
    ids=str,
)
def test_limits_that_exclude_nothing_change_nothing(more: dict[str, float]) -> None:
    logits = random_logits(37, 2.0)
    got = sampling_distribution(logits, SamplingParams(do_sample=True, **more))
    assert got.ids is None
    assert_same_law(got, reference_distribution(logits, SamplingParams(do_sample=True)))


@pytest.mark.parametrize("name", PARAMS)
def test_excluded_tokens_get_no_probability(name: str) -> None:
    logits = random_logits(300, 0.2)
    logits[::2] = -np.inf
    got = dense(sampling_distribution(logits, SamplingParams(do_sample=True, **PARAMS[name])), 300)
    assert not got[::2].any()
    assert got.sum() == pytest.approx(1, abs=1e-12)
    alone = np.full(300, -np.inf, dtype=np.float32)
    alone[299] = -1e30
    assert sampling_distribution(alone, SamplingParams(do_sample=True, **PARAMS[name])).prob(299) == 1.0


def test_extreme_finite_logits_stay_finite() -> None:
    logits = np.array([-3e38, 3e38, 0.0], dtype=np.float32)
    got = sampling_distribution(logits, SamplingParams(do_sample=True, temperature=0.5, top_p=0.9))
    assert dense(got, 3).tolist() == [0.0, 1.0, 0.0]


def test_without_do_sample_all_mass_is_on_the_argmax() -> None:
    got = sampling_distribution(random_logits(99, 1.0), SamplingParams(temperature=0.0, top_k=5))
    assert got.prob(greedy_token(random_logits(99, 1.0))) == 1.0
    assert got.probs.tolist() == [1.0]


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (np.zeros((1, 4), dtype=np.float32), r"float32, got float32 \[1, 4\]"),
        (np.zeros(4), r"float32, got float64 \[4\]"),
        (np.zeros(0, dtype=np.float32), r"got float32 \[0\]"),
        (np.array([0, np.nan, 1], dtype=np.float32), "maximum of nan over 3"),
        (np.array([0, np.inf, 1], dtype=np.float32), "maximum of inf over 3"),
        (np.full(3, -np.inf, dtype=np.float32), "maximum of -inf over 3"),
    ],
    ids=["2d", "float64", "empty", "nan", "inf", "all_excluded"],
)
@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sample"])
def test_unusable_logits_are_refused(logits: NDArray[np.float32], message: str, do_sample: bool) -> None:
    with pytest.raises(ValueError, match=message):
        sampling_distribution(logits, SamplingParams(do_sample=do_sample, top_k=2 if do_sample else 0))


EDGES = {
    "temperature": [-1.0, 0.0, 1e-50, 1e-30, 1.0, 100.0, math.nan],
    "top_p": [-0.1, 0.0, 0.1, 1.0, 1.1, math.nan],
    "min_p": [-0.1, 0.0, 0.5, 1.0, math.nan],
    "top_k": [0, 1, 2**64 - 1],
    "repetition_penalty": [-1.0, 0.0, 1e-50, 0.5, 5.0, math.nan],
    "presence_penalty": [-2.1, -2.0, 0.0, 2.0, 2.1, math.nan],
    "frequency_penalty": [-2.1, -2.0, 0.0, 2.0, 2.1, math.nan],
}


@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sample"])
@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in EDGES.items() for v in vs])
def test_ranges_are_those_of_generation_config(name: str, value: float, do_sample: bool) -> None:
    config = openvino_genai.GenerationConfig(do_sample=do_sample, max_new_tokens=4)
    setattr(config, name, value)
    try:
        config.validate()
    except RuntimeError:
        with pytest.raises(ValueError, match=rf"^{name} must be .*; ") as error:
            SamplingParams(do_sample=do_sample, **{name: value})
        assert "\n" not in str(error.value)
    else:
        SamplingParams(do_sample=do_sample, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", -1),
        ("min_new_tokens", -1),
        ("no_repeat_ngram_size", -1),
        ("rng_seed", -1),
        ("rng_seed", 2**64),
        ("stop_token_ids", {-1, 4}),
    ],
)
def test_values_that_generation_config_cannot_hold_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be .*; "):
        SamplingParams(**{"do_sample": True, name: value})  # type: ignore[arg-type]


def test_defaults_are_those_of_generation_config() -> None:
    taken = SamplingParams.from_generation_config(openvino_genai.GenerationConfig())
    # OpenVINO GenAI writes "all" as the largest size_t, which keeps all tokens here too.
    assert taken == SamplingParams(top_k=2**64 - 1)


def test_generation_config_is_taken_over_in_full() -> None:
    config = openvino_genai.GenerationConfig(
        do_sample=True, temperature=0.5, top_k=7, top_p=0.75, min_p=0.25, repetition_penalty=1.5
    )
    config.presence_penalty, config.frequency_penalty, config.rng_seed = 0.5, -0.25, 99
    config.min_new_tokens, config.stop_token_ids, config.no_repeat_ngram_size = 3, {1, 2}, 4
    config.set_eos_token_id(5)
    expected = SamplingParams(
        *(True, 0.5, 7, 0.75, 0.25, 1.5, 0.5, -0.25, 3),
        stop_token_ids=frozenset({1, 2, 5, 8}),
        rng_seed=99,
        no_repeat_ngram_size=4,
    )
    assert SamplingParams.from_generation_config(config, eos_token_ids=[5, 8]) == expected


def test_processor_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match=r"^count must be in \[0, 0\], got 1"):
        LogitsProcessor(SamplingParams(), [1]).rollback(1)
    with pytest.raises(ValueError, match=r"^prompt must hold token ids >= 0, got -3"):
        LogitsProcessor(SamplingParams(presence_penalty=1.0), [4, -3])
    processor = LogitsProcessor(SamplingParams(min_new_tokens=1, stop_token_ids=frozenset({9})), [1])
    with pytest.raises(ValueError, match="got 5 logits and id 9"):
        processor.argmax(np.zeros(5, dtype=np.float32))

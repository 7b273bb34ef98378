"""Sampling parameters of OpenVINO GenAI, and the distribution that they give for a row of logits.

The processors and their order are those of OpenVINO GenAI, so that a configuration gives the same
distribution in both: stop-token suppression, repetition, presence and frequency penalty
(`logits_processors`), then top_k, temperature, min_p and top_p (`sampling_distribution`). Among equal values
the lower token id comes first, so that a distribution depends on the logits alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from openvino_genai import GenerationConfig  # type: ignore[import-untyped,unused-ignore]

MAX_SEED = 2**64 - 1
# np.cumsum is one chain of dependent additions; sums of blocks use SIMD.
_PREFIX_BLOCK = 256
# Below this size a sort is as fast as the partitions that avoid it.
_SORTED_POOL = 1024
NO_NGRAM_SIZE = 2**64 - 1  # OpenVINO GenAI's number for no limit
_OWN = ("subtracts_penalties", "logit_bias")  # parameters that OpenVINO GenAI does not have


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from logits; names and ranges are those of `openvino_genai.GenerationConfig`.

    As in OpenVINO GenAI, `temperature`, `top_k`, `top_p` and `min_p` have no effect (and are not checked)
    unless `do_sample` is set, while the penalties and `min_new_tokens` also shape greedy decoding.

    Attributes:
        do_sample: draw from the distribution; False takes the most probable token.
        temperature: logits are divided by it, > 0.
        top_k: keep the k largest logits; 0, or a value not below the vocabulary size, keeps all.
        top_p: keep the smallest set of most probable tokens whose mass exceeds it, in (0, 1]; 1 keeps all.
        min_p: keep tokens with at least this share of the largest probability, in [0, 1); 0 keeps all.
        repetition_penalty: > 0. Divides the non-negative and multiplies the negative logits of every token of
            prompt and output; 1 is off.
        presence_penalty: in [-2, 2]. Taken from the *magnitude* of the logits of generated tokens: subtracted
            from non-negative, added to negative logits, as OpenVINO GenAI does. (A positive value therefore
            raises a negative logit.) 0 is off.
        frequency_penalty: in [-2, 2]. As `presence_penalty`, times the number of occurrences in the output.
        subtracts_penalties: presence and frequency penalty are subtracted from a logit whatever its sign, as
            OpenAI does.
        no_repeat_ngram_size: no n-gram of this size, at least 1, comes twice in prompt and output; 0 and
            `NO_NGRAM_SIZE` are off. In OpenVINO GenAI it counts in beam search only.
        logit_bias: token ids, each once, with what is added to their logits.
        min_new_tokens: no token of `stop_token_ids` is chosen before this many tokens were generated.
        stop_token_ids: end-of-sequence and stop tokens.
        rng_seed: seed of the random streams, 0 to 2**64 - 1.

    Raises:
        ValueError: a value is outside its range.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_new_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    rng_seed: int = 0
    subtracts_penalties: bool = False
    no_repeat_ngram_size: int = NO_NGRAM_SIZE
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        positive, keeps, off = "a positive finite number", "keeps every token", "switches it off"
        sampled = () if not self.do_sample else (
            ("temperature", _is_positive_float32(self.temperature), positive,
             "for greedy decoding set do_sample=False"),
            ("top_k", self.top_k >= 0, ">= 0", f"0 {keeps}"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]", f"1 {keeps}"),
            ("min_p", 0 <= self.min_p < 1, "in [0, 1)", f"0 {keeps}"),
        )  # fmt: skip
        always = (
            ("repetition_penalty", _is_positive_float32(self.repetition_penalty), positive, f"1 {off}"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "in [-2, 2]", f"0 {off}"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "in [-2, 2]", f"0 {off}"),
            ("no_repeat_ngram_size", self.no_repeat_ngram_size >= 0, ">= 0", f"0 {off}"),
            ("min_new_tokens", self.min_new_tokens >= 0, ">= 0", "0 lets any token end the output"),
            ("stop_token_ids", min(self.stop_token_ids, default=0) >= 0, ">= 0",
             "pass the tokenizer's own ids"),
            ("rng_seed", 0 <= self.rng_seed <= MAX_SEED, "in [0, 2**64 - 1]", "choose a seed in that range"),
        )  # fmt: skip
        for name, good, expected, remedy in (*sampled, *always):
            _require(good, f"{name} must be {expected}, got {getattr(self, name)}; {remedy}")

    @property
    def penalises(self) -> bool:
        """Whether the distribution depends on which tokens the context holds."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def excludes_ngrams(self) -> bool:
        """Whether n-grams of some size come only once."""
        return 0 < self.no_repeat_ngram_size < NO_NGRAM_SIZE

    @classmethod
    def from_generation_config(
        cls, config: GenerationConfig, eos_token_ids: Iterable[int] = ()
    ) -> SamplingParams:
        """Take the sampling part of an OpenVINO GenAI configuration.

        Args:
            config: the configuration; its values are float32, so 0.9 arrives as 0.8999999762.
            eos_token_ids: end-of-sequence ids of tokenizer and model, added to those of the configuration.

        Raises:
            ValueError: a value is outside its range.
        """
        named = set() if config.eos_token_id == -1 else {config.eos_token_id}
        values = {entry.name: getattr(config, entry.name) for entry in fields(cls) if entry.name not in _OWN}
        values["stop_token_ids"] = frozenset(named | set(config.stop_token_ids) | set(eos_token_ids))
        return cls(**values)


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """A probability distribution over token ids; only the support is stored if it is smaller.

    Attributes:
        probs: `[support]` float64, non-negative, sums to 1 (to float64 rounding).
        ids: `[support]` int64, strictly ascending token ids; None when `probs` covers ids 0, 1, 2 and so on.
    """

    probs: NDArray[np.float64]
    ids: NDArray[np.int64] | None = None

    @classmethod
    def from_probs(cls, probs: NDArray[np.floating]) -> Distribution:
        """Wrap dense probabilities `[vocab]` of any float type, normalised again in float64.

        Raises:
            ValueError: an entry is negative or not finite, or the sum is off 1 by more than 1e-3.
        """
        dense = np.asarray(probs, dtype=np.float64)
        total = float(dense.sum())
        _require(
            dense.ndim == 1 and dense.size > 0 and float(dense.min()) >= 0 and abs(total - 1) <= 1e-3,
            f"probs must be one row of non-negative numbers that sum to 1, got shape {list(dense.shape)} "
            f"with sum {total}; pass the softmax of the logits",
        )
        return cls(dense / total)

    @classmethod
    def one_hot(cls, token: int) -> Distribution:
        """All mass on one token."""
        return cls(np.ones(1), np.array([token], dtype=np.int64))

    def prob(self, token: int) -> float:
        """Probability of one token id; 0 outside the support."""
        if self.ids is None:
            return float(self.probs[token]) if 0 <= token < self.probs.size else 0.0
        at = int(self.ids.searchsorted(token))
        return float(self.probs[at]) if at < self.ids.size and self.ids[at] == token else 0.0

    def dense(self, size: int) -> NDArray[np.float64]:
        """Probabilities of token ids 0 to `size` - 1, which the support lies in."""
        found = np.zeros(size)
        found[slice(self.probs.size) if self.ids is None else self.ids] = self.probs
        return found

    def within(self, mask: NDArray[np.bool_]) -> Distribution:
        """The same for the tokens of a mask `[vocab]`, of which one has a probability at least."""
        allowed = mask[: self.probs.size] if self.ids is None else mask[self.ids]
        if allowed.all():
            return self
        ids = np.flatnonzero(allowed) if self.ids is None else self.ids[allowed]
        probs = self.probs[: allowed.size][allowed]
        return Distribution(probs / float(probs.sum()), ids)

    def draw(self, uniform: float) -> int:
        """The token where the running sum of the probabilities passes `uniform`, a number in [0, 1)."""
        sums = self.probs.cumsum()
        at = int(sums.searchsorted(uniform * sums[-1], side="right"))
        return at if self.ids is None else int(self.ids[at])


def sampling_distribution(logits: NDArray[np.float32], params: SamplingParams) -> Distribution:
    """Apply top_k, temperature, min_p and top_p, in this order, to one row of logits.

    top_p uses the probabilities before min_p removes tokens, as OpenVINO GenAI does. Without `do_sample` the
    result is one-hot at the most probable token, so that the rules for sampling give greedy decoding.

    Args:
        logits: `[vocab]` float32, penalties already applied; -inf excludes a token. Not modified.

    Raises:
        ValueError: the logits are not one float32 row, hold NaN or +inf, or exclude every token.
    """
    if not params.do_sample:
        return Distribution.one_hot(greedy_token(logits))
    peak = checked_max(logits, _check_row(logits).max())
    ids: NDArray[np.int64] | None = None
    if 0 < params.top_k < logits.size:
        split = logits.size - params.top_k
        ids = _largest(logits, np.partition(logits, split)[split], params.top_k)
        logits = logits[ids]
    weights = _scaled_exp(logits, peak, np.float32(params.temperature))
    total = float(weights.sum(dtype=np.float64))
    if params.min_p > 0:
        # The largest weight is exp(0) = 1, so min_p * p_max is min_p itself.
        kept = np.flatnonzero(weights >= np.float32(params.min_p))
        weights, ids = weights[kept], kept if ids is None else ids[kept]
    if params.top_p < 1:
        kept = _nucleus(weights, params.top_p * total)
        weights, ids = weights[kept], kept if ids is None else ids[kept]
    probs = weights.astype(np.float64)
    probs /= float(probs.sum())
    return Distribution(probs, ids)


def greedy_token(logits: NDArray[np.float32]) -> int:
    """Id of the largest logit, the lowest among equals. `logits` is `[vocab]` float32.

    Raises:
        ValueError: the logits are not one float32 row, hold NaN or +inf, or exclude every token.
    """
    token = int(_check_row(logits).argmax())
    checked_max(logits, logits[token])
    return token


def _scaled_exp(
    logits: NDArray[np.float32], peak: np.float32, temperature: np.float32
) -> NDArray[np.float32]:
    """exp((logits - peak) / temperature), float32; at most 1, and exactly 1 at the peak."""
    with np.errstate(over="ignore", under="ignore"):
        scaled = logits - peak
        if temperature != 1:
            # Divide: a reciprocal overflows at tiny temperatures, and 0 * inf is NaN.
            scaled /= temperature
        np.exp(scaled, out=scaled)
    return scaled


def _nucleus(weights: NDArray[np.float32], bound: float) -> NDArray[np.int64]:
    """Ascending positions of the fewest largest weights that sum to more than `bound`; of all if none do."""
    spare = float(weights.sum(dtype=np.float64)) - bound
    if spare <= 0:
        return np.arange(weights.size)
    # Weights below spare / (2 * size) hold at most half the mass that may be dropped: drop them if that
    # helps.
    heavy = weights >= np.float32(0.5 * spare / weights.size)
    pool = weights if 2 * np.count_nonzero(heavy) > heavy.size else weights[np.flatnonzero(heavy)]
    count = 0
    # Halve the pool by value, keeping the half where the sum passes the bound: cheaper than a sort.
    while pool.size > _SORTED_POOL:
        half = pool.size // 2
        pool = np.partition(pool, half)
        mass = float(pool[half:].sum(dtype=np.float64))
        if mass > bound:
            pool = pool[half:]
        else:
            bound -= mass
            count += pool.size - half
            pool = pool[:half]
    descending = np.sort(pool)[::-1].astype(np.float64)
    last = _first_prefix_above(descending, bound)
    return _largest(weights, np.float32(descending[last]), count + last + 1)


def _largest(values: NDArray[np.float32], threshold: np.float32, count: int) -> NDArray[np.int64]:
    """Ascending positions of the `count` largest values, where `threshold` is the smallest of them."""
    kept = np.flatnonzero(values >= threshold)
    surplus = kept.size - count
    if surplus > 0:
        # Of the values equal to the threshold, take those with the lowest ids.
        dropped = np.flatnonzero(values == threshold)[-surplus:]
        kept = np.delete(kept, np.searchsorted(kept, dropped))
    return kept


def _first_prefix_above(weights: NDArray[np.float64], bound: float) -> int:
    """First i with `weights[0] + .. + weights[i] > bound` >= 0; without one, the last positive weight."""
    start, before = 0, 0.0
    if weights.size > _PREFIX_BLOCK:
        ends = np.add.reduceat(weights, np.arange(0, weights.size, _PREFIX_BLOCK)).cumsum()
        block = min(int(ends.searchsorted(bound, side="right")), ends.size - 1)
        start, before = block * _PREFIX_BLOCK, float(ends[block - 1]) if block else 0.0
    inside = weights[start : start + _PREFIX_BLOCK]
    at = int((inside.cumsum() + before).searchsorted(bound, side="right"))
    if at < inside.size:
        return start + at
    # The bound is past the end, or the sum of the block and its running sum differ by rounding.
    positive = np.flatnonzero(weights[: start + inside.size])
    return int(positive[-1]) if positive.size else 0


def _check_row(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    if logits.ndim != 1 or logits.size == 0 or logits.dtype != np.float32:
        raise ValueError(
            f"logits must be one row [vocab] of float32, got {logits.dtype} {list(logits.shape)}; "
            "pass one row of the model's output, cast to float32"
        )
    return logits


class NotFiniteError(ValueError):
    """Logits that no token can be chosen by."""


def checked_max(logits: NDArray[np.float32], largest: np.float32) -> np.float32:
    """The largest of the logits `[vocab]`, as given.

    Raises:
        NotFiniteError: it is NaN or infinite.
    """
    # max and argmax propagate NaN, so checking the largest value is enough.
    if not math.isfinite(largest):
        raise NotFiniteError(
            f"logits must be finite or -inf with one finite value at least, got a maximum of {largest} over "
            f"{logits.size} values; check the model's precision and the excluded tokens"
        )
    return largest


def _is_positive_float32(value: float) -> bool:
    # Logits are float32: a temperature that underflows there would divide by zero.
    with np.errstate(over="ignore", under="ignore"):
        return bool(0 < np.float32(value) < math.inf)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)

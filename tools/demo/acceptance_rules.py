"""Compare three rules of accepting sampled drafts on the demo pair, as tokens per pass of the target.

python tools/demo/acceptance_rules.py

* coupled: drafter and target draw with the random numbers of the position (`ovspec/sampling/coupling.py`)
* token-wise: each draft token stands with probability min(1, p / q) (arXiv 2211.17192)
* block: the chain is judged as a whole (block verification, arXiv 2403.10444)

The target writes texts by sampling; each of their positions begins a draft, which the draft model draws.
Given the draft, the expected number of accepted tokens is exact, so that only the drafts are random.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence

import numpy as np
import openvino_genai
from numpy.typing import NDArray

from ovspec.cache.cache import CachedSequence
from ovspec.generation.inputs import encode
from ovspec.operations.attention_config import AttentionConfig
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec.sampling.block_verification import block_stops
from ovspec_models import demo_pair_path

Probabilities = NDArray[np.float64]
LENGTHS = (4, 8)
PROMPTS = (
    "Once upon a time, there was a little",
    "One day, Tom and his friend went to",
    "It was a dark night, and the old man",
    "The house in which they lived was",
    "Question: Anna has 12 apples and gives",
    "A train travels 60 miles in one hour.",
    "She looked at him and said that she",
    "My dear sir, I have the honour to",
)


def coupled(p: Probabilities, q: Probabilities, tokens: Sequence[int]) -> float:
    """Expected accepted tokens with coupled draws.

    Both races end with x with probability m(x) = 1 / sum_y max(p(y) / p(x), q(y) / q(x)), the smaller of
    the two where one of them is 0.

    Args:
        p: of the target, float64 `[tokens, vocab]`, after the tokens before each.
        q: of the draft model, likewise.
        tokens: of the draft, drawn from `q`.
    """
    agrees = []
    for target, draft, x in zip(p, q, tokens, strict=True):
        both = 1 / np.maximum(target / target[x], draft / draft[x]).sum() if target[x] > 0 else 0.0
        agrees.append(both / draft[x])
    return float(np.cumprod(agrees).sum())


def token_wise(p: Probabilities, q: Probabilities, tokens: Sequence[int]) -> float:
    """Expected accepted tokens with rejection sampling; arguments as of `coupled`."""
    places = np.arange(len(tokens)), np.asarray(tokens)
    return float(np.cumprod(np.minimum(1, p[places] / q[places])).sum())


def block(p: Probabilities, q: Probabilities, tokens: Sequence[int]) -> float:
    """Expected accepted tokens with block verification; arguments as of `coupled`."""
    _, stands = block_stops(p, q, tokens)
    fewer = np.cumprod(1 - np.array(stands[:0:-1]))[::-1]  # fewer than i tokens, i = 1 .. all
    return float((1 - fewer).sum())


RULES = {"coupled": coupled, "token-wise": token_wise, "block": block}


class Pair:
    """The demo pair, reading the same texts, whose token ids grow."""

    def __init__(self, texts: list[list[int]], seed: int, temperature: float) -> None:
        folder, graph = demo_pair_path(), AttentionConfig("stock")
        self.texts, self._random, self._temperature = texts, np.random.default_rng(seed), temperature
        self._runners = [ModelRunner(path, "CPU", graph) for path in (folder, folder / "draft")]
        self._caches = [[CachedSequence() for _ in texts] for _ in self._runners]

    def drafts(self, length: int) -> tuple[Probabilities, Probabilities, NDArray[np.int64]]:
        """A draft behind every text, which grows by a token of the target's.

        Returns:
            p and q float64 `[texts, length, vocab]`, and tokens i64 `[texts, length]`.
        """
        drafted, laws = np.zeros((len(self.texts), 0), np.int64), []
        for _ in range(length):
            laws.append(self._read(1, drafted, 1)[:, 0])
            drafted = np.concatenate([drafted, self._draw(laws[-1])[:, None]], 1)
        p = self._read(0, drafted, length + 1)[:, :-1]
        for caches in self._caches:
            for cache, text in zip(caches, self.texts, strict=True):
                cache.rollback(len(text))
        for text, token in zip(self.texts, self._draw(p[:, 0]).tolist(), strict=True):
            text.append(token)
        return p, np.stack(laws, 1), drafted

    def _read(self, model: int, drafted: NDArray[np.int64], sampled: int) -> Probabilities:
        """The laws after the last so many tokens of texts and drafts, `[texts, sampled, vocab]`."""
        caches = self._caches[model]
        rows = [
            Rows(cache, np.array([*text, *draft][cache.length :], np.int64), sampled=sampled)
            for cache, text, draft in zip(caches, self.texts, drafted.tolist(), strict=True)
        ]
        logits = self._runners[model].forward(rows).logits.astype(np.float64) / self._temperature
        law = np.exp(logits - logits.max(-1, keepdims=True))
        law /= law.sum(-1, keepdims=True)
        return law.reshape(len(caches), sampled, -1)

    def _draw(self, laws: Probabilities) -> NDArray[np.int64]:
        """A token of every law `[texts, vocab]`."""
        sums = laws.cumsum(-1)
        return (sums < self._random.random((len(laws), 1)) * sums[:, -1:]).sum(-1)


def main() -> None:
    """Print a row for every rule and length."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=3000, help="that the target writes")
    parser.add_argument("--tokens", type=int, default=100, help="of a text")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tokenizer = openvino_genai.Tokenizer(demo_pair_path())
    found: dict[tuple[str, int], list[list[float]]] = {(rule, k): [] for rule in RULES for k in LENGTHS}
    at_once = 40
    for begin in range(0, given.texts, at_once):
        prompts = [PROMPTS[n % len(PROMPTS)] for n in range(begin, min(begin + at_once, given.texts))]
        pair = Pair([encode(tokenizer, prompt) for prompt in prompts], given.seed + begin, given.temperature)
        for of_text in found.values():
            of_text += [[] for _ in prompts]
        for _ in range(given.tokens):
            p, q, drafted = pair.drafts(max(LENGTHS))
            for (rule, k), of_text in found.items():
                for n in range(len(prompts)):
                    of_text[begin + n].append(1 + RULES[rule](p[n, :k], q[n, :k], drafted[n, :k].tolist()))
    print(f"{given.texts} texts of {given.tokens} tokens, temperature {given.temperature}")
    print("Standard errors over texts")
    print("| chain | rule | tokens per pass | against coupled |")
    print("|---|---|---|---|")
    for k in LENGTHS:
        base = np.array([np.mean(starts) for starts in found["coupled", k]])
        for rule in RULES:
            means = np.array([np.mean(starts) for starts in found[rule, k]])
            ratio = means.mean() / base.mean()
            errors = [values.std(ddof=1) / len(values) ** 0.5 for values in (means, means - base * ratio)]
            print(
                f"| {k} | {rule} | {means.mean():.3f} +- {errors[0]:.3f} | {ratio:.4f} +- "
                f"{errors[1] / base.mean():.4f} |"
            )


if __name__ == "__main__":
    main()

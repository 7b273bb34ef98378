"""Drafters of one's own: what is taken, what is refused, and which drafter goes with which pipeline."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prompts import PROMPTS, STORY
from settings import F32

import ovspec
from ovspec.drafters import NAMES, Auto, LayerSkip, PromptLookup, SparseSelf, Suffix
from ovspec_models import demo_pair_path

VOCAB = 4096
EVEN = np.full(VOCAB, 1 / VOCAB)


class Answering:
    """A drafter of one's own whose answer can be set."""

    name = "mine"

    def __init__(self) -> None:
        self.answer: Any = ([], None, None)
        self.contexts: list[list[int]] = []
        self.asked: list[int] = []

    def propose(self, context: list[int], k: int) -> Any:
        self.contexts.append(context)
        self.asked.append(k)
        return self.answer(context, k) if callable(self.answer) else self.answer


@pytest.fixture(scope="module")
def mine(demo_ir: Path) -> tuple[ovspec.LLMPipeline, Answering]:
    drafter = Answering()
    return ovspec.LLMPipeline(demo_ir, "CPU", drafter=drafter, **F32), drafter


def one_hot(token: int) -> np.ndarray[Any, Any]:
    row = np.zeros(VOCAB)
    row[token] = 1.0
    return row


GOOD = {
    "nothing": lambda context, k: ([], None, None),
    "chosen": lambda context, k: ([5] * k, None, None),
    "array": lambda context, k: (np.full(k, 5), None, None),
    "drawn": lambda context, k: ([5] * k, [EVEN] * k, None),
    "drawn in part": lambda context, k: ([5] * k, [EVEN.astype(np.float32), *[None] * (k - 1)], None),
    "a chain by its parents": lambda context, k: ([5] * k, None, list(range(-1, k - 1))),
    "a tree": lambda context, k: ([5, 6, 7][:k], None, [-1, -1, 0][:k]),
    "fewer": lambda context, k: ([5], None, None),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_a_drafter_may_return(mine: tuple[ovspec.LLMPipeline, Answering], name: str) -> None:
    pipeline, drafter = mine
    plain = pipeline.generate(PROMPTS[0], max_new_tokens=12, num_assistant_tokens=0)
    drafter.answer = GOOD[name]
    assert pipeline.generate(PROMPTS[0], max_new_tokens=12, num_assistant_tokens=3) == plain
    sampled = [
        pipeline.generate(
            PROMPTS[0], max_new_tokens=12, num_assistant_tokens=3, do_sample=True, rng_seed=seed, top_p=0.9
        )
        for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1] != sampled[2]


BAD: dict[str, tuple[Any, str]] = {
    "outside": (([4096], None, None), "returned token 4096, which is none of the target's 0 to 4095"),
    "negative": (([-1], None, None), "returned token -1"),
    "too many": (([1, 2, 3, 4], None, None), "returned 4 tokens, asked for 3"),
    "sum": (([1], [EVEN / 2], None), r"must be .* that sum to 1, got .* sum 0.5"),
    "negative mass": (([1], [one_hot(1) * 2 - one_hot(2)], None), "non-negative"),
    "nan": (([1], [EVEN * np.nan], None), "non-negative"),
    "count": (([1, 2], [EVEN], None), "1 rows of probabilities for 2 tokens"),
    "no rows": (([1, 2], [], None), "0 rows of probabilities for 2 tokens"),
    "short row": (([1], [EVEN[:-1]], None), r"shape \[4095\]: expected rows of 4096"),
    "not drawn": (([1], [one_hot(2)], None), "gives token 1 probability 0"),
    "parent after": (([1, 2], None, [1, -1]), "returned parent 1 for token 0"),
    "parents": (([1, 2], None, [-1]), "1 parents for 2 tokens"),
    "fractions": (([1.5], None, None), r"tokens=\[1.5\]: expected whole numbers"),
    "lists in lists": (([[1, 2], 0], None, None), r"tokens=\[\[1, 2\], 0\]: expected whole numbers"),
    "no probabilities": (([1], [[[0.5], 0.5]], None), "returned probabilities that are no row of numbers"),
    "no tuple": ([1, 2], "returned list: return a tuple"),
    "nothing": (None, "returned NoneType: return a tuple"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_proposals_name_the_drafter(mine: tuple[ovspec.LLMPipeline, Answering], name: str) -> None:
    pipeline, drafter = mine
    drafter.answer, message = BAD[name]
    with pytest.raises(ValueError, match=f"^drafter 'mine'.*{message}") as caught:
        pipeline.generate(PROMPTS[0], max_new_tokens=12, num_assistant_tokens=3)
    assert "\n" not in str(caught.value)
    drafter.answer = ([], None, None)
    assert pipeline.generate(PROMPTS[0], max_new_tokens=3, num_assistant_tokens=3)


def test_trees_need_rows_that_move_and_the_exact_rule(
    mine: tuple[ovspec.LLMPipeline, Answering], demo_ir: Path
) -> None:
    pipeline, drafter = mine
    drafter.answer = lambda context, k: ([1, 2][:k], None, [-1, -1][:k])
    with pytest.raises(ValueError, match=r"acceptance_threshold=0.5 has no rule for trees"):
        pipeline.generate("Once", max_new_tokens=8, num_assistant_tokens=3, acceptance_threshold=0.5)
    with pytest.raises(ValueError, match=r"acceptance_rule='block' has no rule for trees"):
        pipeline.generate("Once", max_new_tokens=8, num_assistant_tokens=3, **BLOCK)
    stock = ovspec.LLMPipeline(demo_ir, "CPU", drafter=drafter, attention="stock", **F32)
    texts = [one.generate("Once", max_new_tokens=8, num_assistant_tokens=3) for one in (stock, pipeline)]
    assert texts[0] == texts[1]
    by_channel = {"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_CHANNEL"}
    stays = ovspec.LLMPipeline(demo_ir, "CPU", drafter=drafter, **by_channel)
    with pytest.raises(
        ValueError, match=r"drafter 'mine' returned a tree, which can't be verified: key_cache"
    ):
        stays.generate("Once", max_new_tokens=8, num_assistant_tokens=3)


def test_an_error_of_the_drafter_is_the_callers(mine: tuple[ovspec.LLMPipeline, Answering]) -> None:
    pipeline, drafter = mine
    want = pipeline.generate(PROMPTS[0], max_new_tokens=8, num_assistant_tokens=0)
    drafter.answer = lambda context, k: {}[k]
    with pytest.raises(KeyError):
        pipeline.generate(PROMPTS[0], max_new_tokens=8, num_assistant_tokens=3)
    drafter.answer = ([], None, None)
    assert pipeline.generate(PROMPTS[0], max_new_tokens=8, num_assistant_tokens=3) == want


def test_a_drafter_sees_the_context_and_cannot_change_it(mine: tuple[ovspec.LLMPipeline, Answering]) -> None:
    pipeline, drafter = mine
    drafter.contexts, drafter.asked = [], []

    def vandal(context: list[int], k: int) -> Any:
        context[:] = [0] * len(context)
        return [], None, None

    prompt = np.array(pipeline.get_tokenizer().encode(PROMPTS[0]).input_ids.data).reshape(-1).tolist()
    drafter.answer = ([], None, None)
    tokens = pipeline.generate(
        pipeline.get_tokenizer().encode(PROMPTS[0]), max_new_tokens=6, num_assistant_tokens=3
    ).tokens[0]
    assert drafter.contexts == [prompt + tokens[:end] for end in range(1, 5)]
    assert drafter.asked == [3, 3, 2, 1]
    drafter.answer = vandal
    again = pipeline.generate(
        pipeline.get_tokenizer().encode(PROMPTS[0]), max_new_tokens=6, num_assistant_tokens=3
    )
    assert again.tokens[0] == tokens


def test_a_lossy_threshold_says_so(demo_ir: Path) -> None:
    pipeline = ovspec.LLMPipeline(demo_ir, "CPU", drafter="suffix", **F32)
    exact = pipeline.generate([STORY], max_new_tokens=40, num_assistant_tokens=6)
    lossy = pipeline.generate([STORY], max_new_tokens=40, num_assistant_tokens=6, acceptance_threshold=0.05)
    assert exact.perf_metrics.why_lossy == "" and exact.perf_metrics.summary()["why_lossy"] is None
    assert lossy.perf_metrics.why_lossy == "acceptance_threshold=0.05 accepts tokens that the model would not"
    assert lossy.texts != exact.texts
    rates = [result.perf_metrics.get_acceptance_rate() for result in (exact, lossy)]
    assert rates[1] > rates[0]
    both = exact.perf_metrics + lossy.perf_metrics
    assert both.why_lossy == lossy.perf_metrics.why_lossy


CHOICES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"drafter": "magic"}, f"drafter='magic': expected one of {', '.join(NAMES)}"),
    "no drafter": ({"drafter": 5}, "drafter=5: expected one of"),
    "no model": ({"drafter": "assistant"}, "drafter='assistant' needs a draft model"),
    "idle model": (
        {"drafter": "suffix", "draft_model": True},
        "drafter='suffix' has no use for the draft model",
    ),
    "idle model of one's own": (
        {"drafter": Answering(), "draft_model": True},
        "drafter='mine' has no use for the draft model",
    ),
    "differing anchors": (
        {
            "drafter": SparseSelf(ovspec.SparseVerify(anchor_layers=(0, 3))),
            "verify": ovspec.SparseVerify(anchor_layers=(0, 2)),
        },
        r"anchor_layers=\(0, 2\) of verify and \(0, 3\) of the drafter differ",
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_wrong_combinations_are_refused(demo_ir: Path, name: str) -> None:
    arguments, message = CHOICES[name]
    if arguments.get("draft_model"):
        arguments = {**arguments, "draft_model": ovspec.draft_model(demo_ir / "draft")}
    with pytest.raises(ValueError, match=message) as caught:
        ovspec.LLMPipeline(demo_ir, "CPU", **arguments)
    assert "\n" not in str(caught.value)


BLOCK = {"acceptance_rule": "block", "do_sample": True}
CALLS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "ngram": (
        {"drafter": "suffix"},
        {"max_ngram_size": 3},
        "max_ngram_size=3: this pipeline looks no n-grams",
    ),
    "threshold of zero": ({"drafter": "suffix"}, {"acceptance_threshold": 0.0}, "acceptance_threshold=0.0"),
    "threshold above": ({"drafter": "suffix"}, {"acceptance_threshold": 1.5}, "acceptance_threshold=1.5"),
    "threshold of text": ({"drafter": "suffix"}, {"acceptance_threshold": "x"}, "acceptance_threshold='x'"),
    "threshold without drafts": (
        {"drafter": "none"},
        {"acceptance_threshold": 0.5},
        "this pipeline does not draft",
    ),
    "threshold and commit": (
        {"drafter": "suffix", "verify": "commit"},
        {"acceptance_threshold": 0.5},
        "acceptance_threshold=0.5 contradicts verify='commit'",
    ),
    "unknown rule": (
        {"drafter": "suffix"},
        {"acceptance_rule": "best"},
        "'best': expected one of 'coupled', 'b",
    ),
    "rule without drafts": (
        {"drafter": "none"},
        BLOCK,
        "acceptance_rule='block': this pipeline does not draft",
    ),
    "rule for sampling": (
        {"drafter": "suffix"},
        {**BLOCK, "do_sample": False},
        "acceptance_rule='block' is a rule for sampling: set do_sample",
    ),
    "rule and commit": (
        {"drafter": "suffix", "verify": "commit"},
        BLOCK,
        "acceptance_rule='block' contradicts verify='commit'",
    ),
    "rule and trees": (
        {"drafter": "suffix"},
        {**BLOCK, "tree_depth": 3, "branching_factor": 2, "num_assistant_tokens": 6},
        "acceptance_rule='block' has no rule for trees: leave it out, or tree_depth=3",
    ),
    "rule and threshold": (
        {"drafter": "suffix"},
        {**BLOCK, "acceptance_threshold": 0.5},
        "acceptance_rule='block' contradicts acceptance_threshold=0.5",
    ),
}


@functools.lru_cache(4)
def pipeline_of(**arguments: Any) -> ovspec.LLMPipeline:
    return ovspec.LLMPipeline(demo_pair_path(), "CPU", **arguments, **F32)


@pytest.mark.parametrize("name", CALLS)
def test_wrong_options_are_refused(name: str) -> None:
    arguments, options, message = CALLS[name]
    pipeline = pipeline_of(**arguments)
    with pytest.raises(ValueError, match=message):
        pipeline.generate("Once", max_new_tokens=4, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PromptLookup(0), "max_ngram_size=0"),
        (lambda: SparseSelf("tight"), "sparse='tight'"),  # type: ignore[arg-type]
        (lambda: LayerSkip(0.0), "share=0.0: expected a number above 0 and below 1"),
        (lambda: LayerSkip("half"), "share='half': expected a number"),  # type: ignore[arg-type]
        (lambda: LayerSkip(0.5, 0.5), "sparse=0.5: expected ovspec.SparseVerify"),  # type: ignore[arg-type]
        (lambda: ovspec.CommitVerify(interval=0), "interval=0: expected a number of tokens of 1 to 63"),
        (lambda: ovspec.CommitVerify(interval=64), "interval=64"),
        (lambda: ovspec.CommitVerify(interval=2.5), "interval=2.5: expected a number"),  # type: ignore[arg-type]
        (lambda: ovspec.CommitVerify("dense"), "sparse='dense'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# SparseSelf drafts nothing where it would read everything.
SMALL = ovspec.SparseVerify(budget=64)


@pytest.mark.parametrize("drafter", ["prompt_lookup", Suffix(), SparseSelf(SMALL), LayerSkip(), Auto(), None])
def test_pipelines_of_every_choice_give_the_text_of_plain_decoding(demo_ir: Path, drafter: Any) -> None:
    model = ovspec.draft_model(demo_ir / "draft") if drafter in (None, Auto()) else None
    pipeline = ovspec.LLMPipeline(demo_ir, "CPU", draft_model=model, drafter=drafter, **F32)
    plain = pipeline.generate(STORY, max_new_tokens=24, num_assistant_tokens=0)
    results = pipeline.generate([STORY], max_new_tokens=24, num_assistant_tokens=4)
    assert results.texts[0] == plain
    assert results.perf_metrics.raw_metrics.num_drafts > 0
    assert results.perf_metrics.get_draft_duration().mean > 0

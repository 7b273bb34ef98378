"""Measure the demo pair: held-out loss, recall against chance, acceptance of the draft, sample text.

python tools/demo/evaluate.py --data PACKED [--target tools/demo/target] [--draft tools/demo/draft]
"""

from __future__ import annotations

import random
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

import torch
from documents import FIRST_CODE, LAST_CODE, STREAMS, Corpus, cut, encode, fact_ids, facts, question, windows
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen3ForCausalLM

DEMO = Path(__file__).resolve().parent
PROMPTS = (
    "Once upon a time, there was a little girl named Lily. She",
    '"Watson," said Sherlock Holmes,',
    "Question: Tom has 5 apples. He buys 7 more. How many apples does Tom have?\nAnswer:",
)
PROMPT_TOKENS, NEW_TOKENS = 64, 120


@torch.no_grad()
def greedy(model: Qwen3ForCausalLM, prompt: list[int], count: int) -> list[int]:
    """Return exactly `count` greedy ids after `prompt` (the end token does not stop it)."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, eos_token_id=None
    )
    return [int(i) for i in out[0, len(prompt) :]]


@torch.no_grad()
def loss_on(model: PreTrainedModel, rows: Iterable[list[int]]) -> float:
    """Return the mean cross entropy of `rows`, in nats per token."""
    losses = []
    for ids in rows:
        row = torch.tensor([ids], device=model.device)
        losses.append(cross_entropy(model(row[:, :-1]).logits[0].float(), row[0, 1:]).item())
    return sum(losses) / len(losses)


def recall_exact(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    trials: int,
    gap: int,
    seed: int,
) -> int:
    """Return in how many trials the right one of four numbers, `gap` tokens of book apart, is recalled."""
    rng = random.Random(seed)
    right = 0
    for _ in range(trials):
        known = facts(rng)
        ids: list[int] = []
        for name, code in known:
            ids += cut(corpus.held["books"], gap, rng) + fact_ids(tokenizer, name, code)
        name, code = rng.choice(known)
        answer = tokenizer.decode(greedy(model, ids + encode(tokenizer, question(name)), 6))
        right += answer.strip().startswith(code)
    return right


@torch.no_grad()
def agreements(
    target: Qwen3ForCausalLM, draft: Qwen3ForCausalLM, prompts: list[list[int]]
) -> list[list[bool]]:
    """Return per prompt whether the draft's greedy token equals the target's, along the target's path."""
    rows = []
    for prompt in prompts:
        path = prompt + greedy(target, prompt, NEW_TOKENS)
        proposed = draft(torch.tensor([path])).logits[0].argmax(-1).tolist()
        rows.append(
            [p == t for p, t in zip(proposed[len(prompt) - 1 : -1], path[len(prompt) :], strict=True)]
        )
    return rows


def tokens_per_step(agreement: list[list[bool]], num_assistant_tokens: int) -> float:
    """Return tokens gained per verification: the accepted drafts, plus the target's own token."""
    steps = tokens = 0
    for row in agreement:
        position = 0
        while position < len(row):
            accepted = [*takewhile(bool, row[position : position + num_assistant_tokens])]
            gained = min(len(accepted) + 1, len(row) - position)
            position, tokens, steps = position + gained, tokens + gained, steps + 1
    return tokens / steps


def report(arguments: Namespace) -> None:
    corpus = Corpus.load(arguments.data)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.target)
    # f32: bf16 logits have ties, which greedy decoding then breaks by kernel, not by model.
    target = Qwen3ForCausalLM.from_pretrained(arguments.target, dtype=torch.float32).eval()
    draft = Qwen3ForCausalLM.from_pretrained(arguments.draft, dtype=torch.float32).eval()

    for prompt in PROMPTS:
        ids = encode(tokenizer, prompt)
        print(f"sample: {tokenizer.decode(ids + greedy(target, ids, 60))!r}", flush=True)
    for name in STREAMS:
        rows = list(windows(corpus.held[name], 513, arguments.windows))
        print(
            f"held-out {name}: target {loss_on(target, rows):.3f}, draft {loss_on(draft, rows):.3f} "
            f"nats per token ({len(rows)} windows of 512)",
            flush=True,
        )
    for gap in arguments.recall_gaps:
        right = recall_exact(target, tokenizer, corpus, arguments.trials, gap, arguments.seed)
        print(
            f"recall over about {4 * gap + 100} tokens: {right} of {arguments.trials} exact; chance: "
            f"{arguments.trials / 4:.0f} for any number in the text, "
            f"{arguments.trials / (LAST_CODE - FIRST_CODE + 1):.2f} for any number",
            flush=True,
        )
    for name in STREAMS:
        prompts = list(windows(corpus.held[name], PROMPT_TOKENS, arguments.prompts))
        agreement = agreements(target, draft, prompts)
        figures = ", ".join(f"{tokens_per_step(agreement, k):.2f} at {k}" for k in (2, 4, 6))
        print(
            f"tokens per step after {len(prompts)} held-out {name} prompts: {figures} assistant tokens",
            flush=True,
        )


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that prepare.py has made")
    parser.add_argument("--target", type=Path, default=DEMO / "target")
    parser.add_argument("--draft", type=Path, default=DEMO / "draft")
    parser.add_argument("--windows", type=int, default=64, help="held-out windows per stream")
    parser.add_argument("--trials", type=int, default=120, help="recall trials")
    parser.add_argument(
        "--recall-gaps", type=int, nargs="+", default=[180, 450], help="tokens between two facts"
    )
    parser.add_argument("--prompts", type=int, default=30, help="prompts per stream for the acceptance")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report(arguments)


if __name__ == "__main__":
    main()

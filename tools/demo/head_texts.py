"""Write the texts that the demo's EAGLE-3 head learns from: prompts, and how the demo target goes on.

    python tools/demo/head_texts.py --data PACKED --out texts.jsonl

A head drafts what its target says, so it learns from that: prompts are stretches of the training streams, and
the target continues each greedily. With --held-out the prompts are of the held-out streams.
"""

from __future__ import annotations

import json
import random
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from documents import STREAMS, Corpus, cut
from evaluate import NEW_TOKENS, PROMPT_TOKENS
from transformers import PreTrainedTokenizerFast

import ovspec
from ovspec_models import demo_pair_path

SHARES = {"books": 0.5, "sums": 0.25, "stories": 0.25}


def prompts_of(corpus: Corpus, count: int, held_out: bool, rng: random.Random) -> list[list[int]]:
    streams = corpus.held if held_out else corpus.train
    drawn = rng.choices(STREAMS, [SHARES[name] for name in STREAMS], k=count)
    return [cut(streams[name], rng.randint(PROMPT_TOKENS // 4, PROMPT_TOKENS), rng) for name in drawn]


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that prepare.py has made")
    parser.add_argument("--out", type=Path, required=True, help="JSONL file to write")
    parser.add_argument("--count", type=int, default=6000, help="prompts")
    parser.add_argument("--batch", type=int, default=48, help="prompts that are continued together")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    corpus = Corpus.load(arguments.data)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.data / "tokenizer")
    folder = demo_pair_path()
    pipeline = ovspec.LLMPipeline(folder, "CPU", drafter="none")
    prompts = prompts_of(corpus, arguments.count, arguments.held_out, random.Random(arguments.seed))
    started, written = time.monotonic(), 0
    with arguments.out.open("w", encoding="utf-8") as file:
        for begin in range(0, len(prompts), arguments.batch):
            texts = [tokenizer.decode(ids) for ids in prompts[begin : begin + arguments.batch]]
            answers = pipeline.generate(texts, max_new_tokens=NEW_TOKENS, ignore_eos=True).texts
            for text, answer in zip(texts, answers, strict=True):
                file.write(json.dumps({"text": text + answer}) + "\n")
            written += len(texts)
            speed = written * NEW_TOKENS / (time.monotonic() - started)
            print(f"{written} of {len(prompts)} texts, {speed:.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()

"""Makes the demo pair's tokenizer and its packed token streams from texts.

    python tools/demo/prepare.py DATA OUT [--tokenizer tools/demo/target]

DATA holds ``classic_books/*.md``, ``gsm8k/*train.jsonl`` and ``*test.jsonl``, and
``tinystories_1000/*tinystories*.json``. With --tokenizer an existing tokenizer is used (needed to continue or
to evaluate an existing model); without it a byte-level BPE of 4,096 tokens is trained on the training text.
"""

from __future__ import annotations

import json
import random
import re
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

# Held out of the first training by name. The rest of the held-out books are those past the budget.
HELD_TITLES = (
    "Aesop__Aesop's Fables",
    "Anna Sewell__Black Beauty",
    "Arthur Conan Doyle__The Adventure of the Copper Beeches",
)
BOOK_CHARACTERS = 26_000_000  # training text from books
MOST_OF_ONE_BOOK = 900_000
HELD_OF_ONE_BOOK = 60_000
DOCUMENT_CHARACTERS = 20_000
TRAINING_STORIES = 900  # the rest are held out
VOCABULARY = 4096


@dataclass
class Texts:
    """Documents by stream, for training and held out, and the titles of the books."""

    train: dict[str, list[str]] = field(default_factory=dict)
    held: dict[str, list[str]] = field(default_factory=dict)
    train_titles: list[str] = field(default_factory=list)
    held_titles: list[str] = field(default_factory=list)


def one_file(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(
            f"'{folder}' has {len(found)} files '{pattern}', expected 1; see tools/demo/README.md"
        )
    return found[0]


def add_books(texts: Texts, folder: Path, seed: int) -> None:
    """Take books in an order drawn by `seed` until the budget is full; hold out the others."""
    books: list[tuple[str, str]] = []
    for path in sorted(folder.glob("*.md")):
        text = path.read_text(encoding="utf-8", errors="ignore").replace("\r", "")
        books.append((path.stem, re.sub(r"\n{3,}", "\n\n", text)))
    if not books:
        raise SystemExit(f"'{folder}' holds no *.md book; see tools/demo/README.md")
    held = [book for book in books if book[0] in HELD_TITLES]
    books = [book for book in books if book[0] not in HELD_TITLES]
    random.Random(seed).shuffle(books)
    taken: list[str] = []
    total = 0
    for title, text in books:
        if total > BOOK_CHARACTERS:
            held.append((title, text))
            continue
        taken.append(text[:MOST_OF_ONE_BOOK])
        total += len(taken[-1])
        texts.train_titles.append(title)
    texts.train["books"] = taken
    texts.held["books"] = [text[:HELD_OF_ONE_BOOK] for _, text in sorted(held)]
    texts.held_titles = sorted(title for title, _ in held)


def sums(path: Path) -> list[str]:
    """Return GSM8K questions with answers, without the calculator annotations."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [f"Question: {r['question']}\nAnswer: {re.sub(r'<<.*?>>', '', r['answer'])}" for r in rows]


def read_texts(data: Path, seed: int) -> Texts:
    texts = Texts()
    add_books(texts, data / "classic_books", seed)
    texts.train["sums"] = sums(one_file(data / "gsm8k", "*train.jsonl"))
    texts.held["sums"] = sums(one_file(data / "gsm8k", "*test.jsonl"))
    stories = json.loads(
        one_file(data / "tinystories_1000", "*tinystories*.json").read_text(encoding="utf-8")
    )
    texts.train["stories"], texts.held["stories"] = stories[:TRAINING_STORIES], stories[TRAINING_STORIES:]
    return texts


def train_tokenizer(texts: Texts) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        [t for name in ("books", "sums", "stories") for t in texts.train[name]], trainer
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", bos_token="<|endoftext|>", pad_token="<|pad|>"
    )


def pack(tokenizer: PreTrainedTokenizerBase, documents: list[str]) -> NDArray[np.uint16]:
    """Return all documents in one stream, each begun by id 0 and at most 20,000 characters long."""
    step = DOCUMENT_CHARACTERS
    pieces = [text[i : i + step] for text in documents for i in range(0, len(text), step)]
    ids: list[int] = []
    for encoded in tokenizer(pieces)["input_ids"]:
        ids += [0, *encoded]
    return np.array(ids, np.uint16)


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the texts")
    parser.add_argument("out", type=Path, help="folder for the packed tokens and the tokenizer")
    parser.add_argument("--tokenizer", type=Path, help="checkpoint folder whose tokenizer to use")
    parser.add_argument(
        "--seed", type=int, default=0, help="order in which books are taken (shipped model: 0)"
    )
    arguments = parser.parse_args()

    texts = read_texts(arguments.data, arguments.seed)
    tokenizer: PreTrainedTokenizerBase
    if arguments.tokenizer is None:
        tokenizer = train_tokenizer(texts)
    else:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.tokenizer)
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(arguments.out / "tokenizer")
    counts: dict[str, int] = {}
    for suffix, streams in (("", texts.train), ("_held", texts.held)):
        for name, documents in streams.items():
            packed = pack(tokenizer, documents)
            np.save(arguments.out / f"{name}{suffix}.npy", packed)
            counts[name + suffix] = len(packed)
            print(f"{name + suffix:14} {len(documents):6} documents {len(packed):10,} tokens")
    facts = {"seed": arguments.seed, "tokens": counts}
    facts |= {"books": texts.train_titles, "books_held": texts.held_titles}
    (arguments.out / "corpus.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    absent = [title for title in HELD_TITLES if title not in texts.held_titles]
    if absent:
        print(f"not in {arguments.data}, so not among the held-out books: {'; '.join(absent)}")


if __name__ == "__main__":
    main()

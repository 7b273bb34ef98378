"""Prompts that SmolLM2's head is trained on, out of public texts: `{"category": ..., "prompt": ...}` a line.

    python tools/smollm2/prompts.py DATA prompts.jsonl

DATA has `gsm8k/*train.jsonl`, `xquad/xquad.en.json`, `classic_books/*.md`, `humaneval/*.jsonl.gz`, and lists
of texts as `tinystories_1000/*tinystories*.json` and `*wikitext*.json`. Nothing of Spec-Bench is among them,
since it measures the head.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COUNTS = {"chat": 1150, "qa": 520, "maths": 620, "summary": 420, "rag": 420, "rewriting": 160, "coding": 110}
MOST_CHARACTERS = {"summary": 2400, "rag": 2600}
FORMS = json.loads((Path(__file__).parent / "forms.json").read_text(encoding="utf-8"))
LANGUAGES = ("Python", "JavaScript", "Java", "C++", "C", "Rust", "Go")


class Texts:
    """The texts of a folder."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        def read(pattern: str) -> Any:
            (path,) = folder.glob(pattern)
            return json.loads(path.read_text(encoding="utf-8"))

        self._rng = rng
        self.books = [
            path.read_text(encoding="utf-8", errors="replace")
            for path in sorted(folder.glob("classic_books/*.md"))
        ]
        self.stories = read("tinystories_1000/*tinystories*.json")
        wiki = (re.sub(r" @(.)@ ", r"\1", text).strip() for text in read("tinystories_1000/*wikitext*.json"))
        self.articles = [text for text in wiki if len(text) > 200]
        found = [part for one in read("xquad/xquad.en.json")["data"] for part in one["paragraphs"]]
        self.passages = [(part["context"], [qa["question"] for qa in part["qas"]]) for part in found]
        lines = next(iter(folder.glob("gsm8k/*train.jsonl"))).read_text(encoding="utf-8").splitlines()
        self.sums = [json.loads(line)["question"] for line in lines]
        with gzip.open(next(iter(folder.glob("humaneval/*.jsonl.gz"))), "rt", encoding="utf-8") as file:
            self.programs = [json.loads(line)["prompt"] for line in file]

    def part(self, least: int, most: int) -> str:
        """Sentences of a book, of so many characters."""
        book = self._rng.choice([book for book in self.books if len(book) > 2 * most])
        begin = self._rng.randrange(len(book) // 10, len(book) - most)
        text = book[begin : begin + self._rng.randint(least, most)]
        return re.sub(r"\s*\n\s*", " ", text[text.find(" ") + 1 : text.rfind(".") + 1 or len(text)]).strip()

    def passage(self) -> str:
        """One of any kind."""
        kinds = (self._rng.choice(self.passages)[0], self._rng.choice(self.articles), self.part(400, 900))
        return self._rng.choice(kinds)[:900]


def prompts_of(texts: Texts, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Category and text, more than are taken."""
    yield from (("maths", text) for text in texts.sums)
    yield from (("coding", f"Complete this function.\n\n{text}") for text in texts.programs)
    for passage, questions in texts.passages:
        yield "summary", f"Summarize: {passage}"
        for question in questions:
            yield "qa", question
            yield (
                "rag",
                f"Answer with the passage.\n\nPassage: {passage}\n\nQuestion: {question}",
            )
            several = [passage[:900], *(texts.passage() for _ in range(rng.randint(1, 3)))]
            rng.shuffle(several)
            yield "rag", "\n".join([*several, question])
    for text in texts.articles:
        yield "summary", f"Summarize: {text}"
        yield "rag", f"{text}\nWhat are the most important facts?"
    for text in texts.stories:
        yield "chat", f"Continue this story: {text[: rng.choice((120, 200, 400))]}"
        yield "rewriting", f"Repeat this text: {text[:400]}"
    for _ in range(800):
        yield "summary", f"Summarize: {texts.part(800, 2300)}"
        rewritten = rng.choice(("Rewrite this text in simple words", "Correct the grammar of this text"))
        yield "rewriting", f"{rewritten}: {texts.part(150, 600)}"
    for topic in FORMS["topics"]:
        yield from (("chat", form.format(topic)) for form in FORMS["chat"])
        yield from (("qa", form.format(topic) + "?") for form in FORMS["questions"])
    for task in FORMS["tasks"]:
        yield from (("coding", f"Write a {name} function that {task}.") for name in LANGUAGES)


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    rng = random.Random(7)
    found = list(dict.fromkeys(prompts_of(Texts(arguments.data, rng), rng)))
    rng.shuffle(found)
    left = dict(COUNTS)
    with arguments.out.open("w", encoding="utf-8") as file:
        for category, prompt in found:
            if left[category] and len(prompt) <= MOST_CHARACTERS.get(category, 1500):
                left[category] -= 1
                file.write(json.dumps({"category": category, "prompt": prompt}) + "\n")


if __name__ == "__main__":
    main()

"""Tasks with their references, read from files of several forms."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovspec.eval.scores import METRICS, last_number, normalised
from ovspec_models.folder.jsonl import check_text, json_lines, read_utf8
from ovspec_models.folder.shown import cut, shown

_EXPECTED = (
    "expected the form of ovspec (prompt or messages), Spec-Bench (turns), QMSum (meeting_transcripts), "
    "GSM8K (question and answer) or SQuAD (data)"
)
_ANSWER_METRICS = ("exact_match", "f1")
# Of a category of Spec-Bench; its references in other categories are remarks for judges.
_SPEC_BENCH = {
    "summarization": ("rouge_l",),
    "translation": ("rouge_l",),
    "math_reasoning": ("number",),
    "rag": _ANSWER_METRICS,
}
_CALCULATION = re.compile(r"<<[^<>]*>>")
Value = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Example:
    """One task of a suite.

    Attributes:
        place: where it comes from, for messages.
        task: that it is counted in.
        prompt: a text, or the messages of a chat, each with role and content.
        metrics: names of `METRICS`; none: it has no score.
        answers: what the metrics compare with.
        reference: text whose likelihood is measured; empty: there is none.
        group: part of the task that has a score of its own; empty: none.
    """

    place: str
    task: str
    prompt: str | tuple[dict[str, str], ...]
    metrics: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    reference: str = ""
    group: str = ""


def first_of_each(examples: Iterable[Example], limit: int | None) -> list[Example]:
    """Of each task the first examples; `None`: all."""
    found, counts = list[Example](), Counter[str]()
    for example in examples:
        counts[example.task] += 1
        if limit is None or counts[example.task] <= limit:
            found.append(example)
    return found


def read_suites(paths: Sequence[Path]) -> list[Example]:
    """The examples of all files.

    Raises:
        ValueError: as `read_suite`, a file that is named twice, or tasks of two files that would be counted
            as one because the files have the same name.
    """
    found, files = list[Example](), dict[str, Path]()
    if twice := [path for path, count in Counter(map(os.path.realpath, paths)).items() if count > 1]:
        raise ValueError(f"--suite {twice[0]} is named twice; name each file once")
    for path in paths:
        examples = read_suite(path)
        if any(example.task == path.stem for example in examples):
            if path.stem in files:
                raise ValueError(
                    f"--suite {files[path.stem]} and --suite {path}: both would be the task {path.stem}; "
                    "rename one of the files"
                )
            files[path.stem] = path
        found += examples
    return found


def read_suite(path: Path) -> list[Example]:
    """The examples of one file, JSON or one JSON object a line; each entry says by its fields what it is.

    Raises:
        ValueError: it can't be read or is damaged, or one of its entries is no task; it names the place.
    """
    what = f"--suite {path}"
    found = [
        example for place, value in _entries(what, path) for example in _examples(place, path.stem, value)
    ]
    if not found:
        raise ValueError(f"{what} holds no task; {_EXPECTED}")
    return found


def _entries(what: str, path: Path) -> Iterator[tuple[str, Any]]:
    text = read_utf8(what, lambda: path.read_bytes().decode("utf-8-sig"))
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        if path.suffix == ".json" and not _is_json(text.lstrip().partition("\n")[0]):
            raise ValueError(f"{what} is no JSON ({error}); correct it") from None
        # Lines, or damaged; then the message names the line.
        for number, value in json_lines(what, text.encode):
            yield f"{what}: line {number}", value
        return
    if isinstance(whole, list):
        yield from ((f"{what}: entry {number}", value) for number, value in enumerate(whole, 1))
    else:
        yield what, whole


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _examples(place: str, name: str, value: Any) -> Iterable[Example]:
    """The examples of an entry; `name` is that of a task which has no other."""
    if isinstance(value, dict):
        for field, read in _FORMS.items():
            if field in value:
                return read(place, name, value)
    raise ValueError(f"{place} holds no task: {cut(json.dumps(value))}; {_EXPECTED}")


def _own(place: str, name: str, value: Value) -> Iterable[Example]:
    """`prompt` or `messages`; `answers` or `reference`, `metric` and `category` may be missing."""
    given = {field for field in ("answers", "reference") if value.get(field) is not None}
    if len(given) > 1:
        raise ValueError(f"{place} has answers and a reference; give one of them")
    answers = _texts(place, next(iter(given)), value) if given else ()
    metrics = _ANSWER_METRICS if "answers" in given else ("rouge_l",) if given else ()
    if (metric := value.get("metric")) is not None:
        if metric not in tuple(METRICS):
            raise ValueError(f"{place}: metric {shown(metric)}: expected one of {', '.join(METRICS)}")
        if not answers:
            raise ValueError(
                f"{place}: metric {metric} has nothing to compare with; add answers or reference"
            )
        metrics = (metric,)
    task = name if value.get("category") is None else _text(place, "category", value)
    prompt = _chat(place, value["messages"]) if "messages" in value else _text(place, "prompt", value)
    yield _scored(place, task, prompt, metrics, answers)


def _spec_bench(place: str, name: str, value: Value) -> Iterable[Example]:
    """The first of `turns`, with `category`, and `reference` where the category has a score."""
    task, turns = _text(place, "category", value), _texts(place, "turns", value)
    metrics = _SPEC_BENCH.get(task, ())
    references = value.get("reference")
    if not metrics or not references:
        yield Example(place, task, turns[0])
        return
    first = references[0] if isinstance(references, list) else references
    answers = _texts(place, "reference", {"reference": first})
    if metrics == ("number",):
        yield _mathematics(place, task, turns[0], answers[0])
    else:
        yield _scored(place, task, turns[0], metrics, answers)


def _qmsum(place: str, name: str, value: Value) -> Iterable[Example]:
    """`meeting_transcripts`, with the queries of `general_query_list` and `specific_query_list`."""
    spoken = _objects(place, "meeting_transcripts", value)
    lines = (f"{_text(place, 'speaker', turn)}: {_string(place, 'content', turn)}" for turn in spoken)
    transcript = "\n".join(lines)
    for kind in ("general", "specific"):
        field = f"{kind}_query_list"
        for number, entry in enumerate(_objects(place, field, value) if field in value else (), 1):
            where = f"{place}: {field} {number}"
            query, answer = _text(where, "query", entry), _text(where, "answer", entry)
            prompt = f"{transcript}\n\nAnswer about this meeting in a short paragraph. {query}\nAnswer:"
            yield _scored(where, f"qmsum {kind}", prompt, ("rouge_l",), (answer,))


def _gsm8k(place: str, name: str, value: Value) -> Iterable[Example]:
    """`question`, and an `answer` that ends with `#### NUMBER`."""
    question = _text(place, "question", value)
    prompt = f"{question}\nThink step by step. End with the answer as a number."
    yield _mathematics(place, name, prompt, _text(place, "answer", value))


def _squad(place: str, name: str, value: Value) -> Iterable[Example]:
    """`data`, of articles with `paragraphs`, of a `context` and `qas`: `question` and `answers`.

    Questions without an answer have no score.
    """
    for article in _objects(place, "data", value):
        for paragraph in _objects(place, "paragraphs", article):
            context = _text(place, "context", paragraph)
            for entry in _objects(place, "qas", paragraph):
                where = f"{place}: question {shown(entry.get('id'))}"
                question = _text(where, "question", entry)
                answers = [_text(where, "text", one) for one in _objects(where, "answers", entry)]
                prompt = f"{context}\n\nAnswer in a few words of the text. {question}\nAnswer:"
                metrics = _ANSWER_METRICS if answers else ()
                yield _scored(where, name, prompt, metrics, tuple(dict.fromkeys(answers)))


_FORMS: dict[str, Callable[[str, str, Value], Iterable[Example]]] = {
    "messages": _own,
    "prompt": _own,
    "turns": _spec_bench,
    "meeting_transcripts": _qmsum,
    "answer": _gsm8k,
    "data": _squad,
}


def _mathematics(place: str, task: str, prompt: str, solution: str) -> Example:
    reference = _CALCULATION.sub("", solution)
    _, found, answer = reference.rpartition("####")
    if not found or last_number(answer) is None:
        raise ValueError(f"{place}: the answer does not end with #### and a number: {cut(solution[-60:])}")
    return Example(place, task, prompt, ("number",), (answer.strip(),), reference)


def _scored(
    place: str,
    task: str,
    prompt: str | tuple[dict[str, str], ...],
    metrics: tuple[str, ...],
    answers: tuple[str, ...],
) -> Example:
    """An example whose reference is its first answer; answers must have what the metrics compare."""
    for answer in answers:
        if "number" in metrics and last_number(answer) is None:
            raise ValueError(f"{place}: metric number: {shown(answer)} has no number")
        if "contains" in metrics and not normalised(answer):
            raise ValueError(f"{place}: metric contains: {shown(answer)} has no word")
    return Example(place, task, prompt, metrics, answers, answers[0] if answers else "")


def _chat(place: str, value: Any) -> tuple[dict[str, str], ...]:
    messages = _objects(place, "messages", {"messages": value})
    if not messages:
        raise ValueError(f"{place}: messages is empty; give at least one")
    return tuple({field: _text(place, field, entry) for field in ("role", "content")} for entry in messages)


def _objects(place: str, field: str, value: Value) -> list[Value]:
    found = value.get(field)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise ValueError(f"{place}: {field} is {_described(value, field)}, expected a list of objects")
    return found


def _texts(place: str, field: str, value: Value) -> tuple[str, ...]:
    found = value.get(field)
    if not isinstance(found, list):
        return (_text(place, field, value),)
    if not found:
        raise ValueError(f"{place}: {field} is empty; give at least one text")
    return tuple(_text(place, field, {field: entry}) for entry in found)


def _text(place: str, field: str, value: Value) -> str:
    found = _string(place, field, value)
    if not found.strip():
        raise ValueError(f"{place}: {field} is {_described(value, field)}, expected a text")
    return found


def _string(place: str, field: str, value: Value) -> str:
    found = value.get(field)
    if not isinstance(found, str):
        raise ValueError(f"{place}: {field} is {_described(value, field)}, expected a text")
    check_text(f"{place}: {field}", found)
    return found


def _described(value: Value, field: str) -> str:
    return shown(value[field]) if field in value else "missing"

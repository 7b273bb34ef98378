"""Files of tasks: each form, and damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ovspec.eval.needles import DEPTHS, PER_DEPTH, needle_examples, sentences_of
from ovspec.eval.scores import METRICS
from ovspec.eval.suites import Example, first_of_each, read_suite, read_suites

QMSUM = {
    "topic_list": [{"topic": "Buttons", "relevant_text_span": [["0", "1"]]}],
    "general_query_list": [{"query": "Summarize the meeting.", "answer": "They chose buttons."}],
    "specific_query_list": [
        {"query": "What did Ann say?", "answer": "She wants two.", "relevant_text_span": [["0", "0"]]}
    ],
    "meeting_transcripts": [
        {"speaker": "Ann", "content": "Two buttons."},
        {"speaker": "Bob", "content": "Fine."},
    ],
}
SQUAD = {
    "version": "1.1",
    "data": [
        {
            "paragraphs": [
                {
                    "context": "Ann has two buttons.",
                    "qas": [
                        {
                            "id": "7",
                            "question": "How many?",
                            "answers": [
                                {"answer_start": 8, "text": "two"},
                                {"answer_start": 8, "text": "two"},
                                {"answer_start": 8, "text": "two buttons"},
                            ],
                        },
                        {"id": "8", "question": "Why?", "answers": [], "is_impossible": True},
                    ],
                }
            ]
        }
    ],
}
GSM8K = {"question": "3 and 4?", "answer": "3+4=<<3+4=7>>7\n#### 7"}
SPEC_BENCH: list[dict[str, Any]] = [
    {"question_id": 1, "category": "writing", "turns": ["Write.", "Again."], "reference": ["", ""]},
    {"question_id": 2, "category": "summarization", "turns": ["Summarize: x"], "reference": ["An x."]},
    {"question_id": 3, "category": "qa", "turns": ["Who?"]},
    {"question_id": 4, "category": "math_reasoning", "turns": ["1+1?"], "reference": ["It is\n#### 2"]},
    {"question_id": 5, "category": "rag", "turns": ["Uses?"], "reference": [["wood", "water"]]},
]


def read(tmp_path: Path, content: str | bytes, name: str = "file.jsonl") -> list[Example]:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_suite(path)


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def test_own_form(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Where?"}]
    text, told, answered, scored = read(
        tmp_path,
        "\ufeff"
        + lines(
            {"prompt": "Go on"},
            {"messages": chat, "reference": "There.", "category": "places"},
            {"prompt": "Who?", "answers": ["Ann", "Bob"]},
            {"prompt": "How many?", "answers": "3", "metric": "number"},
        ),
    )
    assert (text.task, text.metrics, text.answers, text.reference) == ("file", (), (), "")
    assert told.prompt == tuple(chat) and told.task == "places"
    assert (told.metrics, told.reference) == (("rouge_l",), "There.")
    assert answered.metrics == ("exact_match", "f1") and answered.answers == ("Ann", "Bob")
    assert (scored.metrics, scored.answers) == (("number",), ("3",))


def test_spec_bench(tmp_path: Path) -> None:
    writing, summary, question, sums, rag = read(tmp_path, lines(*SPEC_BENCH))
    assert (writing.prompt, writing.metrics, writing.reference) == ("Write.", (), "")
    assert (summary.metrics, summary.reference) == (("rouge_l",), "An x.")
    assert (question.task, question.metrics) == ("qa", ())
    assert (sums.metrics, sums.answers) == (("number",), ("2",))
    assert rag.answers == ("wood", "water") and rag.metrics == ("exact_match", "f1")


@pytest.mark.parametrize("text", [json.dumps(QMSUM, indent=1), lines(QMSUM)], ids=["json", "jsonl"])
def test_qmsum(tmp_path: Path, text: str) -> None:
    general, specific = read(tmp_path, text, "meeting.json")
    assert (general.task, specific.task) == ("qmsum general", "qmsum specific")
    assert isinstance(specific.prompt, str)
    assert specific.prompt.startswith("Ann: Two buttons.\nBob: Fine.\n")
    assert "What did Ann say?" in specific.prompt
    assert specific.metrics == ("rouge_l",) and specific.reference == "She wants two."


def test_gsm8k_and_squad(tmp_path: Path) -> None:
    (sums,) = read(tmp_path, lines(GSM8K))
    assert (sums.answers, sums.reference) == (("7",), "3+4=7\n#### 7")
    found, unanswered = read(tmp_path, json.dumps(SQUAD), "squad.json")
    assert found.answers == ("two", "two buttons") and found.task == "squad"
    assert isinstance(found.prompt, str) and found.prompt.startswith("Ann has two buttons.\n")
    assert unanswered.metrics == ()


def test_the_first_of_each_task(tmp_path: Path) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_text(lines(*SPEC_BENCH, *SPEC_BENCH))
    two.write_text(lines(GSM8K, GSM8K))
    tasks = [example.task for example in first_of_each([*read_suite(one), *read_suite(two)], 1)]
    assert tasks == ["writing", "summarization", "qa", "math_reasoning", "rag", "two"]


def test_tasks_of_two_files_are_not_counted_as_one(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, two = tmp_path / "test.jsonl", tmp_path / "other" / "test.jsonl"
    one.write_text(lines(GSM8K))
    two.write_text(lines({"prompt": "Why?"}))
    with pytest.raises(ValueError, match=r"test\.jsonl: both would be the task test; rename one"):
        read_suites([one, two])
    with pytest.raises(ValueError, match=r"test\.jsonl is named twice"):
        read_suites([one, two.parent / ".." / "test.jsonl"])
    two.write_text(lines(*SPEC_BENCH))  # names its tasks itself
    assert len(read_suites([one, two])) == 1 + len(SPEC_BENCH)


DAMAGED: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "holds no task"),
    "blank": ("\n \n", "holds no task"),
    "cut": (lines(GSM8K) + '{"question": "3 an', "line 2 is no JSON"),
    "cut object": (json.dumps(SQUAD)[:-20], "line 1 is no JSON"),
    "binary": (b"\xff\xfe\x80", "is not UTF-8"),
    "a number": ("7", "holds no task: 7; expected the form of"),
    "no list": ("[]", "holds no task"),
    "list of texts": ('["one"]', 'entry 1 holds no task: "one"'),
    "another object": (lines({"text": "x"}), 'holds no task: {"text": "x"}'),
    "deep": ("[" * 100_000, "line 1 is no JSON"),
    "no answer": (lines(GSM8K, {"question": "x"}), 'line 2 holds no task: {"question": "x"}; expected'),
    "no such question": (lines({"answer": "#### 7"}), "question is missing, expected a text"),
    "answers of rag": (lines({"question": "x", "answers": ["y"]}), "holds no task"),
    "no number": (lines({"question": "x", "answer": "7"}), "does not end with #### and a number: 7"),
    "empty prompt": (lines({"prompt": " "}), "prompt is ' ', expected a text"),
    "half a character": ('{"prompt": "\\ud800"}', "prompt is no valid text"),
    "metric": (lines({"prompt": "x", "answers": ["y"], "metric": "bleu"}), "metric 'bleu': expected one of"),
    "metric list": (lines({"prompt": "x", "answers": ["y"], "metric": ["f1"]}), "metric ['f1']: expected"),
    "metric alone": (lines({"prompt": "x", "metric": "f1"}), "metric f1 has nothing to compare with"),
    "no such number": (
        lines({"prompt": "x", "answers": ["seven"], "metric": "number"}),
        "metric number: 'seven' has no number",
    ),
    "two references": (lines({"prompt": "x", "answers": ["y"], "reference": "z"}), "give one of them"),
    "no answers": (lines({"prompt": "x", "answers": []}), "answers is empty"),
    "an answer": (lines({"prompt": "x", "answers": ["y", 3]}), "answers is 3, expected a text"),
    "messages": (lines({"messages": "hi"}), "messages is 'hi', expected a list of objects"),
    "no message": (lines({"messages": []}), "messages is empty"),
    "role": (lines({"messages": [{"content": "hi"}]}), "role is missing"),
    "category": (lines({"turns": ["x"]}), "category is missing"),
    "turns": (lines({"turns": [], "category": "qa"}), "turns is empty"),
    "paragraphs": (json.dumps({"data": [{}]}), "paragraphs is missing, expected a list of objects"),
    "answers of squad": (
        json.dumps({"data": [{"paragraphs": [{"context": "c", "qas": [{"id": 3, "question": "q"}]}]}]}),
        "question 3: answers is missing",
    ),
    "data": (json.dumps({"data": 3}), "data is 3, expected a list of objects"),
    "no question": (json.dumps({"data": []}), "holds no task"),
    "transcript": (lines({**QMSUM, "meeting_transcripts": [{"speaker": "Ann"}]}), "content is missing"),
    "query": (
        lines({**QMSUM, "specific_query_list": [{"query": "x"}]}),
        "specific_query_list 1: answer is missing",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, expected = DAMAGED[name]
    with pytest.raises(ValueError, match=r"--suite .*file\.jsonl") as refused:
        read(tmp_path, content)
    assert expected in str(refused.value) and "\n" not in str(refused.value)


def test_a_damaged_file_of_one_value_names_its_own_line(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.write_text('[\n {"prompt": "a"},\n {"prompt": "b"},,\n {"prompt": "c"}\n]\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"tasks\.json is no JSON \(.*: line 3 "):
        read_suites([path])
    path.write_text(lines({"prompt": "a"}) + "{\n", encoding="utf-8")  # a value in each line
    with pytest.raises(ValueError, match=r"tasks\.json: line 2 is no JSON"):
        read_suites([path])


def test_needles_lie_at_their_depths() -> None:
    sentences = sentences_of("text", lambda: "One two. Three four five! Six? ")
    assert sentences == ["One two.", "Three four five!", "Six?"]
    found = list(needle_examples([200, 400], sentences, lambda text: len(text.split())))
    assert len(found) == 2 * len(DEPTHS) * PER_DEPTH
    for example in found:
        assert isinstance(example.prompt, str)
        (secret,) = example.answers
        text, _, asked = example.prompt.partition("\n\n")
        needle = next(part for part in text.split(".") if secret in part)
        name = needle.split(" is ")[0].split(" of ")[1]
        assert f"number of {name}?" in asked and secret not in asked
        depth = text.index("The secret number") / (len(text) - len(needle))
        assert depth == pytest.approx(float(example.group.removeprefix("depth ")), abs=0.1)
        words = len(example.prompt.split())
        assert int(example.task.removeprefix("needle ")) - 64 <= words <= int(example.task[7:])
        score = METRICS[example.metrics[0]]
        assert score(f"It is {secret}.", example.answers) == 1.0
    again = needle_examples([200, 400], sentences, lambda text: len(text.split()))
    assert list(again) == found
    assert len({example.prompt for example in found}) == len(found)
    with pytest.raises(ValueError, match="--needles 64: the question and the first sentence need more"):
        list(needle_examples([64], sentences, lambda text: len(text.split())))
    with pytest.raises(ValueError, match="text holds no text"):
        sentences_of("text", lambda: " \n")

"""`ovspec generate` with the form of an answer: a JSON schema, a pattern or a grammar."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import ovspec
from pipeline.schemas import satisfies

from ovspec_models import demo_pair_path

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Lily", "Ben"]}, "age": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ASKED = ("generate", "-m", demo_pair_path(), "-p", "Once upon a time", "--max-new-tokens", "60")


@pytest.mark.slow
def test_an_answer_has_the_form_that_an_option_asks_for(tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "answer.ebnf"
    schema.write_text(json.dumps(SCHEMA), encoding="utf-8")
    grammar.write_text('root ::= ("yes" | "no") ("!" | ".")\n', encoding="utf-8")
    done = ovspec(*ASKED, "--json-schema", schema, "--json")
    assert done.returncode == 0 and satisfies(json.loads(json.loads(done.stdout)["text"]), SCHEMA)
    assert re.fullmatch("[0-9]{3}-[a-z]{2}\n", ovspec(*ASKED, "--regex", "[0-9]{3}-[a-z]{2}").stdout)
    assert ovspec(*ASKED, "--grammar", grammar).stdout.strip() in ("yes!", "yes.", "no!", "no.")


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--json-schema", '{"type": "integer", "minimum": 5, "maximum": 3}', "--json-schema: Unsatisfiable"),
        ("--json-schema", "no JSON", "--json-schema: it is no JSON"),
        ("--json-schema", None, r"--json-schema .*: No such file"),
        ("--grammar", 'root ::= root "a"', r"--grammar: rule 'root' begins with itself \(left recursion\)"),
        ("--grammar", b"\xff", r"--grammar .* is not UTF-8"),
        ("--regex", "[", "--regex: unclosed character class"),
    ],
)
def test_a_form_that_nothing_can_have(
    option: str, text: str | bytes | None, said: str, tmp_path: Path
) -> None:
    given: str | Path = tmp_path / "form"
    if option == "--regex":
        given = str(text)
    elif text is not None:
        Path(given).write_bytes(text.encode() if isinstance(text, str) else text)
    done = ovspec(*ASKED, option, given)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and re.search(said, done.stderr), done.stderr


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (("--json-schema", "a.json"), "--json-schema and --regex exclude each other"),
        (("--num-beams", "2"), "--num-beams 2 follow no grammar"),
    ],
)
def test_what_a_form_does_not_go_with(others: tuple[str, ...], said: str) -> None:
    done = ovspec(*ASKED, "--regex", "a", *others)
    assert done.returncode == 2 and said in done.stderr

"""The table of published heads in ovspec/drafters/README.md, from what happens to a checkpoint of each.

`OVSPEC_WRITE_DOCS=1 python -m pytest tests/drafters/test_published_formats.py` writes it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from drafters.published_formats import FORMATS, Format

from ovspec_models.heads import open_head

DOCS = Path(__file__).parents[2] / "ovspec" / "drafters" / "README.md"
BEGIN = "<!-- table: written by tests/drafters/test_published_formats.py -->\n"
END = "<!-- end of the table -->\n"
HEAD = "| format | e.g. | in config.json, or in the weights | what happens |\n|---|---|---|---|\n"


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_what_happens_to_a_checkpoint(form: Format, tmp_path: Path) -> None:
    folder = form.save(tmp_path / "head")
    if not form.refused:
        open_head(folder, form.kind)
        return
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        open_head(folder, form.kind)
    assert form.refused in str(caught.value)


def test_the_table_says_it() -> None:
    before, rest = DOCS.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    table = HEAD + "".join(form.row for form in FORMATS)
    if os.environ.get("OVSPEC_WRITE_DOCS"):
        DOCS.write_text(before + BEGIN + table + END + after, encoding="utf-8")
    assert DOCS.read_text(encoding="utf-8") == before + BEGIN + table + END + after

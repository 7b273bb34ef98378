"""Tables of figures, as reports print them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

#: Arguments of tables that fit 80 columns.
COMPACT: dict[str, Any] = {"box": SIMPLE_HEAD, "show_edge": False, "padding": (0, 1, 0, 0)}


def table_of(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1, **style: Any
) -> Table:
    """A table whose first `names` columns are left-justified, the others right-justified.

    `style`: further arguments of `rich.table.Table`.
    """
    table = Table(title=title, title_justify="left", **style)
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index < names else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table

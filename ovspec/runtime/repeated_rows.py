"""Rows that are added to the passes of a small draft model, so that their number repeats."""

from __future__ import annotations

from collections.abc import Sequence

from ovspec.runtime.tables import Rows, is_short_chain

REPEATED_ROWS = 8


def added_rows(batch: Sequence[Rows]) -> int:
    """Rows behind those of a pass that nobody reads; the next pass overwrites their keys and values.

    The plugin prepares every node anew where the rows are not as many as in the pass before, which takes
    300 to 500 us with one or two layers. A draft has two such passes: its first one reads what was accepted.
    Seven more rows take 30 us of a small model. Other than one sequence's few rows, passes stay as they are.
    """
    if len(batch) > 1 or not is_short_chain(batch[0]):
        return 0
    return max(0, REPEATED_ROWS - len(batch[0].tokens))

"""Which rows and blocks a pass of VerifyAttention has, as its one input `verify_tables`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_NO_PARENTS = np.zeros(0, np.int32)


def pack_tables(
    subsequence_begins: NDArray[np.int32],
    verify_past_lens: NDArray[np.int32],
    verify_block_indices: NDArray[np.int32],
    verify_block_indices_begins: NDArray[np.int32],
    verify_parents: NDArray[np.int32] = _NO_PARENTS,
) -> NDArray[np.int32]:
    """The tables, i32 each (see README.md), behind the numbers of sequences and of parents.

    The plugin takes some 4 microseconds for every input of every layer, so they are one input.

    Raises:
        ValueError: the tables differ in their number of sequences.
    """
    sequences = len(verify_past_lens)
    for name, begins in (
        ("subsequence_begins", subsequence_begins),
        ("verify_block_indices_begins", verify_block_indices_begins),
    ):
        if len(begins) != sequences + 1:
            raise ValueError(
                f"{name} holds {len(begins)} values, expected {sequences + 1}: one more than verify_past_lens"
            )
    lengths = np.array([sequences, len(verify_parents)], np.int32)
    return np.concatenate(
        [
            lengths,
            subsequence_begins,
            verify_past_lens,
            verify_block_indices_begins,
            verify_parents,
            verify_block_indices,
        ]
    )


def pack_chain(rows: int, past: int, blocks: NDArray[np.int32]) -> NDArray[np.int32]:
    """The tables of one sequence of rows that follow each other, which most passes have."""
    return np.concatenate([np.array([1, 0, 0, rows, past, 0, len(blocks)], np.int32), blocks])


def unpack_tables(tables: NDArray[np.int32]) -> list[NDArray[np.int32]]:
    """What `pack_tables` packed: `subsequence_begins`, `verify_past_lens`, `verify_block_indices_begins`,
    `verify_parents` and `verify_block_indices`.
    """
    sequences, parents = (int(length) for length in tables[:2])
    lengths = (2, sequences + 1, sequences, sequences + 1, parents)
    return np.split(tables, np.cumsum(lengths))[1:]

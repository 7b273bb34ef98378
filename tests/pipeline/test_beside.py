"""What is made beside something else: once, and its errors come where it is asked for."""

from __future__ import annotations

import threading

import pytest

from ovspec.pipeline.beside import Beside


def test_it_is_made_once_in_another_thread() -> None:
    made: list[threading.Thread] = []
    beside = Beside(lambda: made.append(threading.current_thread()))
    assert not made
    for _ in range(2):
        beside.begin()
        beside.result()
    assert made != [threading.current_thread()]
    assert len(made) == 1


def test_it_is_made_where_nobody_began_it() -> None:
    assert Beside(lambda: 5).result() == 5


def test_its_errors_come_with_the_result() -> None:
    def fails() -> None:
        raise ValueError("no tokenizer")

    beside = Beside(fails)
    beside.begin()
    with pytest.raises(ValueError, match="no tokenizer"):
        beside.result()

"""Requests with a common beginning go to a replica that has read it."""

from __future__ import annotations

from ovspec.serve.cluster.prefixes import Readers, prefixes


def test_prefixes_are_those_of_the_beginning() -> None:
    tokens = list(range(300))
    found = prefixes(tokens)
    assert len(found) == 4  # 256, 128, 64, 32
    assert prefixes(tokens[:130]) == found[1:] and prefixes(tokens[:31]) == []
    other = prefixes([*tokens[:100], -1, *tokens[101:]])
    assert other[2:] == found[2:] and not {*other[:2]} & {*found}


def test_the_longest_beginning_decides_unless_its_reader_is_busy() -> None:
    readers, tokens = Readers(), list(range(200))
    loads = {"a": 0, "b": 0, "c": 0}
    assert readers.best(prefixes(tokens), loads) == set()
    readers.add(prefixes(tokens), "a")
    readers.add(prefixes(tokens[:70]), "b")
    assert readers.best(prefixes(tokens), loads) == {"a"}
    assert readers.best(prefixes(tokens[:70]), loads) == {"a", "b"}
    assert readers.best(prefixes(tokens), {**loads, "a": 3}) == {"a"}
    assert readers.best(prefixes(tokens), {**loads, "a": 4}) == {"b"}
    assert readers.best(prefixes(tokens), {"c": 0}) == set()  # those that read it have ended

"""Hostile values of JSON, and changes of values and bytes."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, -0.0, 1, -1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 100, 127, 128, 255, 256, 257, 1023, 4095,
    4096, 4097,
    65535, 65536, 2**24 + 1, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1,
    2**64 - 1,
    2**64, 10**30, -(10**30), 0.1, 0.5, 0.999999, 1.0000001, 1.5, 2.0, 1e-9, 1e-38, 1e-46, 5e-324, 1e38,
    3.5e38, 1e308,
    -1e308, -0.5, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TEXTS = (
    "", " ", "  ", "a", "Once", "\n", "\r\n", "\t", "\x00", "\x7f", "\u2028", "\ufeff", "\ufffd", "\ud800",
    "\udfff\ud800",
    "é", "e\u0301", "\u200d", "\U0001f469\u200d\U0001f467", "\U0001d54f", "日本", "<s>", "</s>",
    "<|endoftext|>", "<|im_start|>",
    "<unk>",
    "{{ 7*7 }}",
    "{% for x in y %}", "null", "true", "NaN", "-1", "../..", "/", "/etc/passwd", "%s%n", "'", '"', "\\",
    "[]", "f32",
    "u8", "auto", "default", "none", "max_tokens", "a" * 300, "\n" * 100, "ab" * 2000,
)  # fmt: skip


def hostile(chance: random.Random, depth: int = 0) -> Any:
    """A value of any type."""
    kind = chance.random()
    if kind < 0.4:
        return chance.choice(NUMBERS)
    if kind < 0.7:
        return chance.choice(TEXTS)
    if kind < 0.82 or depth > 2:
        return chance.choice((None, True, False, [], {}, [[]], [None], {"": None}))
    if kind < 0.9:
        return [hostile(chance, depth + 1) for _ in range(chance.choice((1, 2, 3, 17)))]
    if kind < 0.98:
        return {chance.choice(TEXTS): hostile(chance, depth + 1) for _ in range(chance.choice((1, 2, 5)))}
    return nested(chance.choice((10, 100, 250)), chance)


def nested(levels: int, chance: random.Random) -> Any:
    """Lists or objects in each other."""
    value: Any = 1
    as_list = chance.random() < 0.5
    for _ in range(levels):
        value = [value] if as_list else {"a": value}
    return value


def places(value: Any, most: int = 400) -> list[tuple[Any, Any]]:
    """Containers and keys of the values inside a value, at most so many."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(found) < most:
        container = waiting.pop()
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for key, entry in list(items)[:most]:
            found.append((container, key))
            if isinstance(entry, dict | list):
                waiting.append(entry)
    return found


def change(value: Any, chance: random.Random) -> Any:
    """The JSON value with one change inside; its containers are changed in place."""
    known = places(value) if isinstance(value, dict | list) else []
    if not known or chance.random() < 0.02:
        return hostile(chance)
    container, key = chance.choice(known)
    kind = chance.random()
    if kind < 0.25:
        container[key] = hostile(chance)
    elif kind < 0.35:
        del container[key]
    elif kind < 0.45 and isinstance(container, dict):
        container[chance.choice(TEXTS) if chance.random() < 0.5 else f"{key}{chance.choice(TEXTS)}"] = (
            container[key]
        )
    elif kind < 0.45:
        container[key:key] = [container[key]] * chance.choice((1, 2, 50))
    elif kind < 0.55:
        other, its = chance.choice(known)
        # Not into itself: a value may hold no circle.
        container[key] = json.loads(json.dumps(other[its]))
    else:
        container[key] = near(container[key], chance)
    return value


def near(value: Any, chance: random.Random) -> Any:
    """A value that is nearly the same."""
    if isinstance(value, bool) or value is None:
        return chance.choice((True, False, None, 0, 1, "true"))
    if isinstance(value, int | float):
        try:
            changed = (value + 1, value - 1, -value, value * 2, value / 2, float(value), str(value), [value])
            return chance.choice(changed)
        except OverflowError:
            return chance.choice(NUMBERS)
    if isinstance(value, str):
        at = chance.randrange(len(value) + 1)
        inserted = chance.choice(TEXTS)
        return chance.choice(
            (
                value[:at] + inserted + value[at:],
                value[:at],
                value[at:],
                value.upper(),
                value * 2,
                [value],
                {},
            )
        )
    if isinstance(value, list):
        return chance.choice(
            (value * 2, value * 40, value[::-1], [value], value[:1], dict.fromkeys(map(str, value)))
        )
    return chance.choice((list(value), [value], {"": value}, {}))


_WORDS = (b"\x00", b"\xff", b"\x7f", b"\x80", b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\\u",
b"\\ud800", b"-",
          b"e", b"E9", b".", b"0", b"9" * 20, b"\xef\xbb\xbf", b"\xc0\x80", b"\xed\xa0\x80",
          b"\xf4\x90\x80\x80", b"NaN",
          b"Infinity", b"null", b"\n", b"\r", b"\x00" * 8, b"[" * 3000, b'{"a":' * 3000)  # fmt: skip
_SIZES = (
    0,
    1,
    7,
    8,
    9,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**63 - 1,
    2**64 - 1,
)


def change_bytes(data: bytes, chance: random.Random) -> bytes:
    """The bytes with one change."""
    if not data:
        return chance.choice(_WORDS)
    # Most formats say at their beginning what follows: it is changed more often than the rest.
    reach = len(data) if chance.random() < 0.6 else min(len(data), 64)
    at = chance.randrange(reach)
    kind = chance.randrange(8)
    if kind == 0:
        return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + chance.randbytes(1) + data[at + 1 :]
    if kind == 2:
        return data[:at] + chance.choice(_WORDS) + data[at:]
    if kind == 3:
        return data[:at] + data[at + chance.choice((1, 2, 4, 8, 100)) :]
    if kind == 4:
        return data[:at]
    if kind == 5:
        end = at + chance.choice((1, 4, 16, 256))
        return data[:end] + data[at:end] * chance.choice((1, 2, 20)) + data[end:]
    size = chance.choice(_SIZES)
    if kind == 6:  # a length that is none
        form = chance.choice(("<Q", "<I", "<H"))
        packed = struct.pack(form, size & (2 ** (8 * struct.calcsize(form)) - 1))
        return data[:at] + packed + data[at + len(packed) :]
    return data[:at] + str(size).encode() + data[at + chance.choice((0, 1, 2)) :]


def dumps(value: Any, chance: random.Random) -> bytes:
    """A value as JSON, in one of its spellings."""
    text = json.dumps(value, ensure_ascii=chance.random() < 0.7)
    return text.encode("utf-8", "surrogatepass")


def is_larger(value: Any, most: int) -> bool:
    """Whether a value has more than so many characters and entries: changes may double it again and again."""
    waiting, left = [value], most
    while waiting and left >= 0:
        one = waiting.pop()
        if isinstance(one, dict):
            left -= sum(len(key) + 1 for key in one)
            waiting += one.values()
        elif isinstance(one, list):
            left -= len(one)
            waiting += one if left >= 0 else ()
        else:
            left -= len(one) if isinstance(one, str) else 1
    return left < 0


def smaller_values(value: Any) -> list[Any]:
    """Values with one part left out or made shorter."""
    found: list[Any] = []
    if isinstance(value, dict):
        found += [{k: v for k, v in value.items() if k != left} for left in value]
        found += [{**value, key: small} for key, entry in value.items() for small in smaller_values(entry)]
    elif isinstance(value, list):
        found += [value[: len(value) // 2], value[len(value) // 2 :]] if len(value) > 2 else []
        found += [value[:at] + value[at + 1 :] for at in range(min(len(value), 20))]
        found += [
            [*value[:at], small, *value[at + 1 :]]
            for at in range(min(len(value), 20))
            for small in smaller_values(value[at])
        ]
    elif isinstance(value, str) and len(value) > 1:
        found += [value[: len(value) // 2], value[len(value) // 2 :], value[1:], value[:-1]]
    return found


def smaller_bytes(data: bytes) -> list[bytes]:
    """Bytes with a part left out."""
    found: list[bytes] = []
    step = len(data) // 2
    while step >= 1 and len(found) < 200:
        found += [data[:at] + data[at + step :] for at in range(0, len(data), step)][:60]
        step //= 2
    return found

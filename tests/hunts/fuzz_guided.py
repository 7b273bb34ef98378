"""Files again, guided by coverage: inputs that reach new code of ovspec are changed further, by Atheris.

An input is a line of JSON that says where it belongs, and the bytes of the file. The changes are those of
the hunt `files`.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import random
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ovspec", "ovspec_models"]):
    from hunts.fuzz_files import ManyFiles, change_file

from hunts.fuzz_hunt import Child, Given, chance_of
from hunts.fuzz_readers import READERS

# Inputs that begin, and bytes that an input may have.
_FIRST, _MOST_BYTES = 300, 40_000


class Guided(ManyFiles):
    """The hunt; `run` takes the place of a child's loop."""

    def run(self, child: Child, seed: int, start: int, count: int, seconds: float) -> None:
        """Let Atheris choose what is tried next, until the process ends."""
        numbers = itertools.count(start)

        def attempt(data: bytes) -> None:
            number = next(numbers)
            if not child.goes_on(number, start, count, seconds):
                child.end(number, start)
                os._exit(0)  # Atheris does not return
            if (given := unpack(data)) is not None:
                child.attempt(number, given)

        with tempfile.TemporaryDirectory() as corpus:
            for number in range(_FIRST):
                data = pack(self.make(chance_of(seed, "guided", number)))
                (Path(corpus) / str(number)).write_bytes(data)
            words = [f"-seed={seed % 2**31 + 1}", f"-max_len={_MOST_BYTES}", "-verbosity=0", corpus]
            atheris.Setup([sys.argv[0], *words], attempt, custom_mutator=mutate)
            atheris.Fuzz()


def pack(given: Given) -> bytes:
    """An input as bytes."""
    place = json.dumps([given["reader"], given["file"]]).encode()
    return place + b"\n" + base64.b64decode(given["data"])


def unpack(packed: bytes) -> Given | None:
    """An input of bytes, if they are one."""
    place, _, data = packed.partition(b"\n")
    try:
        reader, file = json.loads(place)
        if file not in READERS[reader].changed:
            return None
    except (ValueError, TypeError, LookupError):
        return None  # Atheris tries bytes of its own, too
    return {"reader": reader, "file": file, "data": base64.b64encode(data).decode()}


def mutate(packed: bytes, most: int, seed: int) -> bytes:
    """An input with changes, of so many bytes at most."""
    place, _, data = packed.partition(b"\n")
    given = unpack(packed)
    if given is None:
        return packed[:most]
    return (place + b"\n" + change_file(given["file"], data, random.Random(seed)))[:most]

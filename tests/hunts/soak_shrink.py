"""Leaves out of a list of requests whatever a problem does not need."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from hunts.soak_requests import Asked, Load

Fails = Callable[[Load], bool]


def shrink(load: Load, fails: Fails, seconds: float) -> Load:
    """The smallest list found in this time for which `fails` is still true."""
    ends = time.monotonic() + seconds
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(load):
            if time.monotonic() > ends:
                return load
            if smaller != load and fails(smaller):
                load, changed = smaller, True
                break
    return load


def _smaller(load: Load) -> Iterator[Load]:
    """The list with something left out, the largest parts first."""
    yield replace(load, threads=False)
    requests, size = load.requests, len(load.requests) // 2
    while size:
        for begin in range(0, len(requests), size):
            yield replace(load, requests=requests[:begin] + requests[begin + size :])
        size //= 2
    yield replace(load, fault_at=0)
    yield replace(load, cache_tokens=None)
    yield replace(load, prefix=False)
    yield replace(load, seqs=8, rows=512)
    for place, asked in enumerate(requests):
        for simpler in _simpler(asked):
            yield replace(load, requests=(*requests[:place], simpler, *requests[place + 1 :]))


def _simpler(asked: Asked) -> Iterator[Asked]:
    yield replace(asked, arrives=0)
    yield replace(asked, fault="")
    yield replace(asked, leaves=None)
    yield replace(asked, drafts={})
    yield replace(asked, verify="dense")
    yield replace(asked, ask=replace(asked.ask, logprobs=None))
    yield replace(asked, ask=replace(asked.ask, index=0))
    for name in asked.ask.options:
        if name not in ("max_new_tokens", "apply_chat_template", "rng_seed"):
            options = {key: value for key, value in asked.ask.options.items() if key != name}
            yield replace(asked, ask=replace(asked.ask, options=options))
    longest = asked.ask.options["max_new_tokens"]
    if longest > 1 and longest // 2 >= asked.ask.options.get("min_new_tokens", 0):
        options = {**asked.ask.options, "max_new_tokens": longest // 2}
        yield replace(asked, ask=replace(asked.ask, options=options))
    prompt = asked.ask.prompt
    if len(prompt) > 40 and not asked.fault:
        yield replace(asked, ask=replace(asked.ask, prompt=prompt[len(prompt) // 2 :]))

"""Load on a server: requests at a fixed rate, or a fixed number of requests at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ovspec.bench.serve_client import ServeClient, Timing
from ovspec.bench.serve_report import ServeReport

# Words of the random prompts.
_WORDS = (
    *("river", "stone", "light", "garden", "engine", "paper", "window", "morning", "quiet", "market"),
    *("bridge", "winter", "letter", "yellow", "music", "harbour", "forest", "question", "silver", "road"),
)


@dataclass(slots=True)
class ServeBench:
    """One measurement of a server.

    Attributes:
        model: the name in the requests.
        prompts: texts, taken in turn.
        num_prompts: requests in all.
        concurrency: requests at a time, at most.
        request_rate: requests that come per second, at random times (Poisson); one that comes when
            `concurrency` others run begins when one of them has ended. `None`: all come at once.
        extra: further fields of the requests.
    """

    client: ServeClient
    model: str
    prompts: Sequence[str]
    num_prompts: int
    concurrency: int
    request_rate: float | None
    max_tokens: int
    chat: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def num_steps(self) -> int:
        """Number of times that `run` calls its argument."""
        return self.num_prompts

    def run(self, advance: Callable[[str], None] = lambda step: None) -> ServeReport:
        """Send the requests, after one that does not count.

        Raises:
            ValueError: the server refuses even that one.
        """
        first = self._ask(self.num_prompts)  # not the prompt of a request that counts, if there is one more
        if first.error:
            raise ValueError(f"the server answers with an error: {first.error}")
        times, begin = random.Random(self.seed), time.perf_counter()
        with ThreadPoolExecutor(self.concurrency) as pool:
            pending, timings = [], []
            try:
                for number in range(self.num_prompts):
                    if self.request_rate is not None:
                        time.sleep(times.expovariate(self.request_rate))
                    pending.append(pool.submit(self._ask, number))
                for number, one in enumerate(pending, 1):
                    advance(f"request {number}")
                    timings.append(one.result())
            except BaseException:  # Ctrl-C: only what is on its way is waited for
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return ServeReport(
            self.model, self.concurrency, self.request_rate, timings, time.perf_counter() - begin
        )

    def _ask(self, number: int) -> Timing:
        prompt = self.prompts[number % len(self.prompts)]
        body: dict[str, Any] = {"model": self.model, "max_tokens": self.max_tokens, **self.extra}
        if self.chat:
            messages = [{"role": "user", "content": prompt}]
            return self.client.measure("/v1/chat/completions", {**body, "messages": messages})
        return self.client.measure("/v1/completions", {**body, "prompt": prompt})


def random_prompts(count: int, words: int, seed: int) -> list[str]:
    """Prompts of random words; no two begin alike, so that the server's prefix cache finds nothing."""
    chosen = random.Random(seed)
    return [f"{number} " + " ".join(chosen.choices(_WORDS, k=words)) for number in range(count)]

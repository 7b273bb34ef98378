"""Many requests at once against OpenVINO GenAI: `python tests/serve/against_genai.py --users 16`.

Random weights of a real shape, the same IR for both, keys and values in u8. Both engines read the same random
prompts, then decode; a round of one follows a round of the other. Drafts follow a trace: of every four tokens
three are accepted. Prints tokens/s of whole answers, prompts included unless `--decode`, and the ratio to the
first mode.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

sys.path.insert(0, str(Path(__file__).parents[1]))

from serve.measured_model import parser, source_of

import ovspec
from ovspec.bench.footprint import folder_of
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.passes.tables import Rows

PROPERTIES = {"KV_CACHE_PRECISION": "u8"}
VOCABULARY = 10_000
SPARSE = ovspec.SparseVerify(L0=1024, rho=0.1)
MODES: dict[str, tuple[dict[str, Any], Any]] = {
    "plain": ({}, "dense"),
    "drafts": ({"num_assistant_tokens": 4, "num_assistant_tokens_schedule": "constant"}, "dense"),
    "auto": ({"num_assistant_tokens_schedule": "auto"}, "dense"),
    "sparse": ({"num_assistant_tokens_schedule": "auto"}, SPARSE),
    "commit": ({"num_assistant_tokens_schedule": "auto"}, ovspec.CommitVerify(SPARSE)),
}


class Trace:
    """Proposes random tokens, and lets verification accept three of every four."""

    def __init__(self, accepted: int = 3) -> None:
        self._accepted, self._random = accepted, np.random.default_rng(0)

    def propose(self, context: Any, k: int) -> tuple[list[int], None, None]:
        return self._random.integers(10, VOCABULARY, min(k, 4)).tolist(), None, None

    def follow(
        self, forward: Callable[[list[Rows]], Any], commits: Callable[[], bool]
    ) -> Callable[[list[Rows]], Any]:
        """`forward` with the logits of a trace."""

        def traced(batch: list[Rows]) -> Any:
            result, begin = forward(batch), 0
            logits = result.logits
            for rows in batch:
                drafted = rows.sampled - 1
                if drafted > 0:
                    draft = rows.tokens[-drafted:]
                    confirms = commits() and rows.is_dense
                    accepted = drafted if confirms else min(self._accepted, drafted)
                    logits[begin + np.arange(accepted), draft[:accepted]] = 1e6
                    if accepted < drafted:
                        logits[begin + accepted, (draft[accepted] + 1) % VOCABULARY] = 1e6
                begin += rows.sampled
            return result

        return traced


class Ours:
    """ovspec's engine."""

    def __init__(self, folder: Path, verify: Any, drafts: bool) -> None:
        trace = Trace() if drafts else None
        self.pipeline = ovspec.LLMPipeline(
            folder, "CPU", drafter=trace or "none", verify=verify, **PROPERTIES
        )
        runner = self.pipeline.runner
        if trace:
            commits = isinstance(verify, ovspec.CommitVerify)
            runner.forward = trace.follow(runner.forward, lambda: commits)  # type: ignore[method-assign]
        self.engine: LLMEngine = self.pipeline.engine.engine

    def start(self, prompts: list[list[int]], options: dict[str, Any], tokens: int) -> None:
        self.engine.target.blocks.forget()
        settings = self.pipeline.settings(max_new_tokens=tokens, ignore_eos=True, **options)
        for number, prompt in enumerate(prompts):
            self.engine.add_request(Request(f"{number}", prompt, settings))

    def step(self) -> dict[str, int]:
        return {output.request_id: len(output.token_ids) for output in self.engine.step()}


class Theirs:
    """OpenVINO GenAI's continuous batching."""

    def __init__(self, folder: Path, cache_gb: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.enable_prefix_caching = cache_gb, False
        self.pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", PROPERTIES)
        self.handles: list[Any] = []

    def start(self, prompts: list[list[int]], options: dict[str, Any], tokens: int) -> None:
        config = genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True)
        self.handles = [
            self.pipeline.add_request(number, ov.Tensor(np.array([prompt], np.int64)), config)
            for number, prompt in enumerate(prompts)
        ]

    def step(self) -> dict[str, int]:
        self.pipeline.step()
        found = {}
        for number, handle in enumerate(self.handles):
            if handle.can_read():
                found[f"{number}"] = sum(len(output.generated_ids) for output in handle.read().values())
        return found


def measure(
    engine: Any, prompts: list[list[int]], options: dict[str, Any], tokens: int, decode: bool
) -> float:
    """Tokens/s of all answers, from the arrival of the prompts or the last one's first token to the end."""
    begin, made, first, seen = time.perf_counter(), 0, 0, set[str]()
    engine.start(prompts, options, tokens)
    while made < tokens * len(prompts):
        new = engine.step()
        made += sum(new.values())
        if decode and len(seen) < len(prompts):
            seen.update(new)
            begin, first = time.perf_counter(), made
    return (made - first) / (time.perf_counter() - begin)


def main() -> None:
    """Measure, and print JSON."""
    arguments = parser(__doc__)
    arguments.add_argument("--users", type=int, default=16)
    arguments.add_argument("--context", type=int, default=512)
    arguments.add_argument("--tokens", type=int, default=256, help="of an answer")
    arguments.add_argument(
        "--decode", action="store_true", help="count from the last prompt's first token on"
    )
    arguments.add_argument("--rounds", type=int, default=1)
    arguments.add_argument("--modes", nargs="+", default=["genai", "plain"], choices=["genai", *MODES])
    given = arguments.parse_args()
    random = np.random.default_rng(1)
    prompts = random.integers(10, VOCABULARY, (given.users, given.context)).tolist()
    cache_gb = 1 + given.users * (given.context + given.tokens) * 70_000 // 2**30
    results: dict[str, list[float]] = {mode: [] for mode in given.modes}
    with folder_of(source_of(given)) as folder:
        engines: dict[str, Any] = {}
        for mode in given.modes:
            verify = None if mode == "genai" else MODES[mode][1]
            engines[mode] = (
                Theirs(folder, cache_gb) if verify is None else Ours(folder, verify, mode != "plain")
            )
        for _ in range(given.rounds):
            for mode in given.modes:
                options = MODES.get(mode, ({}, None))[0]
                results[mode].append(measure(engines[mode], prompts, options, given.tokens, given.decode))
                print(mode, results[mode][-1], file=sys.stderr, flush=True)
    first = median(results[given.modes[0]])
    report = {
        mode: {"tokens_s": median(runs), "ratio": median(runs) / first, "runs": runs}
        for mode, runs in results.items()
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

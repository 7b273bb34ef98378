"""Latency between tokens while a long prompt is read: `python tests/serve/prompt_latency.py --prompt 8192`.

Some requests decode with an engine. The times between their tokens are taken without and while the engine
reads a long prompt beside them, and compared at the 99th percentile, over the whole prompt and by position.
Random weights of a real shape.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

import ovspec
from ovspec.bench.footprint import folder_of
from ovspec.bench.source import ModelSource
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request

VOCABULARY = 10_000
_PARTS = 4


def gaps_of(engine: LLMEngine, running: int, until: str, most: int) -> list[float]:
    """Times between steps that brought every running request a token, until another one's first token."""
    gaps, last = list[float](), time.perf_counter()
    while len(gaps) < most:
        outputs = {output.request_id: output for output in engine.step()}
        if sum(bool(output.token_ids) for name, output in outputs.items() if name != until) < running:
            raise SystemExit("a running request got no token, or has ended; raise --tokens")
        now = time.perf_counter()
        gaps.append(now - last)
        last = now
        if until in outputs:
            break
    return gaps


def main() -> None:
    """Measure, and print JSON."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--model", type=Path, help="a folder in place of a shape")
    arguments.add_argument("--shape", default="qwen3-0.6b")
    arguments.add_argument("--layers", type=int)
    arguments.add_argument("--users", type=int, default=4)
    arguments.add_argument("--context", type=int, default=512)
    arguments.add_argument("--prompt", type=int, default=8192)
    arguments.add_argument("--tokens", type=int, default=4096, help="of a running answer, at most")
    given = arguments.parse_args()
    random = np.random.default_rng(1)
    shape = given.shape, given.layers, None, "int8"
    with folder_of(
        ModelSource.from_folder(given.model) if given.model else ModelSource.from_shape(*shape)
    ) as folder:
        pipeline = ovspec.LLMPipeline(folder, "CPU", drafter="none", KV_CACHE_PRECISION="u8")
        engine = pipeline.engine.engine
        settings = pipeline.settings(max_new_tokens=given.tokens, ignore_eos=True)
        for user in range(given.users):
            prompt = random.integers(10, VOCABULARY, given.context).tolist()
            engine.add_request(Request(f"{user}", prompt, settings))
        while len(engine.step()) < given.users:
            continue
        gaps_of(engine, given.users, "", 20)  # warms up
        without = gaps_of(engine, given.users, "", 100)
        engine.add_request(Request("long", random.integers(10, VOCABULARY, given.prompt).tolist(), settings))
        beside = gaps_of(engine, given.users, "long", given.tokens)
        without += gaps_of(engine, given.users, "-", 100)
    before = float(np.percentile(without, 99))
    parts = [float(np.percentile(part, 99)) / before for part in np.array_split(beside, _PARTS)]
    report = {
        "itl_p99_ms_without": 1e3 * before,
        "itl_p50_ms_without": 1e3 * float(np.median(without)),
        "itl_p99_ms_beside": 1e3 * float(np.percentile(beside, 99)),
        "ratio_p99": float(np.percentile(beside, 99)) / before,
        "ratio_p99_by_quarter_of_the_passes": parts,
        "passes": len(beside),
        "seconds_to_first_token": sum(beside),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

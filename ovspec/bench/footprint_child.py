"""One start of one engine in its own process; run by its path, so that it imports nothing else."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def resident() -> dict[str, int]:
    """Resident bytes of this process: anonymous memory (`anon`) and mapped files (`file`)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":") for line in lines if line.startswith(("RssAnon", "RssFile")))
    return {name[3:].lower(): 1024 * int(value.split()[0]) for name, value in fields.items()}


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Times of `task["engine"]` to its first token, and its memory, also behind `task["context"]` tokens."""
    import numpy as np
    import openvino as ov
    import openvino_genai

    arguments, pipeline_class = ("CPU",), openvino_genai.LLMPipeline
    if task["engine"] == "ovspec":
        import ovspec

        pipeline_class = ovspec.LLMPipeline
    started, cpu = time.perf_counter(), time.process_time()
    pipeline = pipeline_class(task["model"], *arguments, **task["properties"])
    figures = {"start_s": time.perf_counter() - started, "loaded_anon_bytes": resident()["anon"]}

    def generate(tokens: int, new_tokens: int) -> None:
        ids = np.random.default_rng(0).integers(1, task["vocab_size"], (1, tokens)).astype(np.int64)
        config = openvino_genai.GenerationConfig(max_new_tokens=new_tokens, ignore_eos=True)
        pipeline.generate(ov.Tensor(ids), config)

    generate(1, 1)
    figures["first_token_s"] = time.perf_counter() - started
    figures["cpu_s"] = time.process_time() - cpu
    if task["context"]:
        generate(task["context"], task["max_new_tokens"])
    held = resident()
    return {**figures, "anon_bytes": held["anon"], "file_bytes": held["file"]}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))

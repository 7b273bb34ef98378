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
    """Start `task["engine"]`, generate after `task["context"]` tokens, and print times and memory."""
    import numpy as np
    import openvino as ov
    import openvino_genai

    arguments, pipeline_class = ("CPU",), openvino_genai.LLMPipeline
    if task["engine"] == "ovspec":
        import ovspec

        pipeline_class = ovspec.LLMPipeline
    started, cpu = time.perf_counter(), time.process_time()
    pipeline = pipeline_class(task["model"], *arguments, **task["properties"])
    figures = {
        "start_s": time.perf_counter() - started,
        "start_cpu_s": time.process_time() - cpu,
        "loaded_anon_bytes": resident()["anon"],
    }
    ids = np.random.default_rng(0).integers(1, task["vocab_size"], (1, task["context"]))
    config = openvino_genai.GenerationConfig(max_new_tokens=task["max_new_tokens"], ignore_eos=True)
    started = time.perf_counter()
    pipeline.generate(ov.Tensor(ids.astype(np.int64)), config)
    figures["generate_s"] = time.perf_counter() - started
    held = resident()
    return {**figures, "anon_bytes": held["anon"], "file_bytes": held["file"]}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))

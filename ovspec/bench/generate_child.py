"""One pipeline in its own process, which answers the prompts that come by line; see `bench/generate.py`.

It imports nothing but the public names of ovspec and openvino_genai, so that the Python of another install,
with another version of ovspec, can run its text too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def started(task: dict[str, Any]) -> Any:
    """The pipeline of `task`: its engine, model, draft_model, drafter, verify and properties."""
    if task["engine"] == "genai":
        import openvino_genai

        return openvino_genai.LLMPipeline(task["model"], "CPU", **task["arguments"])
    import ovspec

    arguments = dict(task["arguments"])
    if "draft_model" in arguments:
        arguments["draft_model"] = ovspec.draft_model(arguments["draft_model"])
    if arguments.get("drafter") == "none" and "none" not in ovspec.drafters.NAMES:
        del arguments["drafter"]  # a version that decodes plainly where nobody is named
    return ovspec.LLMPipeline(task["model"], "CPU", **arguments)


def encoded(tokenizer: Any, prompt: dict[str, Any]) -> Any:
    """The token ids of a prompt, as a chat where the model has a template for one."""
    messages = prompt.get("messages")
    if messages is None and not tokenizer.chat_template:
        return tokenizer.encode(prompt["prompt"])
    messages = messages or [{"role": "user", "content": prompt["prompt"]}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


def answer(pipeline: Any, tokenizer: Any, asked: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Answer one prompt greedily: its tokens, seconds, passes of the target and drafted tokens."""
    inputs = encoded(tokenizer, asked["prompt"])
    began = time.perf_counter()
    result = pipeline.generate(inputs, max_new_tokens=asked["max_new_tokens"], do_sample=False, **config)
    seconds = time.perf_counter() - began
    metrics = result.perf_metrics
    first, raw = metrics.get_ttft().mean / 1000, metrics.raw_metrics
    # Where GenAI drafts it notes a time per step; ovspec notes its passes.
    passes = len(getattr(raw, "verify_durations", raw.m_new_token_times[1:]))
    passes += len(getattr(raw, "commit_durations", ()))
    tokens = [int(token) for token in result.tokens[0]]
    return {
        "tokens": tokens,
        "prompt_tokens": int(inputs.input_ids.shape[1]),
        "first_s": first,
        # What follows a first token that is the last one is no decoding.
        "decode_s": seconds - first if len(tokens) > 1 else 0.0,
        "passes": passes,
        "proposed": sum(getattr(raw, "proposed", ())),
        "accepted": sum(getattr(raw, "accepted", ())),
    }


def main() -> None:
    """Answer the prompts of standard input, one JSON object a line; the first line describes the pipeline."""
    # `python -c` looks in the current folder first: a checkout there would hide what is installed.
    sys.path[:] = [place for place in sys.path if place]
    # What libraries print goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(body: dict[str, Any]) -> None:
        answers.write(json.dumps(body) + "\n")
        answers.flush()

    task = json.loads(sys.stdin.readline())
    try:
        pipeline = started(task)
        tokenizer = pipeline.get_tokenizer()
        say({})
        for line in sys.stdin:
            say(answer(pipeline, tokenizer, json.loads(line), task["config"]))
    except Exception as error:
        say({"error": " ".join(str(error).split())})


if __name__ == "__main__":
    main()

"""Write a model's greedy answers to prompts, as `ovspec train-head` reads them: prompt and completion.

    python tools/smollm2/answers.py --model DIR --prompts prompts.jsonl --out answers.jsonl

Prompts pass the model's chat template. A file that is there already is gone on with.
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from openvino_genai import GenerationFinishReason

import ovspec

TOGETHER = 128


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--max-new-tokens", type=int, default=144)
    arguments = parser.parse_args()
    pipeline = ovspec.LLMPipeline(arguments.model, "CPU", drafter="none")
    tokenizer = pipeline.get_tokenizer()
    prompts = [json.loads(line) for line in arguments.prompts.read_text(encoding="utf-8").splitlines()]
    done = len(arguments.out.read_text(encoding="utf-8").splitlines()) if arguments.out.is_file() else 0
    began = time.monotonic()
    for begin in range(done, len(prompts), TOGETHER):
        part = prompts[begin : begin + TOGETHER]
        chats = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": one["prompt"]}], add_generation_prompt=True
            )
            for one in part
        ]
        asked = [one["prompt"] for one in part]  # the pipeline applies the template as well
        told = pipeline.generate(asked, max_new_tokens=arguments.max_new_tokens)
        with arguments.out.open("a", encoding="utf-8") as file:
            for one, chat, text, reason in zip(part, chats, told.texts, told.finish_reasons, strict=True):
                end = tokenizer.get_eos_token() if reason == GenerationFinishReason.STOP else ""
                line = {"category": one["category"], "prompt": chat, "completion": text + end}
                file.write(json.dumps(line) + "\n")
        speed = (begin + len(part) - done) / (time.monotonic() - began)
        print(f"{begin + len(part)} of {len(prompts)} answers, {speed:.1f} a second", flush=True)


if __name__ == "__main__":
    main()

"""Measure who drafts for the demo target: tokens per pass and time of a draft, on held-out text.

python tools/demo/drafts.py --data PACKED

Every combination answers the same prompts in turn, greedily, and must give the same text.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import numpy as np
import openvino as ov

import ovspec
from ovspec_models import demo_pair_path

PROMPT_TOKENS, NEW_TOKENS = 64, 120
SHAPES = {
    "chain of 4": {"num_assistant_tokens": 4},
    "tree of 16": {"num_assistant_tokens": 16, "tree_depth": 6, "branching_factor": 4},
}


def main() -> None:
    """Print a row for each kind of text and way of drafting."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="what prepare.py wrote")
    parser.add_argument("--prompts", type=int, default=30, help="of each kind of text")
    arguments = parser.parse_args()
    folder = demo_pair_path()
    pipelines = {
        name: ovspec.LLMPipeline(
            folder, "CPU", draft_model=ovspec.draft_model(folder / name), drafter="assistant"
        )
        for name in ("draft", "eagle3")
    }
    pipelines["layer_skip"] = ovspec.LLMPipeline(folder, "CPU", drafter="layer_skip")
    print("| text | drafts by | shape | tokens per pass | ms per draft | ms per verification |")
    print("|---|---|---|---|---|---|")
    for path in sorted(arguments.data.glob("*_held.npy")):
        held = np.load(path)
        starts = np.linspace(0, len(held) - PROMPT_TOKENS, arguments.prompts).astype(int)
        prompts = [held[start : start + PROMPT_TOKENS].astype(np.int64) for start in starts]
        found: dict[tuple[str, str], list[list[float]]] = {}
        for prompt in prompts:
            texts = set()
            for name, pipeline in pipelines.items():
                shapes = SHAPES if name != "layer_skip" else {"chain of 4": SHAPES["chain of 4"]}
                for shape, options in shapes.items():
                    answer = pipeline.generate(
                        ov.Tensor(prompt[None]), max_new_tokens=NEW_TOKENS, ignore_eos=True, **options
                    )
                    texts.add(tuple(answer.tokens[0]))
                    raw = answer.perf_metrics.raw_metrics
                    sums = found.setdefault((name, shape), [[], [], []])
                    sums[0] += [accepted + 1 for accepted in raw.accepted_lengths]
                    sums[1] += raw.draft_durations
                    sums[2] += raw.verify_durations
            if len(texts) != 1:
                raise SystemExit(f"{path.name}: the texts of one prompt differ")
        for (name, shape), (tokens, draft, verify) in found.items():
            kind = path.name.removesuffix("_held.npy")
            print(
                f"| {kind} | {name} | {shape} | {np.mean(tokens):.2f} | {np.median(draft) / 1e3:.2f} "
                f"| {np.median(verify) / 1e3:.2f} |"
            )


if __name__ == "__main__":
    main()

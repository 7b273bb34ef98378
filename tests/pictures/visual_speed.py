"""Times verification over thousands of rows of pictures, dense and sparse, on random weights in f32.

`python tests/pictures/visual_speed.py` prints a line for each number of pictures. The passes
of both kinds alternate; what is shown is processor time of one thread, the median of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import process_time
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import tiny_pictures
from pictures.reference import pixels
from settings import F32
from tiny_pictures import export_visual, shapes

import ovspec
from ovspec.cache.cache import CachedSequence
from ovspec.passes.tables import Rows

SIZES = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "initializer_range": 0.02,
    "max_position_embeddings": 32768,
}
SPARSE = ovspec.SparseVerify(L0=256, rho=0.1)
ROWS = 5


def make(folder: Path) -> Path:
    """Qwen2.5-VL with the sizes above and a small part that reads pictures, 256 rows of a picture."""
    tiny = tiny_pictures.TINY_VISUAL["Qwen2.5-VL"]
    made = tiny.make

    def larger(ids: dict[str, int]) -> dict[str, object]:
        given = made(ids)
        rope = {**given["text_config"]["rope_parameters"], "mrope_section": [16, 8, 8]}
        text = {**given["text_config"], **SIZES, "rope_parameters": rope}
        vision = {**given["vision_config"], "out_hidden_size": SIZES["hidden_size"]}
        return {**given, "text_config": text, "vision_config": vision}

    with patch.dict(tiny_pictures.TINY_VISUAL, {"Qwen2.5-VL": replace(tiny, make=larger)}):
        export_visual("Qwen2.5-VL", folder)
    return folder / "ir"


def main() -> None:
    """Make the model, and time both passes behind a growing number of pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, nargs="+", default=[4, 16, 48])
    parser.add_argument("--repeat", type=int, default=15)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pipeline = ovspec.VLMPipeline(
            make(Path(folder)), "CPU", drafter="suffix", verify=SPARSE, **{**F32, "INFERENCE_NUM_THREADS": 1}
        )
        for count in asked.pictures:
            _time(pipeline, count, asked.repeat)


def _time(pipeline: ovspec.VLMPipeline, count: int, repeat: int) -> None:
    prompts, runner = pipeline.picture_prompts, pipeline.runner
    encoded = [prompts.encode(pixels(shapes(448, 448, seed))) for seed in range(count)]
    made = prompts.prompt(prompts.marked("Which is which?", 0, count), encoded, templated=False)
    sequence, tokens = CachedSequence(visual=made.visual), np.array(made.tokens)
    runner.prefill(sequence, tokens, chunk=512)
    rows = np.random.default_rng(0).integers(2, 4000, ROWS)
    budget = SPARSE.budget_blocks(len(tokens), runner.block_size)
    taken: dict[int, list[float]] = {-1: [], budget: []}
    for _ in range(repeat + 1):
        for limit, times in taken.items():
            begin = process_time()
            runner.forward([Rows(sequence, rows, sampled=ROWS, budget=limit)])
            times.append(process_time() - begin)
            sequence.rollback(len(tokens))
    runner.release(sequence)
    dense, sparse = (1000 * statistics.median(times[1:]) for times in taken.values())
    visual = sum(len(picture.rows) for picture in encoded)
    print(
        f"{visual} rows of pictures, {len(tokens)} tokens: dense {dense:.1f} ms, sparse {sparse:.1f} ms of "
        f"{budget} blocks, {dense / sparse:.2f} times as fast"
    )


if __name__ == "__main__":
    main()

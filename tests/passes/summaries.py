"""Whether the summaries of a sequence's blocks are those of its keys."""

from __future__ import annotations

import numpy as np

from ovspec.cache.cache import CachedSequence
from ovspec.runner.model_runner import ModelRunner
from ovspec_ops.key_summary.reference import means, summarise


def check_summaries(runner: ModelRunner, sequence: CachedSequence) -> None:
    """Of all its tokens, in every layer that has some."""
    assert sequence.summarised == sequence.length
    names = [spec.name for spec in runner.cache.specs if spec.name.startswith("key_summary.")]
    assert names
    for name in names:
        keys = runner.cache.tensor(name.replace("summary", "cache")).data[sequence.table]
        got = runner.cache.tensor(name).data[sequence.table]
        for number, (block, found) in enumerate(zip(keys, got, strict=True)):
            tokens, size = min(32, sequence.length - 32 * number), block.shape[-1]
            if tokens <= 0:
                continue
            apart = means(found, size) - means(summarise(block, tokens, size), size)
            # A mean key between two of its 16 numbers may fall to either.
            assert (np.abs(apart) > 1e-4).mean() < 0.01, f"{name}, block {number}"

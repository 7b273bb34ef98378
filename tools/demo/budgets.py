"""Measures how budgets of experts and channels change loss, agreement and acceptance on trained weights.

    python tools/demo/upcycle.py --data PACKED --out new/moe
    ovspec export -m new/moe new/moe-ir --weight-format fp16
    python tools/demo/budgets.py --data PACKED --mixture new/moe-ir

A row of a table is one setting: what a pass of 6 rows reads with it, the loss on held-out stories and sums,
how often its first choice is dense's, and how many tokens a verification of 5 draft tokens yields with the
demo draft.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from documents import Corpus, windows
from numpy.typing import NDArray
from openvino import Core, Model

import ovspec
from ovspec.cache.cache import CachedSequence
from ovspec.calibrate.calibration import ROWS
from ovspec.calibrate.channel_statistics import ChannelStatistics
from ovspec.calibrate.expert_statistics import ExpertStatistics
from ovspec.calibrate.fidelity_meter import FidelityMeter
from ovspec.graphs.compile import read_model
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.expert_budgets import expert_config
from ovspec.operations.ffn_budgets import ffn_config
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import demo_pair_path
from ovspec_models.folder.sparse_verify import SparseVerify

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
STREAMS, LENGTH, DRAFT = ("stories", "sums"), 384, 5
Texts = Sequence[NDArray[np.int64]]
Statistics = TypeVar("Statistics", ExpertStatistics, ChannelStatistics)


def observed(folder: Path, kind: Callable[[Model], Statistics], texts: Texts) -> Statistics:
    """Statistics of passes of 6 rows over training texts."""
    model = read_model(Core(), folder)
    statistics = kind(model)
    runner = ModelRunner(model, "CPU", AttentionConfig(), F32)
    for text in texts:
        cached = CachedSequence()
        for begin in range(0, len(text) - ROWS, ROWS):
            runner.forward([Rows(cached, text[begin : begin + ROWS])])
            if begin:
                statistics.observe(runner)
        runner.release(cached)
    return statistics


def expert_settings(statistics: ExpertStatistics) -> Iterator[tuple[str, SparseVerify]]:
    """Budgets of experts, the largest first."""
    experts, top_k = statistics.layers[0].experts, statistics.layers[0].top_k
    for budget in range(experts - 2, top_k - 1, -2):
        yield f"{budget} of a pass", SparseVerify(expert_budget=budget)
    for mass in (0.97, 0.9, 0.8, 0.7):
        yield f"by layer for {mass:g}", SparseVerify(expert_budget=statistics.budgets(mass))


def channel_settings(statistics: ChannelStatistics) -> Iterator[tuple[str, SparseVerify]]:
    """Densities of channels, the largest first."""
    for density in (0.9, 0.75, 0.5, 0.25):
        yield f"{density:g}", SparseVerify(ffn_density=density)
    for energy in (0.999, 0.99, 0.95, 0.8):
        yield f"by layer for {energy:g}", SparseVerify(ffn_density=statistics.densities(energy))


def print_table(
    title: str, folder: Path, texts: Texts, prompts: list[str], settings: Sequence[tuple[str, SparseVerify]]
) -> None:
    """Measure every setting, and print a row of Markdown as it is known; those of one rule share a graph."""
    print(f"\n{title}\n\n| setting | read | loss | top-1 | KL | tokens a pass |\n|---|---|---|---|---|---|")
    known: dict[object, tuple[FidelityMeter, ovspec.LLMPipeline]] = {}
    draft = ovspec.draft_model(demo_pair_path() / "draft")
    for name, sparse in [("dense", SparseVerify(coverage=1.0)), *settings]:
        rule = sparse.parts
        if rule not in known:
            experts, ffn = expert_config("native", sparse), ffn_config("native", sparse)
            runner = ModelRunner(folder, "CPU", AttentionConfig(), F32, experts=experts, ffn=ffn)
            verify = "dense" if name == "dense" else sparse
            drafting = {"draft_model": draft, "drafter": "assistant"}
            pipeline = ovspec.LLMPipeline(folder, "CPU", **drafting, verify=verify, **F32)
            known[rule] = FidelityMeter(runner, texts, LENGTH // 2), pipeline
        meter, pipeline = known[rule]
        if name != "dense":
            pipeline.verify = sparse
        results = pipeline.generate(prompts, max_new_tokens=64, num_assistant_tokens=DRAFT, ignore_eos=True)
        found = meter.measure(sparse)
        accepted = results.perf_metrics.get_mean_acceptance_length()
        cells = (f"{found.loss:.3f}", f"{found.agreement:.3f}", f"{found.kl:.3f}", f"{accepted:.2f}")
        read = f"{found.experts_read:.1f} experts" if found.experts_read else f"{found.ffn_density:.2f}"
        print("|", " | ".join((name, read, *cells)), "|", flush=True)


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that prepare.py has made")
    parser.add_argument("--mixture", type=Path, help="exported folder of upcycle.py's mixture")
    parser.add_argument("--windows", type=int, default=12, help="held-out texts of each kind")
    arguments = parser.parse_args()
    corpus, target = Corpus.load(arguments.data), demo_pair_path()
    held, seen = (
        [np.array(ids) for name in STREAMS for ids in windows(streams[name], LENGTH, arguments.windows)]
        for streams in (corpus.held, corpus.train)
    )
    tokenizer = ovspec.LLMPipeline(target, "CPU").get_tokenizer()
    prompts = [tokenizer.decode(text[: LENGTH // 4].tolist()) for text in held[::3]]
    if arguments.mixture is not None:
        experts = observed(arguments.mixture, ExpertStatistics, seen)
        settings = list(expert_settings(experts))
        print_table("experts of the mixture", arguments.mixture, held, prompts, settings)
    settings = list(channel_settings(observed(target, ChannelStatistics, seen)))
    print_table("channels of the target", target, held, prompts, settings)


if __name__ == "__main__":
    main()

"""Measure the figures of the documentation: `python docs/figures.py [NAME...]`.

Runs the command of each figure on this machine and writes its table between `<!-- measured: NAME -->` and
`<!-- end -->` in its page, with the processor and the instruction set. Needs ovspec and matplotlib; half an
hour on two cores.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import openvino as ov

from ovspec_models import demo_pair_path
from ovspec_ops import active_isa

DOCS = Path(__file__).parent
IMAGE = DOCS / "images" / "verify.svg"
STORY = DOCS.parent / "ovspec" / "cli" / "demo_prompt.txt"
Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """A table of the documentation.

    Attributes:
        page: file that shows the command and the table.
        command: as the page shows it.
        table: makes the lines of the table out of the command's JSON report.
        arguments: added when the figure is measured.
    """

    page: str
    command: str
    table: Callable[[Report], Iterable[str]]
    arguments: tuple[str, ...] = ()


def markdown(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Lines of a Markdown table."""
    cells = [list(titles), *(list(map(str, row)) for row in rows)]
    cells.insert(1, ["---"] * len(cells[0]))
    return [f"| {' | '.join(row)} |" for row in cells]


def verify_table(report: Report) -> list[str]:
    """Milliseconds of a pass by context and tokens."""
    found = {(r["context"], r["tokens"], r["backend"]): r for r in report["records"]}
    rows = []
    for context, tokens in dict.fromkeys((r["context"], r["tokens"]) for r in report["records"]):
        stock, dense, sparse = (found[context, tokens, name] for name in ("stock", "dense", "sparse"))
        ms = [record["ms"]["median"] for record in (stock, dense, sparse)]
        ratios = [f"{value / ms[0]:.2f}" for value in ms[1:]]
        read = f"{sparse['density']:.2f}"
        rows.append([f"{context:,}", tokens, *(f"{value:.0f}" for value in ms), *ratios, read])
    titles = ["context", "tokens", "stock ms", "dense ms", "sparse ms", "dense / stock", "sparse / stock"]
    return markdown([*titles, "share of the context read"], rows)


def weights_table(report: Report) -> list[str]:
    """Milliseconds of a pass whose weights are limited, with what was read of them."""
    found = {(r["tokens"], r["backend"]): r for r in report["records"]}
    rows = []
    for tokens, backend in found:
        record, stock = found[tokens, backend], found[tokens, "stock"]
        read = record["experts_read"] or record["ffn_density"]
        ms = record["ms"]["median"]
        ratio = ms / stock["ms"]["median"]
        rows.append([tokens, backend, f"{ms:.1f}", f"{ratio:.2f}", "-" if read is None else f"{read:.3g}"])
    what = "experts of a layer read" if report["expert_budget"] is not None else "share of channels read"
    return markdown(["tokens", "backend", "ms", "of stock", what], rows)


def prompt_table(report: Report) -> list[str]:
    """Seconds to the first token by length of the prompt, and the ratios to the first mode."""
    found = {(r["context"], r["mode"]): r for r in report["records"]}
    modes = list(dict.fromkeys(mode for _, mode in found))
    rows = []
    for context in dict.fromkeys(context for context, _ in found):
        records = [found[context, mode] for mode in modes]
        seconds = [f"{median(one['seconds'] for one in record['rounds']):.2f}" for record in records]
        ratios = [f"{record['seconds_ratio']['median']:.2f}" for record in records[1:]]
        read = f"{found[context, 'sparse']['rounds'][0]['density']:.2f}"
        rows.append([f"{context:,}", *seconds, *ratios, read])
    first, *others = ("GenAI" if mode == "genai" else mode for mode in modes)
    titles = [f"{name} s" for name in (first, *others)] + [f"{name} / {first}" for name in others]
    return markdown(["tokens", *titles, "share of the context read"], rows)


def decode_table(report: Report) -> list[str]:
    """Tokens per second by mode."""
    rows = []
    for mode, found in report["modes"].items():
        speed = median(record["tokens_per_second"] for record in found["rounds"])
        ratios = [found[f"over_{base}"]["median"] for base in ("stock_plain", "stock_speculative")]
        output = "approximated" if found["lossy"] else "the model's"
        rows.append([mode.replace("_", ", "), output, f"{speed:.1f}", *(f"{ratio:.2f}" for ratio in ratios)])
    return markdown(["mode", "output", "tokens/s", "x stock, plain", "x stock, speculative"], rows)


def memory_table(report: Report) -> list[str]:
    """Starts and resident memory, from a model's folder and from a CACHE_DIR."""

    def seconds(start: dict[str, Any]) -> list[str]:
        return [f"{start[name]:.2f} s" for name in ("start_s", "first_token_s")]

    rows = []
    for record in report["records"]:
        sizes = [f"{record[name] / 1e6:,.0f} MB" for name in ("loaded_anon_bytes", "anon_bytes")]
        rows.append([record["engine"], *seconds(record), *sizes])
    for start in report["cached_starts"]:
        size = f"{start['loaded_anon_bytes'] / 1e6:,.0f} MB"
        rows.append([f"{start['name']}, CACHE_DIR", *seconds(start), size, ""])
    titles = ["start of", "time", "to the first token", "anonymous memory, start", "with the context"]
    return markdown(titles, rows)


def fidelity_table(report: Report) -> list[str]:
    """Divergence from dense decoding by setting."""
    rows = [
        [
            found["name"],
            f"{found['attention_density']:.2f}",
            f"{found['identical']} of {found['prompts']}",
            f"{found['top1_agreement']:.3f}",
            f"{found['kl']['mean']:.2g}",
            f"{found['kl']['p99']:.2g}",
        ]
        for found in report["settings"]
    ]
    return markdown(["setting", "share read", "identical outputs", "top-1", "KL mean", "KL p99"], rows)


def demo_table(report: Report) -> list[str]:
    """The modes of the demo: tokens/s behind a story and behind short prompts, and figures of the story."""
    rows = []
    for mode in dict.fromkeys(answer["mode"] for answer in report["answers"]):
        story, *short = (answer for answer in report["answers"] if answer["mode"] == mode)
        speed = sum(answer["tokens_per_second"] for answer in short) / len(short)
        per_pass = "-" if story["tokens_per_pass"] is None else f"{story['tokens_per_pass']:.2f}"
        first, read = f"{story['ttft_ms'] / 1e3:.2f}", f"{story['density']:.2f}"
        same = "yes" if report["same_as_plain"][mode] else "no"
        rows.append([mode, f"{story['tokens_per_second']:.0f}", f"{speed:.0f}", per_pass, first, read, same])
    speeds = ["tokens/s, story of 6,000 tokens", "tokens/s, short prompts"]
    figures = ["tokens per pass", "first token s", "share read", "same text as plain"]
    return markdown(["", *speeds, *figures], rows)


FIGURES = {
    "demo": Figure("../README.md", "ovspec demo", demo_table),
    "verify": Figure(
        "performance.md",
        "ovspec bench verify --shape qwen3-0.6b --context 128,4096,16384 --tokens 1,4,8",
        verify_table,
        ("--plot", str(IMAGE)),
    ),
    "long": Figure(
        "performance.md",
        "ovspec bench verify --shape qwen3-0.6b-128k --layers 6 --context 65536,131064 --tokens 1,8 "
        "--budget 14336",
        verify_table,
    ),
    "decode": Figure(
        "../README.md",
        "ovspec bench decode --shape qwen3-0.6b --context 16384 --max-new-tokens 64 --repeat 3",
        decode_table,
    ),
    "prompt": Figure(
        "performance.md",
        "ovspec bench prompt --shape qwen3-0.6b --layers 4 --mode genai,dense,sparse --repeat 3",
        prompt_table,
    ),
    "long_prompt": Figure(
        "performance.md",
        "ovspec bench prompt --shape qwen3-0.6b-128k --layers 1 --context 65536,131056 --mode dense,sparse "
        "--repeat 1",
        prompt_table,
    ),
    "experts": Figure(
        "performance.md",
        "ovspec bench verify --shape qwen3-moe-64x8 --context 128 --tokens 1,8 --expert-budget 16",
        weights_table,
    ),
    "channels": Figure(
        "performance.md",
        "ovspec bench verify --shape qwen3-0.6b --weight-format int4 --context 128 --tokens 1,8 --budget 0 "
        "--ffn-density 0.5",
        weights_table,
    ),
    "memory": Figure(
        "performance.md",
        "ovspec bench memory --shape qwen3-0.6b --layers 6 --context 16384 --repeat 3",
        memory_table,
    ),
    "long_memory": Figure(
        "performance.md",
        "ovspec bench memory --shape qwen3-0.6b-128k --layers 1 --context 131056 --repeat 1",
        memory_table,
    ),
    "fidelity": Figure(
        "fidelity.md",
        "ovspec eval fidelity -m qwen3 --prompts prompts.jsonl --budgets 64,128,256,512 --max-new-tokens 64",
        fidelity_table,
        ("--property", "INFERENCE_PRECISION_HINT=f32", "--property", "KV_CACHE_PRECISION=f32"),
    ),
}


def in_a_process(arguments: list[str], folder: str) -> None:
    """Run `ovspec` with these arguments in `folder`."""
    subprocess.run([sys.executable, "-m", "ovspec", *arguments], cwd=folder, check=True)


def measure(figure: Figure, run: Callable[[list[str], str], None] = in_a_process) -> Report:
    """Run the figure's command in an empty folder and return its JSON report."""
    with TemporaryDirectory() as folder:
        story = STORY.read_text(encoding="utf-8")
        beginnings = [story[: len(story) * part // 6] for part in range(1, 7)]
        prompts = "".join(json.dumps(text) + "\n" for text in beginnings)
        (Path(folder) / "prompts.jsonl").write_text(prompts, encoding="utf-8")
        arguments = shlex.split(figure.command.replace("-m qwen3", f"-m {demo_pair_path()}"))[1:]
        run([*arguments, *figure.arguments, "--json", "report.json"], folder)
        report: Report = json.loads((Path(folder) / "report.json").read_text(encoding="utf-8"))
        return report


def write(name: str, figure: Figure, report: Report) -> None:
    """Replace the table of a figure in its page."""
    page = DOCS / figure.page
    processor = ov.Core().get_property("CPU", "FULL_DEVICE_NAME")
    threads = len(os.sched_getaffinity(0))
    caption = f"Measured on {processor}, {threads} cores, instruction set {active_isa()}."
    body = "\n".join([caption, "", *figure.table(report)])
    pattern = rf"(<!-- measured: {name} -->\n).*?(<!-- end -->)"
    text, count = re.subn(
        pattern,
        lambda found: f"{found[1]}{body}\n{found[2]}",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    if count != 1:
        raise ValueError(f"{page}: expected one '<!-- measured: {name} -->', found {count}")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for figure_name in sys.argv[1:] or FIGURES:
        write(figure_name, FIGURES[figure_name], measure(FIGURES[figure_name]))

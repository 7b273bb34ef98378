"""The table of docs/families.md, made from what the passes do to every family's exported model.

`OVSPEC_WRITE_DOCS=1 python -m pytest tests/exported/test_family_table.py` writes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import openvino as ov
import pytest
from tiny_checkpoints import TINY, by_tier

import ovspec_ops
from ovspec.graphs.paged_graph import transform
from ovspec.operations.attention_config import AttentionConfig
from ovspec_models import ModelInfo
from ovspec_models.families import FAMILIES, Family
from ovspec_transforms import TransformReport, sparse_ffn, sparse_moe

pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

DOCS = Path(__file__).parents[2] / "docs" / "families.md"
BEGIN, END = "<!-- table: written by tests/exported/test_family_table.py -->\n", "<!-- end of the table -->\n"
HEAD = (
    "| family | `model_type` | attention | feed-forward | experts | remarks | layers |\n"
    "|---|---|---|---|---|---|---|\n"
)


def selecting(folder: Path) -> int | None:
    """How many of the two layers choose blocks or take another's choice; `None` for a model not served."""
    ovspec_ops.load(core := ov.Core())
    for attention in (AttentionConfig("native", selects=True), AttentionConfig("native")):
        try:
            reports = transform(core.read_model(folder / "openvino_model.xml"), attention, 32)
        except ValueError:
            continue
        return sum(report.count for report in reports if report.name == "SelectBlocks")
    return None


def replaced(folder: Path, by: Callable[..., TransformReport]) -> int:
    """How many layers have experts, or feed-forward parts, that our operation replaces."""
    ovspec_ops.load(core := ov.Core())
    return by(core.read_model(folder / "openvino_model.xml"), allow_partial=True).count


def left_by_sparse_ffn(folder: Path) -> tuple[str, ...]:
    """What of a model stays as it is."""
    ovspec_ops.load(core := ov.Core())
    return sparse_ffn(core.read_model(folder / "openvino_model.xml"), allow_partial=True).left


def row(family: Family, folder: Path) -> str:
    remarks = f"**refused**: {family.refused}" if family.refused else family.note
    cells = [family.name, ", ".join(f"`{name}`" for name in family.model_types)]
    cells += [family.attention, family.ffn, family.experts, remarks]
    counts = (selecting(folder), replaced(folder, sparse_ffn), replaced(folder, sparse_moe))
    cells.append("" if family.refused else ", ".join(str(count or 0) for count in counts))
    return f"| {' | '.join(cells)} |\n"


@pytest.mark.parametrize("name", by_tier(family.name for family in FAMILIES))
def test_registry_says_what_the_passes_do(name: str, exported_family: Callable[[str], Path]) -> None:
    [family] = [family for family in FAMILIES if family.name == name]
    folder, tiny = exported_family(name), TINY[name]
    assert ModelInfo.read(folder).model_type in family.model_types
    served = family.attention != "" and "stock" not in family.attention
    assert selecting(folder) == (tiny.windows.count(0) if served else None)
    assert replaced(folder, sparse_moe) == tiny.moe_layers
    assert replaced(folder, sparse_ffn) == tiny.gated
    if "not a gated MLP" in family.ffn:
        assert len(left_by_sparse_ffn(folder)) == 2  # layers, each with what was found
    assert ("SparseMoE" in family.experts) == (tiny.moe_layers > 0)
    assert ("GatedMLP" in family.ffn) == (tiny.gated > 0)
    assert ("window" in family.attention) == any(tiny.windows) or family.name == "Phi-3"


@pytest.mark.slow
def test_docs_hold_the_table(exported_family: Callable[[str], Path]) -> None:
    table = HEAD + "".join(row(family, exported_family(family.name)) for family in FAMILIES)
    text = DOCS.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    held, after = rest.split(END)
    if os.environ.get("OVSPEC_WRITE_DOCS"):
        DOCS.write_text(before + BEGIN + table + END + after, encoding="utf-8")
    else:
        assert held == table, "write it anew with OVSPEC_WRITE_DOCS=1"

"""`ovspec info`: what this installation, and a model folder, are."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import click
import openvino as ov
import openvino_genai
from rich.table import Table

import ovspec
import ovspec_ops
from ovspec.cli.options import draft_folder
from ovspec.cli.output import output_console
from ovspec.memory_plan import plan_memory
from ovspec_models import ModelInfo, OvspecConfig
from ovspec_ops.self_check import self_check as run_self_check


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--context", type=int, help="With FOLDER: plan the memory for so many tokens.")
@click.option("--self-check", is_flag=True, help="Run every native operation against its reference.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(folder: Path | None, context: int | None, self_check: bool, as_json: bool) -> int:
    """Show versions, processor and devices; with FOLDER, what the model in it is."""
    facts: dict[str, Any] = {"installation": installation()}
    if folder is not None:
        facts["model"] = model_facts(folder)
    if context is not None:
        facts["memory"] = memory_facts(folder, context)
    checks = run_self_check() if self_check else []
    if self_check:
        facts["self_check"] = [
            {"name": c.name, "isa": c.isa, "error": c.error, "tolerance": c.tolerance, "ok": c.ok}
            for c in checks
        ]
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        for title, rows in facts.items():
            show(title, rows)
    failed = [check for check in checks if not check.ok]
    if failed:
        click.echo(
            f"ovspec: error: self-check failed: {', '.join(f'{c.name} ({c.isa})' for c in failed)}", err=True
        )
    return 1 if failed else 0


def installation() -> dict[str, object]:
    """Versions, processor, devices, native library."""
    core = ov.Core()
    return {
        "ovspec": ovspec.__version__,
        "openvino": ov.get_version(),
        "openvino_genai": openvino_genai.get_version(),
        "python": platform.python_version(),
        "processor": core.get_property("CPU", "FULL_DEVICE_NAME"),
        "devices": core.available_devices,
        "extension": str(ovspec_ops.extension_path()),
        "instruction_sets": ovspec_ops.available_isas(),
        "instruction_set_in_use": ovspec_ops.active_isa(),
    }


def model_facts(folder: Path) -> dict[str, object]:
    """Shape, sizes and settings of a model folder.

    Raises:
        ValueError: the folder holds no OpenVINO model.
    """
    model = ModelInfo.read(folder)
    config = OvspecConfig.load(folder)
    return {
        "model_type": model.model_type,
        "weight_format": model.weight_format(),
        "weight_bytes": model.weight_bytes,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_position_embeddings,
        "kv_cache_bytes_per_token_u8": model.kv_cache_bytes_per_token("u8", "BY_TOKEN"),
        "kv_cache_bytes_per_token_f16": model.kv_cache_bytes_per_token("f16"),
        "draft_model": config.draft_model if config else None,
        "ovspec_config": config is not None,
    }


def memory_facts(folder: Path | None, context: int) -> dict[str, object]:
    """The plan for target and draft, in bytes, and whether it fits.

    Raises:
        ValueError: no folder, or a context that the model does not have.
    """
    if folder is None:
        raise ValueError(f"--context {context} needs a model: ovspec info FOLDER --context {context}")
    draft = draft_folder(folder, "auto")
    plan = plan_memory(ModelInfo.read(folder), context, draft=ModelInfo.read(draft) if draft else None)
    return {**plan.as_json(), "fits": plan.total <= plan.available}


def show(title: str, rows: dict[str, object] | list[dict[str, object]]) -> None:
    """Print facts as a table."""
    table = Table(title=title.replace("_", " "), title_justify="left", show_header=isinstance(rows, list))
    if isinstance(rows, list):
        for column in ("operation", "instruction set", "error", "tolerance", "ok"):
            table.add_column(column)
        for row in rows:
            table.add_row(
                str(row["name"]),
                str(row["isa"]),
                f"{row['error']:.1e}",
                f"{row['tolerance']:.1e}",
                "ok" if row["ok"] else "FAILED",
            )
    else:
        for key, value in rows.items():
            table.add_row(key, ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))
    output_console().print(table)

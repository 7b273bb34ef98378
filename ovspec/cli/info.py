"""`ovspec info`: describe the installation and a model folder."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import openvino as ov
import openvino_genai
from rich.table import Table

import ovspec
import ovspec_ops
from ovspec.bench.bandwidth import method, read_bandwidth
from ovspec.bench.verify_cost import pass_costs
from ovspec.bench.weight_traffic import WeightTraffic
from ovspec.cli.device_report import report_device
from ovspec.cli.options.adapters import adapter_option, adapters_from
from ovspec.cli.options.common import draft_folder, properties_from, property_option
from ovspec.cli.options.forms import COUNT, MODEL, json_flag, typed_option
from ovspec.cli.options.output import print_json, print_rows, print_table
from ovspec.devices.devices import is_cpu, is_gpu, openvino_core, resolve_device
from ovspec.eval.tables import table_of
from ovspec.generation.chat_prompts import ChatPrompts
from ovspec.generation.inputs import read_tokenizer
from ovspec.graphs.compile import read_model
from ovspec.graphs.layer_programs import LayerPrograms, layer_programs
from ovspec.memory.memory_plan import plan_memory
from ovspec.operations.native_attention import why_not_native
from ovspec.operations.row_rounding import row_bits
from ovspec.proofs.bf16_products import check_bf16_products, verdict_on_products
from ovspec.proofs.promises import promises
from ovspec.proofs.row_check import check_rows, verdict_on_rows
from ovspec_models import ModelInfo, OvspecConfig
from ovspec_models.families import family_of
from ovspec_models.folder.head_info import ANY_NUMBER, HeadInfo, head_kind
from ovspec_ops.self_check import CheckResult
from ovspec_ops.self_check import self_check as run_self_check

_SHAPE = (
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"),
    "max_position_embeddings",
)


@click.command()
@click.argument("folder", required=False, type=MODEL)
@typed_option("--context", int, "With FOLDER: plan the memory for so many tokens.")
@click.option(
    "--bandwidth",
    is_flag=True,
    help="With FOLDER: estimate times too, from a measurement of the memory that takes 1 GiB of it.",
)
@click.option("--program", is_flag=True, help="With FOLDER: print the steps of its decoder layers.")
@click.option(
    "--self-check",
    is_flag=True,
    help="Run every native operation, and OpenVINO's products in bf16, against their references.",
)
@typed_option(
    "--model",
    MODEL,
    "With --self-check: compute a text through this model in random splits and compare bits.",
)
@click.option(
    "--device", default="CPU", help="With --self-check: a device other than CPU to check; writes a report."
)
@typed_option("--splits", COUNT, "Random splits of --model.  [default: 30]")
@property_option
@adapter_option
@json_flag
def info(
    folder: Path | None,
    context: int | None,
    bandwidth: bool,
    program: bool,
    self_check: bool,
    model: Path | None,
    device: str,
    splits: int | None,
    properties: tuple[str, ...],
    adapters: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show versions, processor and devices; with FOLDER, describe the model in it."""
    if model is not None and not self_check:
        raise ValueError("--model is for --self-check: give both, or the folder as the argument FOLDER")
    if model is not None:
        ModelInfo.read(model)  # refuses before the operations are checked
    if splits is not None and model is None:
        raise ValueError(f"--splits {splits} needs a model: ovspec info --self-check --model DIR")
    if properties and model is None:
        raise ValueError(
            f"--property {properties[0]} is for a model: ovspec info --self-check --model DIR --property ..."
        )
    asked = {"--context": context is not None, "--bandwidth": bandwidth, "--program": program}
    wanted = [name for name, given in asked.items() if given]
    if folder is not None and wanted and head_kind(folder) is not None:
        raise ValueError(f"{wanted[0]} is for models, and {folder} is a head; give its target")
    facts: dict[str, Any] = {"installation": installation()}
    device = resolve_device(device)
    if not is_cpu(device):
        if not self_check or folder is not None or model is not None:
            raise ValueError(
                f"--device {device} is for the check of a device: ovspec info --self-check --device {device}"
            )
        return report_device(device, facts, as_json)
    if folder is not None:
        facts |= folder_facts(folder, bandwidth)
    elif bandwidth:
        raise ValueError("--bandwidth needs a model: ovspec info FOLDER --bandwidth")
    if program:
        facts["program"] = asdict(programs_of(folder))
    if adapters and context is None:
        raise ValueError(f"--adapter {adapters[0]} is for the plan of memory: give --context TOKENS too")
    if context is not None:
        facts["memory"] = memory_facts(folder, context, adapters)
    checks, products = (run_self_check(), check_bf16_products()) if self_check else ([], [])
    if self_check:
        for name, found in (("self_check", checks), ("bf16_products", products)):
            facts[name] = [{**asdict(check), "ok": check.ok} for check in found]
    rows = check_rows(model, splits or 30, properties_from(properties)) if model is not None else None
    if rows is not None:
        facts["rows"] = asdict(rows)
    where = facts["installation"]["processor"]
    verdicts = [verdict(checks, where), verdict_on_products(products, where)] if checks else []
    if checks and rows is not None:
        verdicts.append(verdict_on_rows(rows, str(model)))
    said = "; ".join(verdicts)
    if said:
        facts["verdict"] = said
    if as_json:
        print_json(facts)
    else:
        estimate, memory = facts.pop("estimate", None), facts.pop("memory", None)
        steps = facts.pop("program", None)
        facts.pop("verdict", None)
        if "identical_output" in facts:
            facts["identical_output"] = {
                choice: f"not promised: {'; '.join(reasons)}" if reasons else "promised"
                for choice, reasons in facts["identical_output"].items()
            }
        for title, entries in facts.items():
            if entries != []:
                show(title, entries)
        if steps is not None:
            show_program(steps)
        if memory is not None:
            show("memory, an estimate", memory_rows(memory))
        if estimate is not None:
            show_estimate(estimate)
    if rows is not None and rows.difference:
        click.echo(f"ovspec: error: {model}: a row depends on its pass: {rows.difference}", err=True)
    if said and not as_json:
        click.echo(said)
    failed = any(not check.ok for check in (*checks, *products))
    return 1 if failed or (rows is not None and rows.difference) else 0


def programs_of(folder: Path | None) -> LayerPrograms:
    """The steps of a model's decoder layers."""
    if folder is None:
        raise ValueError("--program needs a model: ovspec info FOLDER --program")
    return layer_programs(folder)


def show_program(program: dict[str, Any]) -> None:
    """Print the steps of one layer of each kind."""
    click.echo(
        f"decoder layers: {program['layers']} of {program['of']} that attend to the text, in "
        f"{program['operations']} operations DecoderLayers"
    )
    for kind in program["kinds"]:
        click.echo(f"\n{kind['count']} layer{'s' * (kind['count'] > 1)} like this:")
        for line in kind["lines"]:
            click.echo(f"  {line}")


def verdict(checks: Sequence[CheckResult], where: str) -> str:
    """What a self-check found, in a line.

    Args:
        where: the processor that it ran on.
    """
    failed = ", ".join(f"{check.name} ({check.isa})" for check in checks if not check.ok)
    if failed:
        return f"FAILED: on {where} these differ from their references: {failed}; use none of their results"
    operations = len({check.name.partition(" ")[0] for check in checks})
    sets = ", ".join(dict.fromkeys(check.isa for check in checks))
    return (
        f"all {operations} operations agree with their references in all {len(checks)} checks on {where} "
        f"(instruction sets {sets})"
    )


def installation() -> dict[str, object]:
    """Versions, processor, devices, native library."""
    core = openvino_core()
    return {
        "ovspec": ovspec.__version__,
        "openvino": ov.get_version(),
        "openvino_genai": openvino_genai.get_version(),
        "python": platform.python_version(),
        "processor": core.get_property("CPU", "FULL_DEVICE_NAME"),
        "devices": core.available_devices,
        **{
            name: core.get_property(name, "FULL_DEVICE_NAME")
            for name in filter(is_gpu, core.available_devices)
        },
        "extension": str(ovspec_ops.extension_path()),
        "instruction_sets": ovspec_ops.available_isas(),
        "instruction_set_in_use": ovspec_ops.active_isa(),
        "row_bits": row_bits("CPU", {}),
    }


def folder_facts(folder: Path, measure: bool) -> dict[str, Any]:
    """The contents of a model folder, what its family supports, and an estimate of the cost of its passes."""
    model = ModelInfo.read(folder)
    if head_kind(folder) is not None:
        return {"head": head_facts(model)}
    core = openvino_core()
    ovspec_ops.load(core)  # the IR may contain native operations
    traffic = WeightTraffic.of(read_model(core, folder))
    threads = len(os.sched_getaffinity(0))
    bandwidth = read_bandwidth(threads) if measure else None
    return {
        "model": model_facts(model),
        "family": family_facts(model),
        "identical_output": promises(folder),
        "estimate": {
            "what": "bytes that a pass reads (weights, u8 cache)"
            + (" and the time to read them: an estimate" if measure else ": an estimate"),
            "sparse": "the default SparseVerify",
            "bandwidth_gb_s": bandwidth,
            "bandwidth_method": method(threads) if measure else None,
            "passes": [asdict(cost) for cost in pass_costs(model, traffic, bandwidth)],
        },
    }


def _block_facts(head: HeadInfo) -> dict[str, object]:
    """What a head says that drafts all tokens in one pass."""
    if head.block is None:
        return {}
    size, mask = head.block
    return {"block_tokens": "as many as are asked for" if size == ANY_NUMBER else size, "mask_token": mask}


def head_facts(model: ModelInfo) -> dict[str, object]:
    """What a head is, and what it reads of its target."""
    head = HeadInfo.read(model.folder)
    return {
        "kind": head.kind,
        "weight_format": model.weight_format(),
        "weight_bytes": model.weight_bytes,
        "boundaries": head.boundaries or "those that are usual for its kind",
        "positions": model.max_position_embeddings or "not said",
        **_block_facts(head),
        "target_hidden_size": head.target_hidden_size,
        "target_layers": head.target_layers or "not said",
        "target_vocab_size": head.vocab_size,
        "target": head.verifier or "not said",
        "target_architectures": list(head.verifier_architectures) or "not said",
        "embedding": "its own" if head.own_embedding else "the target's",
        "output_layer": "its own" if head.own_output else "the target's",
    }


def family_facts(model: ModelInfo) -> dict[str, object]:
    """Which layers of the model's family can be sparse."""
    family = family_of(model.model_type)
    if family is None:
        return {"name": f"{model.model_type}: not tested; loading compares it with the exported graph"}
    facts = {
        "name": family.name,
        "attention": family.attention,
        "feed_forward": family.ffn,
        "experts": family.experts,
        "note": family.note,
        "refused": family.refused,
    }
    return {key: value for key, value in facts.items() if value}


def model_facts(model: ModelInfo) -> dict[str, object]:
    """Shape, sizes and settings of a model folder."""
    config, heads = OvspecConfig.load(model.folder), why_not_native(model.folder)
    return {
        "model_type": model.model_type,
        "weight_format": model.weight_format(),
        "weight_bytes": model.weight_bytes,
        **{name: getattr(model, name) for name in _SHAPE},
        "special_tokens_in_messages": _special_tokens(model.folder),
        **({"attention": f"OpenVINO's: the model has {heads}"} if heads else {}),
        **({"no_more_positions": model.why_no_more_positions} if model.why_no_more_positions else {}),
        "sliding_windows": sorted({window for window in model.layer_windows if window}),
        "layers_with_window": sum(1 for window in model.layer_windows if window),
        "kv_cache_bytes_per_token_u8": model.kv_cache_bytes_per_token("u8", "BY_TOKEN"),
        "kv_cache_bytes_per_token_u8_by_channel": model.kv_cache_bytes_per_token("u8", "BY_CHANNEL"),
        "kv_cache_bytes_per_token_f16": model.kv_cache_bytes_per_token("f16"),
        "kv_cache_bytes_per_token_bf16": model.kv_cache_bytes_per_token("bf16"),
        "kv_cache_bytes_per_token_f32": model.kv_cache_bytes_per_token("f32"),
        **({"linear_attention_state_bytes_f32": 4 * model.state_values} if model.state_values else {}),
        "draft_model": config.draft_model if config else None,
        "operations": config.operations if config else [],
        "ovspec_config": config is not None,
    }


def _special_tokens(folder: Path) -> str:
    """What becomes of their names in messages."""
    try:
        return ChatPrompts(read_tokenizer(folder), folder).names_of_special_tokens
    except ValueError as error:
        return f"not known: {error}"


def memory_facts(folder: Path | None, context: int, adapters: Sequence[str]) -> dict[str, object]:
    """The plan for target, draft and the files of adapters, in bytes, and whether it fits."""
    if folder is None:
        raise ValueError(f"--context {context} needs a model: ovspec info FOLDER --context {context}")
    draft = draft_folder(folder, "auto")
    model, beside = ModelInfo.read(folder), ModelInfo.read(draft) if draft else None
    config = adapters_from({"adapters": adapters, "no_memory_check": False, "memory_limit": None})
    held = sum(adapter.nbytes for adapter in config.get_adapters()) if config else 0
    plan = plan_memory(model, context, draft=beside, adapters=held)
    return {**plan.as_json(), "fits": plan.total <= plan.available}


def memory_rows(memory: dict[str, Any]) -> dict[str, object]:
    """A memory plan as rows of a table, in MB."""
    rows: dict[str, object] = {"context": f"{memory['context']:,} tokens", "cache": memory["cache_precision"]}
    for part in ("target", "draft"):
        if memory[part] is not None:
            sizes = (f"{name} {size / 1e6:,.1f}" for name, size in memory[part].items())
            rows[f"{part}, MB"] = ", ".join(sizes)
    for name in ("adapters", "process", "total", "available", "prefix_cache"):
        rows[f"{name.replace('_', ' ')}, MB"] = f"{memory[name] / 1e6:,.1f}"
    return rows | {
        "fits": memory["fits"],
        "largest context up to this one that fits": f"{memory['largest_context']:,} tokens",
    }


def show_estimate(estimate: dict[str, Any]) -> None:
    """Print what passes are estimated to cost."""
    speed = estimate["bandwidth_gb_s"]
    at = "; times with --bandwidth" if speed is None else f" at {speed:.1f} GB/s"
    rows = []
    for cost in estimate["passes"]:
        cells = [f"{cost['context']:,}", str(cost["rows"])]
        for part in ("dense", "sparse"):
            cells.append(f"{cost[f'{part}_bytes'] / 1e6:.1f}")
            cells.append("-" if speed is None else f"{cost[f'{part}_ms']:.2f}")
        rows.append(cells)
    columns = ("context", "tokens", "dense MB", "dense ms", "sparse MB", "sparse ms")
    title = f"{estimate['what']}{at}; sparse: {estimate['sparse']}"
    print_table(table_of(title, columns, rows, names=0))


def show(title: str, rows: dict[str, object] | list[dict[str, object]]) -> None:
    """Print facts as a table."""
    title = title.replace("_", " ")
    if isinstance(rows, list):
        cells = [
            (
                str(row["name"]),
                str(row["isa"]),
                f"{row['error']:.1e}",
                f"{row['tolerance']:.1e}",
                "ok" if row["ok"] else "FAILED",
            )
            for row in rows
        ]
        print_rows(("operation", "instruction set", "error", "tolerance", "ok"), cells, title)
        return
    table = Table(title=title, title_justify="left", show_header=False)
    for key, value in rows.items():
        table.add_row(key, _words(value))
    print_table(table)


def _words(value: object) -> str:
    """A fact for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value in ([], ()):
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

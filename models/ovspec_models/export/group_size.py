"""The groups of int4 weights: a size that divides every row, chosen before the export begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ovspec_models.export.quiet import library_output
from ovspec_models.folder.files import at_home
from ovspec_models.folder.model_info import read_shape
from ovspec_models.folder.sparse_verify import is_int

_SIZES = (128, 64, 32, 16, 8)  # NNCF's default, and smaller ones that our operations take


def group_size_for(
    model: str | Path, asked: int | None, every_layer: bool, cache_dir: str | Path | None
) -> int:
    """The size of groups for a checkpoint: the one that is asked for, else 128 or the largest that fits.

    Where config.json can't be read or says no sizes, that is 128: what exports the model says what is wrong.

    Args:
        model: folder of the checkpoint, or its ID; of that config.json alone is downloaded.
        asked: a size, -1 for one group a row; ``None``: the user does not say.
        every_layer: whether all layers get int4, so that the size must divide the rows of each.
        cache_dir: where downloads are kept.

    Raises:
        ValueError: the size does not divide the rows of a layer, or none does.
    """
    folder = _folder_of_config(model, cache_dir)
    rows = _row_sizes(folder) if folder else []
    fits = next((size for size in _SIZES if not any(row % size for row in rows)), None)
    use = f"--group-size {fits or -1} (group_size={fits or -1})"
    if asked is None and fits is None:
        odd = next(row for row in rows if row % _SIZES[-1])
        raise ValueError(
            f"weight_format 'int4': layers of '{model}' have rows of {odd} weights, which no group of "
            f"{_SIZES[-1]} or more divides; use {use} for one group a row, or --weight-format int8"
        )
    if asked is None or asked == -1:
        return asked or fits or -1
    misfit = next((row for row in rows if row % asked), None)
    if misfit and every_layer:
        found = f"does not divide the rows of {misfit} weights of '{model}'"
        raise ValueError(f"group_size is {asked}, which {found}; use {use}")
    return asked


def _folder_of_config(model: str | Path, cache_dir: str | Path | None) -> Path | None:
    folder = at_home(model)
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or isinstance(model, Path):
        return None
    try:
        from huggingface_hub import hf_hub_download

        with library_output(False):
            return Path(hf_hub_download(model, "config.json", cache_dir=cache_dir)).parent
    except Exception:  # no package, no network, no such model: what loads the checkpoint says which
        return None


def _row_sizes(folder: Path) -> list[int]:
    """Lengths of the rows of weights that int4 groups, as config.json says them."""
    try:
        shape = read_shape(folder)
        said: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    nested = said.get("text_config") or said.get("llm_config")
    text = {**said, **nested} if isinstance(nested, dict) else said
    values, size = text.get("linear_num_value_heads"), text.get("linear_value_head_dim")
    sizes = [
        shape["hidden_size"],
        shape["num_attention_heads"] * shape["head_dim"],
        shape["moe_intermediate_size"] if shape["num_experts"] else shape["intermediate_size"],
        text.get("shared_expert_intermediate_size") if shape["num_experts"] else None,
        values * size if is_int(values) and is_int(size) else None,
    ]
    return sorted({row for row in sizes if is_int(row) and row > 0})

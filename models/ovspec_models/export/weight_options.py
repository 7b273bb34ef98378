"""The options of weight compression, with the meaning and defaults of ``optimum-cli export openvino``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovspec_models.export.calibration_texts import check_dataset, read_dataset
from ovspec_models.export.group_size import group_size_for
from ovspec_models.folder.sparse_verify import is_int

WEIGHT_FORMATS = ("fp32", "fp16", "bf16", "int8", "int4")
BACKUP_PRECISIONS = ("none", "int8_sym", "int8_asym")
_ROW = -1  # one group a row
_INT4_ONLY = (
    *("group_size", "ratio", "all_layers", "dataset"),
    *("awq", "scale_estimation", "gptq", "backup_precision"),
)


@dataclass(frozen=True, slots=True)
class WeightOptions:
    """Weight compression options; ``None`` and ``False`` mean not given.

    Checked on construction: ValueError, in one line, for a value out of range and for options that
    contradict each other, where optimum-intel would refuse late or ignore them.

    * `weight_format`: ``fp32``, ``fp16``, ``bf16`` (in optimum-cli a default only), ``int8``, ``int4``;
      ``None`` is optimum-intel's default (the checkpoint's precision, int8 above 1e9 parameters).
    * `group_size` (``None``: 128, or the largest that divides all rows), `ratio`, `all_layers`,
      `backup_precision` (``none``, ``int8_sym``, ``int8_asym``), `awq`, `scale_estimation`, `gptq`, `dataset`
      (``wikitext2``, ``c4``, ``c4-new``, ``gsm8k``, ``auto``, a file with a text in every line, plain or
      JSONL, or a list of texts): int4 only. `sym`: int4 and int8.
    """

    weight_format: str | None = None
    group_size: int | None = None
    ratio: float | None = None
    sym: bool = False
    all_layers: bool = False
    dataset: str | list[str] | None = None
    awq: bool = False
    scale_estimation: bool = False
    gptq: bool = False
    backup_precision: str | None = None

    def __post_init__(self) -> None:
        self._check_values()
        self._check_combinations()
        if self.dataset is not None:
            check_dataset(self.dataset)

    def given(self) -> dict[str, Any]:
        """Return the compression options that were given, without ``weight_format``."""
        names = ("sym", *_INT4_ONLY)
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None and value is not False}

    def _check_values(self) -> None:
        if self.weight_format not in (None, *WEIGHT_FORMATS):
            raise ValueError(
                f"weight_format is {self.weight_format!r}, expected one of {', '.join(WEIGHT_FORMATS)}, "
                "or None for optimum-intel's default"
            )
        size = self.group_size
        if size is not None and not (is_int(size) and (size == -1 or size > 0)):
            raise ValueError(
                f"group_size is {size!r}, expected a positive integer, or -1 for one group per row"
            )
        if self.ratio is not None and not 0.0 < self.ratio <= 1.0:
            raise ValueError(
                f"ratio is {self.ratio!r}, expected a share of int4 layers in (0, 1]; "
                "for no int4 layer at all use weight_format='int8'"
            )
        if self.backup_precision not in (None, *BACKUP_PRECISIONS):
            raise ValueError(
                f"backup_precision is {self.backup_precision!r}, "
                f"expected one of {', '.join(BACKUP_PRECISIONS)}"
            )

    def _check_combinations(self) -> None:
        given = self.given()
        if self.weight_format in (None, "fp32", "fp16", "bf16") and given:
            raise ValueError(
                f"{', '.join(given)} needs compressed weights, but weight_format is {self.weight_format!r}; "
                "set weight_format='int4' (or 'int8' for sym alone), or leave the option out"
            )
        refused = [name for name in given if name in _INT4_ONLY]
        if self.weight_format == "int8" and refused:
            raise ValueError(
                f"{', '.join(refused)} works with int4 weights only, but weight_format is 'int8'; "
                "set weight_format='int4', or leave the option out"
            )
        data_aware = self.awq or self.scale_estimation or self.gptq or (self.ratio or 1.0) < 1.0
        if self.dataset is not None and not data_aware:
            raise ValueError(
                f"dataset is {self.dataset!r}, but no option uses it; "
                "set awq, scale_estimation, gptq or a ratio below 1, or leave dataset out"
            )
        if self.dataset is None and (self.scale_estimation or self.gptq):
            name = "scale_estimation" if self.scale_estimation else "gptq"
            raise ValueError(
                f"{name} needs a calibration dataset; set dataset to a file of texts, "
                "or to a name such as 'wikitext2'"
            )

    def group_size_of(self, model: str | Path, cache_dir: str | Path | None) -> int:
        """Return the size of int4 groups for a checkpoint; ValueError as `group_size_for`."""
        if self.weight_format != "int4":
            return _ROW
        return group_size_for(model, self.group_size, self.ratio in (None, 1.0), cache_dir)

    def to_optimum(self, model: str, group_size: int) -> Any:
        """Return optimum-intel's ``OVConfig`` for `model` (its ID or path), or ``None`` for the default.

        `group_size`: that of `group_size_of`.

        An int8 or int4 export without further options takes optimum-intel's tuned configuration of that
        model where it has one, as ``optimum-cli`` does.
        """
        from optimum.intel.openvino.configuration import (
            OVConfig,
            OVWeightQuantizationConfig,
            get_default_quantization_config,
        )

        if self.weight_format is None:
            return None
        if self.weight_format in ("fp32", "fp16", "bf16"):
            return OVConfig(dtype=self.weight_format)
        if not self.given():
            tuned = get_default_quantization_config(model, self.weight_format)
            if tuned is not None:
                return OVConfig(quantization_config=tuned)
        return OVConfig(quantization_config=OVWeightQuantizationConfig(**self._arguments(group_size)))

    def _arguments(self, group_size: int) -> dict[str, Any]:
        if self.weight_format == "int8":
            return {"bits": 8, "dtype": "int8", "sym": self.sym, "group_size": _ROW, "ratio": 1.0}
        return {
            "bits": 4,
            "dtype": "int4",
            "sym": self.sym,
            "group_size": group_size,
            "ratio": 1.0 if self.ratio is None else self.ratio,
            "all_layers": self.all_layers or None,
            "dataset": None if self.dataset is None else read_dataset(self.dataset),
            "quant_method": "awq" if self.awq else "default",
            "scale_estimation": self.scale_estimation or None,
            "gptq": self.gptq or None,
            "backup_precision": self.backup_precision,
        }

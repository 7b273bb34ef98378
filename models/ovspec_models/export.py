"""A Hugging Face checkpoint -> a folder of OpenVINO IR, tokenizer and ``ovspec_config.json``."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from ovspec_models._quiet import LogCollector, library_output
from ovspec_models.bake import BAKED, bake_operations
from ovspec_models.checkpoint import Checkpoint, first_line
from ovspec_models.compressed_model import compress_folder, compressed_before_saved
from ovspec_models.config import CreatedBy, OvspecConfig
from ovspec_models.load_report import unfit_weights
from ovspec_models.model_card import model_card
from ovspec_models.model_info import ModelInfo
from ovspec_models.new_folder import check_new_folder, new_folder
from ovspec_models.tokenizer_check import check_same_token_ids
from ovspec_models.version_caps import lifted_caps
from ovspec_models.weight_options import WeightOptions

DRAFT_FOLDER = "draft"
_TASK = "text-generation-with-past"
_REQUIRED = ("openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.xml", "openvino_detokenizer.xml")


def export_model(
    model: str | Path,
    out: str | Path,
    *,
    draft_model: str | Path | None = None,
    weight_format: str | None = None,
    group_size: int | None = None,
    ratio: float | None = None,
    sym: bool = False,
    all_layers: bool = False,
    dataset: str | list[str] | None = None,
    awq: bool = False,
    scale_estimation: bool = False,
    gptq: bool = False,
    backup_precision: str | None = None,
    operations: Sequence[str] = (),
    allow_partial: bool = False,
    trust_remote_code: bool = False,
    cache_dir: str | Path | None = None,
    task: str = _TASK,
    verbose: bool = False,
    progress: Callable[[str], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> Path:
    """Export `model`, and `draft_model` with it, to the new folder `out`; return `out`.

    The target is written to ``out``, the draft to ``out/draft``, each with its tokenizer and detokenizer. The
    weight options are those of ``optimum-cli export openvino`` and apply to both models:

    * `weight_format`: ``fp32``, ``fp16``, ``bf16`` (in optimum-cli a default only), ``int8``, ``int4``;
      ``None`` is optimum-intel's default (the checkpoint's precision, int8 above 1e9 parameters).
    * `group_size`, `ratio`, `all_layers`, `backup_precision` (``none``, ``int8_sym``, ``int8_asym``), `awq`,
      `scale_estimation`, `gptq`, `dataset` (``wikitext2``, ``c4``, ``c4-new``, ``gsm8k``, ``auto``, a file
      with a text in every line, plain or JSONL, or a list of texts): int4 only. `sym`: int4 and int8.

    `operations`, out of ``sparse_moe`` and ``sparse_ffn``, are put into the target's IR. It then runs with
    them on CPU, here and in any OpenVINO that has loaded ``ovspec.extension_path()``. A layer of an unknown
    form is refused. With `allow_partial` it stays as it is, and `warn` is called with its name and the
    reason.

    `progress` is called with a short description at the begin of each step. `verbose` shows the output of the
    libraries. `out` appears only when the export is complete: a failure or Ctrl-C leaves nothing.

    Raises ValueError for an `out` that is in use, a model that cannot be read, contradicting options and a
    draft with another tokenizer, all before the long work; RuntimeError when the export's packages are
    missing or the export itself fails.
    """
    options = WeightOptions(
        weight_format=weight_format,
        group_size=group_size,
        ratio=ratio,
        sym=sym,
        all_layers=all_layers,
        dataset=dataset,
        awq=awq,
        scale_estimation=scale_estimation,
        gptq=gptq,
        backup_precision=backup_precision,
    )
    for name in operations:
        if name not in BAKED:
            raise ValueError(f"operations: {name!r} is not known, expected some of {', '.join(BAKED)}")
    if task != _TASK:
        raise ValueError(f"task is {task!r}, expected {_TASK!r}: only such a model can be generated with")
    if allow_partial and not operations:
        raise ValueError(f"allow_partial needs operations to put in: {', '.join(BAKED)}")
    target_folder = Path(out)
    check_new_folder(target_folder)
    report = progress or _no_progress
    report("loading the packages of the export")
    require_export_packages()
    report("checking the checkpoints")
    loading: dict[str, Any] = {"trust_remote_code": trust_remote_code, "cache_dir": cache_dir}
    with library_output(verbose):
        target = Checkpoint.open(model, "model", **loading)
        draft = None if draft_model is None else Checkpoint.open(draft_model, "draft_model", **loading)
        if draft is not None:
            target.check_draft(draft)
    with new_folder(target_folder, warn or _no_progress) as staging:
        pair = [(target, staging, "target")]
        if draft is not None:
            pair.append((draft, staging / DRAFT_FOLDER, "draft"))
        for checkpoint, folder, role in pair:
            report(f"exporting the {role} {checkpoint.name} ({weight_format or 'default'} weights)")
            with library_output(verbose) as collector:
                try:
                    _export_one(checkpoint, folder, options, task, loading, warn or _no_progress)
                except RuntimeError:
                    _check_weights(checkpoint, collector)  # its message is more precise than the exception
                    raise
            _check_weights(checkpoint, collector)
            _check_complete(folder, checkpoint, collector)
        if draft is not None:
            check_same_token_ids(staging, staging / DRAFT_FOLDER)
        weight_formats = {role: ModelInfo.read(folder).weight_format() for _, folder, role in pair}
        held: list[str] = []
        if operations:
            report(f"putting {' and '.join(operations)} into the target")
            baked = bake_operations(staging, operations, allow_partial)
            held += baked.operations
            for line in baked.left:
                (warn or _no_progress)(f"left as it was: {line}")
        report("writing the configuration and the model card")
        for checkpoint, folder, role in pair:
            config = OvspecConfig(
                created_by=package_versions(),
                model=ModelInfo.read(folder).section(
                    checkpoint.name, options.weight_format or weight_formats[role]
                ),
                draft_model=DRAFT_FOLDER if draft is not None and role == "target" else None,
                operations=held if role == "target" else [],
            )
            draft_source = draft.name if draft is not None and role == "target" else None
            _describe(checkpoint, folder, config, draft_source, options)
    return target_folder


def require_export_packages() -> None:
    """Import the packages of the ``export`` extra, or raise RuntimeError saying how to install them."""
    try:
        import nncf  # noqa: F401
        import optimum.exporters.openvino  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise RuntimeError(
            f"exporting needs torch, optimum-intel, nncf and transformers ({first_line(error)}); "
            f"install them: {_install_command()}"
        ) from error


def _install_command() -> str:
    """How to install what exporting needs. ovspec itself is on no index, so its extra is written out."""
    wanted = (Requirement(line) for line in metadata.requires("ovspec") or ())
    extra = [entry for entry in wanted if entry.marker and entry.marker.evaluate({"extra": "export"})]
    return "pip install " + " ".join(f'"{entry.name}{entry.specifier}"' for entry in extra)


def package_versions() -> CreatedBy:
    """Return the installed versions of the packages that take part in an export."""

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    return CreatedBy(
        ovspec=version("ovspec"),
        openvino=version("openvino"),
        optimum_intel=version("optimum-intel"),
        nncf=version("nncf"),
        transformers=version("transformers"),
    )


def _export_one(
    checkpoint: Checkpoint,
    folder: Path,
    options: WeightOptions,
    task: str,
    loading: dict[str, Any],
    warn: Callable[[str], None],
) -> None:
    """Export to `folder` the same files as ``optimum-cli``, compressed before they are written."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from optimum.exporters.openvino import main_export

    ov_config = options.to_optimum(checkpoint.location)
    quantization = None if ov_config is None else ov_config.quantization_config
    compressed = compressed_before_saved(
        checkpoint.location,
        quantization,
        use_cache=task.endswith("with-past"),
        trust_remote_code=loading["trust_remote_code"],
        by_size=ov_config is None,
        warn=warn,
    )
    dtype = {"model_loading_kwargs": {"torch_dtype": "bfloat16"}} if options.weight_format == "bf16" else {}
    try:
        with lifted_caps(), compressed as done:
            main_export(
                model_name_or_path=checkpoint.location,
                output=folder,
                task=task,
                library_name="transformers",
                cache_dir=str(loading["cache_dir"] or HF_HUB_CACHE),
                trust_remote_code=loading["trust_remote_code"],
                ov_config=ov_config,
                stateful=True,
                convert_tokenizer=True,
                **dtype,
            )
        if quantization is not None and not done:
            compress_folder(folder, quantization, loading["trust_remote_code"])
    except Exception as error:
        cause = first_line(error)
        remedy = "run with verbose=True for its full output"
        if "group size" in cause:
            remedy = "give a group_size that divides the model's sizes, or -1 for one group per row"
        elif checkpoint.quantised is not None:
            remedy = (
                f"its weights are quantised already ({checkpoint.quantised}): give the checkpoint before that"
            )
        elif _is_failed_write(error):
            free = shutil.disk_usage(folder).free / 1e6
            remedy = f"writing failed with {free:,.0f} MB left; make room there, or choose another out"
        raise RuntimeError(
            f"optimum-intel could not export '{checkpoint.name}' as {task}: {cause}; {remedy}"
        ) from error


def _is_failed_write(error: Exception) -> bool:
    # OpenVINO's has no number.
    number = error.errno if isinstance(error, OSError) else None
    return number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "iostream error" in str(error)


def _check_weights(checkpoint: Checkpoint, collector: LogCollector) -> None:
    unfit = unfit_weights(collector.messages)
    if unfit is not None:
        raise ValueError(
            f"the config.json of '{checkpoint.name}' does not fit its weights: {unfit}; "
            "get both from the same place again"
        )


def _check_complete(folder: Path, checkpoint: Checkpoint, collector: LogCollector) -> None:
    # optimum-intel only logs a failed conversion of the tokenizer.
    missing = [name for name in _REQUIRED if not (folder / name).is_file()]
    if missing:
        reason = collector.last_about("okenizer").rstrip(".")
        raise RuntimeError(
            f"the export of '{checkpoint.name}' did not write {', '.join(missing)}: {reason}; "
            "ovspec needs a causal language model with a tokenizer that openvino-tokenizers can convert"
        )


def _describe(
    checkpoint: Checkpoint,
    folder: Path,
    config: OvspecConfig,
    draft_source: str | None,
    options: WeightOptions,
) -> None:
    """Write the folder's configuration and model card."""
    config.save(folder)
    text = model_card(
        config, is_hub_id=not checkpoint.is_local, draft_source=draft_source, options=options.given()
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def _no_progress(step: str) -> None:
    """Report nothing."""

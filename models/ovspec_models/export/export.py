"""A Hugging Face checkpoint -> a folder of OpenVINO IR, tokenizer and ``ovspec_config.json``."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from ovspec_models.export.bake import BAKED, bake_operations
from ovspec_models.export.checkpoint import Checkpoint
from ovspec_models.export.compressed_model import compress_folder, compressed_before_saved
from ovspec_models.export.load_report import unfit_weights
from ovspec_models.export.model_card import model_card
from ovspec_models.export.new_folder import check_new_folder, new_folder
from ovspec_models.export.quiet import LogCollector, library_output
from ovspec_models.export.reasons import packages_to_install, reason
from ovspec_models.export.version_caps import lifted_caps
from ovspec_models.export.weight_options import WeightOptions
from ovspec_models.folder.config import CreatedBy, OvspecConfig
from ovspec_models.folder.model_info import ModelInfo
from ovspec_models.folder.tokenizer_check import check_same_token_ids

DRAFT_FOLDER = "draft"
_TASK = "text-generation-with-past"
_REQUIRED = ("openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.xml", "openvino_detokenizer.xml")


def export_model(
    model: str | Path,
    out: str | Path,
    *,
    draft_model: str | Path | None = None,
    operations: Sequence[str] = (),
    allow_partial: bool = False,
    trust_remote_code: bool = False,
    cache_dir: str | Path | None = None,
    task: str = _TASK,
    verbose: bool = False,
    progress: Callable[[str], None] | None = None,
    warn: Callable[[str], None] | None = None,
    finish: Callable[[Path], None] | None = None,
    **weights: Any,
) -> Path:
    """Export `model`, and `draft_model` with it, to the new folder `out`; return `out`.

    The target is written to ``out``, the draft to ``out/draft``, each with its tokenizer and detokenizer.
    `weights` are the fields of `WeightOptions`, for both models: `weight_format`, `group_size`, `ratio`,
    `sym`, `all_layers`, `dataset`, `awq`, `scale_estimation`, `gptq`, `backup_precision`.

    `operations`, out of ``sparse_moe`` and ``sparse_ffn``, are put into the target's IR. It then runs with
    them on CPU, here and in any OpenVINO that has loaded ``ovspec.extension_path()``. A layer of an unknown
    form is refused. With `allow_partial` it stays as it is, and `warn` is called with its name and the
    reason.

    `progress` is called with a short description at the begin of each step. `verbose` shows the output of the
    libraries. `finish` is called at the end with the folder, before it is `out`. `out` appears only when the
    export is complete: a failure or Ctrl-C leaves nothing.

    Raises ValueError for an `out` that is in use, a model that cannot be read, contradicting options and a
    draft with another tokenizer, all before the long work; RuntimeError when the export's packages are
    missing or the export itself fails.
    """
    options = WeightOptions(**weights)
    _check_request(Path(out), operations, allow_partial, task)
    group_sizes = [options.group_size_of(source, cache_dir) for source in (model, draft_model) if source]
    report = progress or _say_nothing
    report("loading the packages of the export")
    require_export_packages()
    report("checking the checkpoints")
    loading = _Loading(task, trust_remote_code, cache_dir, verbose, report, warn or _say_nothing)
    with library_output(verbose):
        target = loading.open(model, "model")
        draft = None if draft_model is None else loading.open(draft_model, "draft_model")
        if draft is not None:
            target.check_draft(draft)
    with new_folder(Path(out), loading.warn) as staging:
        pair = [_Part("target", target, staging, group_sizes[0])]
        if draft is not None:
            pair.append(_Part("draft", draft, staging / DRAFT_FOLDER, group_sizes[1]))
        _write_pair(pair, options, loading, operations, allow_partial)
        if finish is not None:
            finish(staging)
    return Path(out)


@dataclass(frozen=True, slots=True)
class _Part:
    """One model of the pair, the folder that it is exported to, and the size of its groups in int4."""

    role: str
    checkpoint: Checkpoint
    folder: Path
    group_size: int


@dataclass(frozen=True, slots=True)
class _Loading:
    """How checkpoints are read, and what is reported meanwhile."""

    task: str
    trust_remote_code: bool
    cache_dir: str | Path | None
    verbose: bool
    report: Callable[[str], None]
    warn: Callable[[str], None]

    def open(self, source: str | Path, argument: str) -> Checkpoint:
        return Checkpoint.open(
            source, argument, trust_remote_code=self.trust_remote_code, cache_dir=self.cache_dir
        )


def _write_pair(
    pair: list[_Part],
    options: WeightOptions,
    loading: _Loading,
    operations: Sequence[str],
    allow_partial: bool,
) -> None:
    """Export the target, and the draft if there is one; put `operations` into the target; describe both."""
    target, draft = pair[0], pair[1] if len(pair) > 1 else None
    for part in pair:
        weights = options.weight_format or "default"
        loading.report(f"exporting the {part.role} {part.checkpoint.name} ({weights} weights)")
        _export_checked(part, options, loading)
    if draft is not None:
        check_same_token_ids(target.folder, draft.folder)
    # Native operations hide the format of the weights.
    formats = [options.weight_format or ModelInfo.read(part.folder).weight_format() for part in pair]
    held: tuple[str, ...] = ()
    if operations:
        loading.report(f"putting {' and '.join(operations)} into the target")
        baked = bake_operations(target.folder, operations, allow_partial)
        held = baked.operations
        for line in baked.left:
            loading.warn(f"left as it was: {line}")
    loading.report("writing the configuration and the model card")
    _describe(target, formats[0], options, draft.checkpoint if draft else None, held)
    if draft is not None:
        _describe(draft, formats[1], options)


def _check_request(out: Path, operations: Sequence[str], allow_partial: bool, task: str) -> None:
    for name in operations:
        if name not in BAKED:
            raise ValueError(f"operations: {name!r} is not known, expected some of {', '.join(BAKED)}")
    if task != _TASK:
        raise ValueError(f"task is {task!r}, expected {_TASK!r}: only such a model can be generated with")
    if allow_partial and not operations:
        raise ValueError(f"allow_partial needs operations to put in: {', '.join(BAKED)}")
    check_new_folder(out)


def _export_checked(part: _Part, options: WeightOptions, loading: _Loading) -> None:
    """Export one model, and refuse what the libraries only log."""
    with library_output(loading.verbose) as collector:
        try:
            _export_one(part, options, loading)
        except RuntimeError:
            _check_weights(part.checkpoint, collector)  # its message is more precise than the exception
            raise
    _check_weights(part.checkpoint, collector)
    _check_complete(part, collector)


def require_export_packages() -> None:
    """Import the packages of the ``export`` extra, or raise RuntimeError saying how to install them."""
    try:
        import nncf  # noqa: F401
        import optimum.exporters.openvino  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except Exception as error:  # of packages that do not fit each other any class
        raise RuntimeError(
            f"exporting needs torch, optimum-intel, nncf and transformers ({reason(error)}); "
            f"{packages_to_install(error) or f'install them: {_install_command()}'}"
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

    names = [entry.name for entry in fields(CreatedBy)]
    return CreatedBy(**{name: version(name.replace("_", "-")) for name in names})


def _export_one(part: _Part, options: WeightOptions, loading: _Loading) -> None:
    """Write the same files as ``optimum-cli``, compressed before they are written."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from optimum.exporters.openvino import main_export

    source, remote_code = part.checkpoint.location, loading.trust_remote_code
    ov_config = options.to_optimum(source, part.group_size)
    quantization = None if ov_config is None else ov_config.quantization_config
    size = getattr(quantization, "group_size", None)
    if size is not None and options.weight_format == "int4":
        loading.report(f"compressing {part.checkpoint.name} to int4 in groups of {size}")
    compressed = compressed_before_saved(
        source,
        quantization,
        use_cache=loading.task.endswith("with-past"),
        trust_remote_code=remote_code,
        by_size=ov_config is None,
        warn=loading.warn,
        exact_angles=part.checkpoint.model_type == "qwen3_5_text",
    )
    dtype = {"model_loading_kwargs": {"torch_dtype": "bfloat16"}} if options.weight_format == "bf16" else {}
    try:
        with lifted_caps(part.checkpoint.model_type), compressed as done:
            main_export(
                model_name_or_path=source,
                output=part.folder,
                task=loading.task,
                library_name="transformers",
                cache_dir=str(loading.cache_dir or HF_HUB_CACHE),
                trust_remote_code=remote_code,
                ov_config=ov_config,
                stateful=True,
                convert_tokenizer=True,
                **dtype,
            )
        if quantization is not None and not done:
            compress_folder(part.folder, quantization, remote_code)
    except Exception as error:
        what = f"'{part.checkpoint.name}' as {loading.task}"
        raise RuntimeError(
            f"optimum-intel could not export {what}: {reason(error)}; {_remedy(error, part)}"
        ) from error


def _remedy(error: Exception, part: _Part) -> str:
    if "group size" in reason(error):
        return "give a group_size that divides the model's sizes, or -1 for one group per row"
    if part.checkpoint.quantised is not None:
        kind = part.checkpoint.quantised
        return f"its weights are quantised already ({kind}): give the checkpoint before that"
    if _is_failed_write(error):
        free = shutil.disk_usage(part.folder).free / 1e6
        return f"writing failed with {free:,.0f} MB left; make room there, or choose another out"
    return packages_to_install(error) or "run with verbose=True for its full output"


def _is_failed_write(error: Exception) -> bool:
    # OpenVINO raises an error without a number.
    number = error.errno if isinstance(error, OSError) else None
    return number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "iostream error" in str(error)


def _check_weights(checkpoint: Checkpoint, collector: LogCollector) -> None:
    unfit = unfit_weights(collector.messages)
    if unfit is not None:
        raise ValueError(
            f"the config.json of '{checkpoint.name}' does not fit its weights: {unfit}; "
            "get both from the same place again"
        )


def _check_complete(part: _Part, collector: LogCollector) -> None:
    # optimum-intel only logs a failed conversion of the tokenizer.
    missing = [name for name in _REQUIRED if not (part.folder / name).is_file()]
    if missing:
        reason = collector.last_about("okenizer").rstrip(".")
        raise RuntimeError(
            f"the export of '{part.checkpoint.name}' did not write {', '.join(missing)}: {reason}; "
            "ovspec needs a causal language model with a tokenizer that openvino-tokenizers can convert"
        )


def _describe(
    part: _Part,
    weight_format: str,
    options: WeightOptions,
    draft: Checkpoint | None = None,
    operations: Sequence[str] = (),
) -> None:
    """Write the folder's configuration and model card; `draft` and `operations` are those of a target."""
    config = OvspecConfig(
        created_by=package_versions(),
        model=ModelInfo.read(part.folder).section(part.checkpoint.name, weight_format),
        draft_model=DRAFT_FOLDER if draft else None,
        operations=list(operations),
    )
    config.save(part.folder)
    text = model_card(
        config,
        is_hub_id=not part.checkpoint.is_local,
        draft_source=draft.name if draft else None,
        options=options.given(),
    )
    (part.folder / "README.md").write_text(text, encoding="utf-8")


def _say_nothing(line: str) -> None:
    """For `progress` and `warn` that were not given."""

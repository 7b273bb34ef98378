"""Writes a bundle: model, wheels, the scripts that install and run it, and a manifest of all files."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution
from importlib.resources import as_file, files
from pathlib import Path
from typing import Literal

import ovspec
from ovspec.bundle.files.check_files import FORMAT, MANIFEST, relative_files, sha256, this_machine
from ovspec.bundle.wheels import installed_distributions, pack_wheel
from ovspec_models import ModelInfo, OvspecConfig, check_same_token_ids
from ovspec_models.export.export import DRAFT_FOLDER
from ovspec_models.export.new_folder import check_new_folder, new_folder
from ovspec_models.folder.config import CONFIG_NAME
from ovspec_models.folder.head_info import HeadInfo, head_kind

Wheels = Literal["installed", "index"]
_SCRIPTS = ("check_files.py", "install.sh", "run.py", "smoke_test.sh", "README.md")
# The IR (several graphs where a model reads pictures), what is read beside it, and notices that most licences
# require to be passed on.
_LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "COPYING*")
_COPIED = ("openvino_*.xml", "openvino_*.bin", "*.json", "*.jinja", "README.md", *_LICENCES)


@dataclass(frozen=True, slots=True)
class BundleReport:
    """Contents of a bundle; sizes in bytes."""

    out: str
    python: str
    machine: str
    wheels: list[str]
    model_bytes: int
    draft_bytes: int
    wheel_bytes: int
    total_bytes: int


def write_bundle(
    folder: Path,
    out: Path,
    draft_folder: Path | None = None,
    wheels: Wheels = "installed",
    progress: Callable[[str], None] = lambda step: None,
) -> BundleReport:
    """Write a bundle of the model in `folder` to the new folder `out`.

    Args:
        folder: model as `ovspec export` or `optimum-cli export openvino` wrote it.
        out: must not exist, or be empty. It is complete at the end, or does not exist.
        wheels: source of the wheels of other projects: "installed" packs the installed files, "index"
            downloads the installed versions with pip. The wheel of ovspec is always packed from the installed
            files.

    Raises:
        ValueError: an unusable folder, or an installation from which no wheel can be packed.
        RuntimeError: pip could not download a wheel.
        OSError: the folder cannot be written, or the disk is full.
    """
    check_new_folder(out)
    _check_model(folder)
    if draft_folder is not None:
        _check_draft(folder, draft_folder)
    distributions = _distributions()
    try:
        with new_folder(out) as staging:
            progress("copying the model")
            model = staging / "model"
            copy_model(folder, model)
            if draft_folder is not None:
                copy_model(draft_folder, model / DRAFT_FOLDER)
            draft = DRAFT_FOLDER if draft_folder else None
            _set_draft(model, draft)
            (staging / "wheels").mkdir()
            packed = [_wheel(installed, staging / "wheels", wheels, progress) for installed in distributions]
            _copy_scripts(staging)
            (staging / "requirements.txt").write_text(_requirements(distributions, packed), encoding="utf-8")
            progress("writing the manifest")
            _write_manifest(staging, draft)
            report = _report(staging, out, packed)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(
                f"out '{out}': no room for the bundle ({error.strerror}); free some, or choose another folder"
            ) from error
        raise
    return report


def _check_model(folder: Path) -> None:
    info = ModelInfo.read(folder)
    for name, there in (("tokenizer", info.has_tokenizer), ("detokenizer", info.has_detokenizer)):
        if not there:
            raise ValueError(
                f"'{folder}' has no openvino_{name}.xml; export the model again: `ovspec export -m ... OUT`"
            )


def _check_draft(target: Path, draft: Path) -> None:
    if head_kind(draft) is None:
        _check_model(draft)
        check_same_token_ids(target, draft)
    else:
        info = ModelInfo.read(target)
        HeadInfo.read(draft).check_target(
            info.hidden_size, info.num_hidden_layers, info.vocab_size, info.architectures
        )


def _distributions() -> list[Distribution]:
    """The running ovspec and its dependencies."""
    found = installed_distributions("ovspec")
    own = next(entry for entry in found if entry.name == "ovspec")
    running, installed = Path(ovspec.__file__), Path(str(own.locate_file("ovspec/__init__.py")))
    if not own.files or running.resolve() != installed.resolve():
        raise ValueError(
            f"ovspec runs from {running.parent}, which pip did not install; a bundle is made of an "
            "installation: `pip install .` in the checkout, and run the command from elsewhere"
        )
    return found


def copy_model(source: Path, target: Path) -> None:
    """Copy what runs and describes the model of a folder to a new one."""
    target.mkdir(parents=True)
    for path in {path for pattern in _COPIED for path in source.glob(pattern) if path.is_file()}:
        shutil.copyfile(path, target / path.name)


def _set_draft(model: Path, draft: str | None) -> None:
    """Make the copied configuration name the bundled draft model, if it names one."""
    config = OvspecConfig.load(model)
    if config is not None and config.draft_model != draft:
        config.draft_model = draft
        (model / CONFIG_NAME).unlink()
        config.save(model)


def _wheel(installed: Distribution, folder: Path, wheels: Wheels, progress: Callable[[str], None]) -> Path:
    pin = f"{installed.name}=={installed.version}"
    if wheels == "installed" or installed.name == "ovspec":
        progress(f"packing {pin}")
        return pack_wheel(installed, folder)
    progress(f"downloading {pin}")
    before = set(folder.iterdir())
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*command, "--only-binary", ":all:", "--dest", str(folder), pin],
        capture_output=True,
        text=True,
        check=False,
    )
    new = set(folder.iterdir()) - before
    if done.returncode or len(new) != 1:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise RuntimeError(
            f"pip could not download {pin} ({reason}); take --wheels installed, which needs no index"
        )
    return new.pop()


def _copy_scripts(staging: Path) -> None:
    for name in _SCRIPTS:
        with as_file(files("ovspec.bundle").joinpath("files").joinpath(name)) as path:
            shutil.copyfile(path, staging / name)
        (staging / name).chmod(0o644 if name.endswith(".md") else 0o755)


def _requirements(distributions: list[Distribution], wheels: list[Path]) -> str:
    pairs = zip(distributions, wheels, strict=True)
    lines = [f"{entry.name}=={entry.version} --hash=sha256:{sha256(wheel)}" for entry, wheel in pairs]
    return "\n".join(lines) + "\n"


def _write_manifest(staging: Path, draft: str | None) -> None:
    listed = {
        name: {"size": (staging / name).stat().st_size, "sha256": sha256(staging / name)}
        for name in sorted(relative_files(staging))
    }
    manifest = {
        "format": FORMAT,
        "ovspec": ovspec.__version__,
        **this_machine(),
        "draft_model": draft,
        "files": listed,
    }
    (staging / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _report(staging: Path, out: Path, wheels: list[Path]) -> BundleReport:
    def size(paths: Iterable[Path]) -> int:
        return sum(path.stat().st_size for path in paths if path.is_file())

    machine = this_machine()
    draft = size((staging / "model" / DRAFT_FOLDER).rglob("*"))
    return BundleReport(
        out=str(out),
        python=machine["python"],
        machine=f"{machine['system']} {machine['machine']}",
        wheels=sorted(wheel.name for wheel in wheels),
        model_bytes=size((staging / "model").rglob("*")) - draft,
        draft_bytes=draft,
        wheel_bytes=size(wheels),
        total_bytes=size(staging.rglob("*")),
    )

"""Models by the name that they have on a hub, through huggingface_hub and its cache."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from ovspec_models.export.reasons import first_line
from ovspec_models.sources.gguf_file import part_names

_PART = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(rf"({_PART}/{_PART})(?:@([\w./-]+))?(?::([\w./ -]+\.gguf))?")
_FILES = (".gguf", ".xml", ".bin", ".json", ".safetensors")  # how names of files end, and no model's
# What is fetched of a folder of IR: no code, and no weights of another form.
_WANTED = (
    *("openvino_*.xml", "openvino_*.bin", "*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt"),
    *("vocab.txt", "draft/openvino_*.xml", "draft/openvino_*.bin", "draft/*.json", "draft/*.jinja"),
)
_GRAPHS = {"openvino_model.xml", "openvino_language_model.xml"}  # the latter beside those that read pictures
_CHECKPOINTS = ("*.safetensors", "pytorch_model*.bin", "consolidated*.pth")
_MOST_SHOWN = 6


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on a hub: its repository, the revision, and the GGUF file where it is one."""

    repository: str
    revision: str | None = None
    file: str | None = None

    @classmethod
    def of(cls, model: str | Path) -> HubName | None:
        """The name that a text is; `None` where something of it looks like a path."""
        found = _NAME.fullmatch(model) if isinstance(model, str) else None
        if found is None:
            return None
        repository, revision, file = found.groups()
        if Path(repository).parent.exists() or repository.endswith(_FILES):
            return None
        return cls(repository, revision, file)

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return self.repository + revision + (f":{self.file}" if self.file else "")


def fetch(name: HubName, report: Callable[[str], None]) -> Path:
    """Bring a model into huggingface_hub's cache, or find it there; its folder, or its GGUF file.

    Only files of OpenVINO IR, GGUF, tokenizers and configuration are fetched, and none of them is run. What
    is in the cache is taken where the hub can't be reached.

    Args:
        report: called with what is done, before it is.

    Raises:
        ValueError: there is no such model, it can't be had, or it has to be exported; in one line.
    """
    try:
        from huggingface_hub import constants
        from huggingface_hub.utils import HFValidationError, validate_repo_id
    except ImportError:
        raise ValueError(
            f"model folder '{name}' does not exist; to fetch a model of that name from a hub, install "
            "huggingface_hub: `pip install huggingface_hub`"
        ) from None
    try:
        validate_repo_id(name.repository)
    except HFValidationError as error:
        raise ValueError(
            f"'{name}' is no folder here, and no name on a hub ({first_line(error)}): correct it"
        ) from None
    if constants.HF_HUB_OFFLINE:
        return _cached(name, "HF_HUB_OFFLINE is set")
    try:
        return _download(name, report)
    except _UnreachableError as error:
        return _cached(name, str(error))


class _UnreachableError(Exception):
    """The hub gives no answer; the message says why."""


def _download(name: HubName, report: Callable[[str], None]) -> Path:
    from huggingface_hub import HfApi, constants, snapshot_download

    try:
        siblings = HfApi().model_info(name.repository, revision=name.revision).siblings or []
    except Exception as error:  # those of its transports have no class in common
        if isinstance(error, OSError) and error.filename:  # that of the token
            why = f"{error.filename} can't be read ({error.strerror}; HF_HOME sets its folder)"
            raise _UnreachableError(why) from error
        if _status(error) is None:
            raise _UnreachableError(f"{constants.ENDPOINT} can't be reached ({first_line(error)})") from error
        raise ValueError(_refusal(name, error)) from error
    wanted = wanted_files(name, [file.rfilename for file in siblings])
    report(f"fetching {name}")
    try:
        folder = Path(snapshot_download(name.repository, revision=name.revision, allow_patterns=wanted))
    except Exception as error:
        raise ValueError(_refusal(name, error)) from error
    return _of(folder, wanted)


def _cached(name: HubName, why: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name.repository, revision=name.revision, local_files_only=True))
    except Exception as error:
        raise ValueError(
            f"'{name}' is no folder here, nor in huggingface_hub's cache, and {why}: fetch it once with a"
            " network"
        ) from error
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return _of(folder, wanted_files(name, files))


def _of(folder: Path, wanted: Sequence[str]) -> Path:
    return folder / wanted[0] if wanted[0].endswith(".gguf") else folder


def wanted_files(name: HubName, files: Sequence[str]) -> list[str]:
    """Those of a repository's files that are fetched: a GGUF file with its parts, or a folder of IR.

    Raises:
        ValueError: it has no such files, or several to choose from.
    """
    ggufs = sorted(file for file in files if file.endswith(".gguf"))
    if name.file is not None:
        if name.file not in ggufs:
            raise ValueError(f"'{name.repository}' has no file {name.file}; {_some(name, ggufs)}")
        return _parts(name.file, ggufs)
    if not _GRAPHS.isdisjoint(files):
        return [file for file in files if any(_fits(file, pattern) for pattern in _WANTED)]
    firsts = [file for file in ggufs if file == part_names(file)[0]]
    if len(firsts) == 1:
        return _parts(firsts[0], ggufs)
    if firsts:
        raise ValueError(f"'{name}' has {len(firsts)} GGUF files; {_some(name, firsts)}")
    if any(_fits(file, pattern) for file in files for pattern in _CHECKPOINTS):
        raise ValueError(
            f"'{name}' is a checkpoint, not an OpenVINO model or GGUF file; export it first: "
            f"`ovspec export -m {name.repository} OUT`"
        )
    raise ValueError(f"'{name}' holds no OpenVINO model (openvino_model.xml), GGUF file or checkpoint")


def _fits(file: str, pattern: str) -> bool:
    """Whether a pattern names a file; a star takes no folder."""
    return file.count("/") == pattern.count("/") and fnmatch(file, pattern)


def _some(name: HubName, files: Sequence[str]) -> str:
    if not files:
        return "it has no GGUF file"
    revision = f"@{name.revision}" if name.revision else ""
    more = f" and {len(files) - _MOST_SHOWN} more" if len(files) > _MOST_SHOWN else ""
    return (
        f"give one, such as {name.repository}{revision}:{files[0]} "
        f"(there are {', '.join(files[:_MOST_SHOWN])}{more})"
    )


def _parts(file: str, files: Sequence[str]) -> list[str]:
    """A file, or those parts of it that there are, the first one first."""
    return [part for part in part_names(file) if part in files]


def _status(error: BaseException | None) -> int | None:
    """What the hub answered, an HTTP status; `None` where it gave no answer."""
    return getattr(getattr(error, "response", None), "status_code", None)


def _refusal(name: HubName, error: Exception) -> str:
    """One line about a model that can't be had."""
    from huggingface_hub import constants, errors

    where = f"'{name}' is no folder here, and on {constants.ENDPOINT}"
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{where} it is for those who took its terms: take them there, and log in with "
            "`hf auth login` or HF_TOKEN"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{where} there is no such model, or it is private: correct the name, or log in with "
            "`hf auth login` or HF_TOKEN"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{where} the model has no revision {name.revision}: leave @{name.revision} out, or correct it"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return (
            f"'{name}' does not fit on the disk of {constants.HF_HUB_CACHE}: make room there, or set "
            "HF_HUB_CACHE to another folder"
        )
    if isinstance(error, OSError) and error.filename:
        where = f"{error.filename}: {error.strerror}"
        return f"'{name}' could not be fetched ({where}): set HF_HOME to another folder"
    return (
        f"'{name}' could not be fetched from {constants.ENDPOINT} ({first_line(error)}); the next try goes "
        "on from there"
    )

"""Wheels of the base install, repacked from the files that pip installed."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Files that installers add to those of the wheel.
_OF_THE_INSTALLER = ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD", "RECORD.jws", "RECORD.p7s")
_PYTHON_LINE = re.compile(rb"#!.*python[^\n]*")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # a constant, so that the wheel is reproducible


def installed_distributions(root: str) -> list[Distribution]:
    """The distribution `root` and its dependencies without extras, by name.

    Raises:
        ValueError: one of them is missing or has a version that does not fit.
    """
    found: dict[str, Distribution] = {}
    queue = [(Requirement(root), "this command")]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        requirement, asker = queue.pop()
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        try:
            installed = distribution(requirement.name)
        except PackageNotFoundError:
            raise ValueError(
                f"{requirement.name} is not installed, but {asker} needs it; pip install '{requirement}'"
            ) from None
        if not requirement.specifier.contains(installed.version, prereleases=True):
            raise ValueError(
                f"{requirement.name} {installed.version} is installed, but {asker} needs {requirement}; "
                f"pip install '{requirement}'"
            )
        if key in seen:
            continue
        seen.add(key)
        found[key[0]] = installed
        for line in installed.requires or ():
            needed = Requirement(line)
            extras = {"", *requirement.extras}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                queue.append((needed, requirement.name))
    return [found[name] for name in sorted(found)]


def pack_wheel(installed: Distribution, folder: Path) -> Path:
    """Repack the wheel from which `installed` was installed and write it to `folder`.

    The wheel contains the files that RECORD lists, without those that pip makes at installation (bytecode,
    commands of entry points).

    Raises:
        ValueError: it was not installed from a wheel, or a file is missing or was changed.
    """
    wheel = folder / wheel_name(installed)
    record = io.StringIO()
    writer = csv.writer(record, lineterminator="\n")
    dist_info = _dist_info(installed)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, mode, content in _files(installed, dist_info):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
            writer.writerow([name, f"sha256={_digest(content, 'sha256')}", len(content)])
        writer.writerow([f"{dist_info}/RECORD", "", ""])
        archive.writestr(zipfile.ZipInfo(f"{dist_info}/RECORD", _EPOCH), record.getvalue())
    return wheel


def wheel_name(installed: Distribution) -> str:
    """The file name of a distribution's wheel, with the tags that it was built with."""
    text = installed.read_text("WHEEL")
    if text is None or installed.files is None:
        raise ValueError(
            f"{installed.name} {installed.version} has no record of its files, as pip leaves it; install it "
            "with pip (ovspec: `pip install .` in the checkout) in a virtual environment"
        )
    tags = [
        line.partition(":")[2].strip().split("-") for line in text.splitlines() if line.startswith("Tag:")
    ]
    parts = [".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True)]
    name = canonicalize_name(installed.name).replace("-", "_")
    return "-".join([name, installed.version, *parts]) + ".whl"


def _files(installed: Distribution, dist_info: str) -> Iterator[tuple[str, int, bytes]]:
    """Name in the wheel, mode and content of every file."""
    commands = {entry.name for entry in installed.entry_points if entry.group.endswith("_scripts")}
    for listed in installed.files or ():
        if listed.suffix == ".pyc" or (listed.parent.name == dist_info and listed.name in _OF_THE_INSTALLER):
            continue
        path = Path(str(installed.locate_file(listed)))
        name = str(listed)
        if name.startswith("..") or listed.is_absolute():
            placed = _outside_of_packages(path, commands)
            if placed is None:
                continue
            name = f"{dist_info.removesuffix('.dist-info')}.data/{placed}"
        content = _read(installed, listed, path)
        if name.startswith(f"{dist_info.removesuffix('.dist-info')}.data/scripts/"):
            content = _PYTHON_LINE.sub(b"#!python", content, count=1)
        yield name, path.stat().st_mode & 0o777, content


def _outside_of_packages(path: Path, commands: set[str]) -> str | None:
    """Path in the wheel of a file outside of site-packages; `None` for the command of an entry point."""
    path = path.resolve()
    if path.parent.name == "bin" and path.name in commands:
        return None
    for kind in ("scripts", "data"):
        root = Path(sysconfig.get_path(kind)).resolve()
        if path.is_relative_to(root):
            return f"{kind}/{path.relative_to(root).as_posix()}"
    raise ValueError(
        f"{path} lies outside of the environment in use; install ovspec in a virtual environment"
    )


def _read(installed: Distribution, listed: PackagePath, path: Path) -> bytes:
    remedy = f"pip install --force-reinstall --no-deps '{installed.name}=={installed.version}'"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} of {installed.name} can't be read ({error.strerror}); {remedy}") from error
    if listed.hash and _digest(content, listed.hash.mode) != listed.hash.value:
        raise ValueError(f"{path} of {installed.name} was changed after its installation; {remedy}")
    return content


def _digest(content: bytes, mode: str) -> str:
    digest = hashlib.new(mode, content).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _dist_info(installed: Distribution) -> str:
    # Some packages contain others with their metadata.
    return next(
        file.parts[0]
        for file in installed.files or ()
        if len(file.parts) == 2 and file.parts[0].endswith(".dist-info")
    )

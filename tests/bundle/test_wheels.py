"""Wheels that are packed from an installation install the same files again."""

from __future__ import annotations

import shutil
import sys
import zipfile
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from commands import command

from ovspec.bundle.wheels import installed_distributions, pack_wheel


def files_of(installed: Distribution) -> dict[str, str | None]:
    """Path -> hash, of the files that came with the wheel."""
    own = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")
    return {
        str(file): file.hash.value if file.hash else None
        for file in installed.files or ()
        if file.suffix != ".pyc" and file.name not in own and not str(file).startswith("..")
    }


def copied(name: str, folder: Path) -> PathDistribution:
    """A distribution whose files may be damaged."""
    source = distribution(name)
    for file in source.files or ():
        path = Path(str(source.locate_file(file)))
        if not str(file).startswith("..") and path.is_file():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / file)
    return PathDistribution(next(folder.glob("*.dist-info")))


# Pure Python with an entry point, and native code with libraries beside it.
@pytest.mark.parametrize("name", ["markdown-it-py", "openvino-tokenizers"])
def test_installed_again_it_is_the_same(name: str, tmp_path: Path) -> None:
    installed = distribution(name)
    wheel = pack_wheel(installed, tmp_path)
    pip = [sys.executable, "-m", "pip", "--isolated", "install", "--no-index", "--no-deps", "--quiet"]
    run = command(*pip, "--target", tmp_path / "site", wheel)
    assert run.returncode == 0, run.stderr
    again = PathDistribution(next((tmp_path / "site").glob("*.dist-info")))
    assert files_of(again) == files_of(installed) != {}
    commands = {entry.name for entry in installed.entry_points if entry.group == "console_scripts"}
    assert {path.name for path in (tmp_path / "site").glob("bin/*")} == commands
    assert pack_wheel(installed, tmp_path).read_bytes() == wheel.read_bytes()


def test_modes_are_kept(tmp_path: Path) -> None:
    wheel = pack_wheel(distribution("openvino-tokenizers"), tmp_path)
    root = Path(str(distribution("openvino-tokenizers").locate_file("")))
    for entry in zipfile.ZipFile(wheel).infolist():
        if not entry.filename.endswith("RECORD"):
            assert entry.external_attr >> 16 & 0o777 == (root / entry.filename).stat().st_mode & 0o777


def test_a_changed_or_missing_file_is_refused(tmp_path: Path) -> None:
    installed = copied("mdurl", tmp_path / "site")
    pack_wheel(installed, tmp_path)
    path = tmp_path / "site" / "mdurl" / "_parse.py"
    path.write_text(path.read_text() + "\n")
    with pytest.raises(ValueError, match=r"_parse\.py of mdurl was changed .* --force-reinstall"):
        pack_wheel(installed, tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=r"_parse\.py of mdurl can't be read"):
        pack_wheel(installed, tmp_path)


def test_without_a_record_it_is_refused(tmp_path: Path) -> None:
    installed = copied("mdurl", tmp_path / "site")
    next((tmp_path / "site").glob("*.dist-info/RECORD")).unlink()
    with pytest.raises(ValueError, match="no record of its files"):
        pack_wheel(installed, tmp_path)


def test_all_that_is_needed_and_no_more() -> None:
    names = [found.name.lower().replace("_", "-") for found in installed_distributions("rich")]
    assert names == ["markdown-it-py", "mdurl", "pygments", "rich"]
    with pytest.raises(ValueError, match=r"rich .* is installed, but this command needs rich<1"):
        installed_distributions("rich<1")
    with pytest.raises(ValueError, match="no-such-thing is not installed"):
        installed_distributions("no-such-thing")

"""A bundle's files are read once; after that only what was written since, or all of them when asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import command

import ovspec.bundle.files.check_files as script

# Prints which files were opened for reading, from the interpreter's audit events.
_LISTED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from check_files import check_files
folder, opened = Path(sys.argv[2]), []
sys.addaudithook(lambda event, a: opened.append(str(a[0])) if event == "open" else None)
check_files(folder, sys.argv[3] == "all")
print(*sorted(Path(name).name for name in opened if Path(name).parent == folder / "model"))
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("a.bin", "b.bin"):
        (model / name).write_bytes(name.encode() * 1000)
    files = {
        f"model/{path.name}": {"size": path.stat().st_size, "sha256": script.sha256(path)}
        for path in model.iterdir()
    }
    said = {"format": script.FORMAT, **script.this_machine(), "draft_model": None, "files": files}
    (tmp_path / "manifest.json").write_text(json.dumps(said))
    (tmp_path / "venv").mkdir()
    return tmp_path


def read_files(bundle: Path, which: str = "changed") -> subprocess.CompletedProcess[str]:
    return command(sys.executable, "-c", _LISTED, Path(script.__file__).parent, bundle, which)


def test_a_second_start_reads_nothing(bundle: Path) -> None:
    assert [read_files(bundle).stdout.split() for _ in range(3)] == [["a.bin", "b.bin"], [], []]
    assert read_files(bundle, "all").stdout.split() == ["a.bin", "b.bin"]


def test_what_was_written_since_is_read_and_refused(bundle: Path) -> None:
    read_files(bundle)
    file = bundle / "model" / "b.bin"
    before = file.stat()
    file.write_bytes(b"c" * before.st_size)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        run = read_files(bundle)
        assert run.returncode and "b.bin was changed" in run.stderr and not run.stdout
    file.write_bytes(b"b.bin" * 1000)
    assert read_files(bundle).stdout.split() == ["b.bin"] and not read_files(bundle).stdout.split()


def test_a_new_manifest_or_a_damaged_note_reads_all(bundle: Path) -> None:
    read_files(bundle)
    (bundle / "venv" / "checked.json").write_text("{")
    assert read_files(bundle).stdout.split() == ["a.bin", "b.bin"]
    manifest = bundle / "manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    assert read_files(bundle).stdout.split() == ["a.bin", "b.bin"]


@pytest.mark.parametrize("name", ["run.py", "check_files.py", "install.sh", "smoke_test.sh"])
def test_scripts_can_be_run(tmp_path: Path, name: str) -> None:
    from ovspec.bundle.bundle import _copy_scripts

    _copy_scripts(tmp_path)
    run = command(tmp_path / name, "-p", "x")
    assert run.returncode == 2 and "error: " in run.stderr, run.stderr


def test_the_installation_names_its_steps(bundle: Path) -> None:
    from ovspec.bundle.bundle import _copy_scripts

    _copy_scripts(bundle)
    run = command(bundle / "install.sh")
    assert run.returncode == 2 and run.stdout == "install.sh: comparing the files with the manifest\n"


def test_a_start_without_options(bundle: Path) -> None:
    """It is that of `ovspec generate`, which says what it needs."""
    from ovspec.bundle.bundle import _copy_scripts

    _copy_scripts(bundle)
    manifest = bundle / "manifest.json"
    files = {name: bundle / name for name in script.relative_files(bundle)}
    listed = {name: {"size": f.stat().st_size, "sha256": script.sha256(f)} for name, f in files.items()}
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "files": listed}))
    python = bundle / "venv" / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    (bundle / "venv" / "installed").touch()
    run = command(bundle / "run.py")
    assert run.stdout == f"-I -m ovspec generate --model {bundle}/model --draft-model none\n", run.stderr

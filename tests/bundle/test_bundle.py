"""`ovspec bundle`: it installs and runs without a network, and refuses to run when it was changed."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import command, installed_ovspec, isolated, one_line, ovspec, refusal

from ovspec_models import demo_pair_path

# A wheel is built and an environment installed: half a minute.
pytestmark = pytest.mark.slow

PROMPT = "Once upon a time, there was a little girl named Lily. She"
F32 = ("--property", "INFERENCE_PRECISION_HINT=f32", "--property", "KV_CACHE_PRECISION=f32")
ROOT = Path(__file__).parents[2]


def run_py(bundle: Path, *arguments: str) -> Any:
    return isolated(sys.executable, bundle / "run.py", *arguments)


def test_runs_offline_and_says_what_the_installation_here_says(bundle: Path) -> None:
    options = ("-p", PROMPT, "--max-new-tokens", "24", "--json", *F32)
    there = run_py(bundle, *options)
    assert there.returncode == 0, there.stderr
    here = ovspec("generate", "-m", demo_pair_path(), *options)
    ours, theirs = json.loads(there.stdout), json.loads(here.stdout)
    assert ours["text"] == theirs["text"]
    assert ours["draft_model"] == str(bundle / "model" / "draft")


def test_the_commands_of_the_page(bundle: Path) -> None:
    """The fixtures ran the first two, with the demo pair in the place of the exported one."""
    text = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    make, install, run = text.partition("```sh\novspec bundle")[2].partition("```")[0].strip().splitlines()
    assert (make, install) == ("qwen3 bundle", "bundle/install.sh")
    assert run.startswith("python3 bundle/run.py")
    done = command("sh", "-c", run, cwd=bundle.parent)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_generate_options_are_taken_and_a_model_is_not(bundle: Path) -> None:
    plain = run_py(bundle, "-p", PROMPT, "--drafter=none", "--max-new-tokens", "3", "--json")
    assert plain.returncode == 0, plain.stderr
    assert json.loads(plain.stdout)["draft_model"] is None
    assert "--top-p" in one_line(run_py(bundle, "-p", PROMPT, "--top-p", "0.5"))
    for option in ("-m", "-mother", "--model=other"):
        assert "leave it out" in one_line(run_py(bundle, option, "-p", PROMPT))


def test_the_environment_holds_the_base_install_alone(bundle: Path, report: dict[str, Any]) -> None:
    found = {path.name.split("-")[0].lower() for path in (bundle / "venv").rglob("*.dist-info")}
    assert found - {"pip", "setuptools"} == {name.split("-")[0] for name in report["wheels"]}
    assert not found & {"torch", "transformers", "nncf", "optimum_intel"}


@pytest.mark.parametrize("kind", ["changed", "missing", "extra", "link", "manifest"])
def test_a_damaged_bundle_is_refused(bundle: Path, kind: str) -> None:
    path = bundle / {"extra": "model/new.json", "manifest": "manifest.json"}.get(
        kind, "model/openvino_model.bin"
    )
    content = path.read_bytes() if path.exists() else None
    try:
        if kind == "changed":
            assert content is not None
            middle = len(content) // 2
            path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        elif kind == "extra":
            path.write_text("{}")
        elif kind == "manifest":
            path.write_text("[]")
        else:
            path.unlink()
            if kind == "link":
                path.symlink_to(demo_pair_path() / path.name)
        assert path.name in one_line(run_py(bundle, "-p", PROMPT))
        installation = isolated(bundle / "install.sh")  # prints its steps before it refuses
        [line] = refusal(installation.stderr)
        assert installation.returncode == 2 and path.name in line
    finally:
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
    assert (bundle / "venv" / "installed").is_file()


def test_sizes_are_those_of_the_files(report: dict[str, Any], bundle: Path) -> None:
    files = [path for path in bundle.rglob("*") if path.is_file() and "venv" not in path.parts]
    assert report["total_bytes"] == sum(path.stat().st_size for path in files)
    wheels = [path for path in files if path.suffix == ".whl"]
    assert report["wheel_bytes"] == sum(path.stat().st_size for path in wheels)
    assert report["wheels"] == sorted(path.name for path in wheels)
    draft = [path for path in files if "draft" in path.parts]
    assert report["draft_bytes"] == sum(path.stat().st_size for path in draft) > 0


def test_wheels_from_an_index(bundle: Path, report: dict[str, Any], tmp_path: Path) -> None:
    """pip finds no index here, but a folder that holds the wheels."""
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(bundle / "wheels"), "PATH": "/usr/bin:/bin"}
    options = ("--wheels", "index", "--draft-model", "none", "--json")
    run = installed_ovspec("bundle", demo_pair_path(), tmp_path / "out", *options, env=environment)
    assert run.returncode == 0, run.stderr
    made = json.loads(run.stdout)
    assert made["wheels"] == report["wheels"] and made["draft_bytes"] == 0
    assert (tmp_path / "out/requirements.txt").read_text() == (bundle / "requirements.txt").read_text()
    assert json.loads((tmp_path / "out/model/ovspec_config.json").read_text())["draft_model"] is None
    environment["PIP_FIND_LINKS"] = str(tmp_path)
    refused = one_line(
        installed_ovspec("bundle", demo_pair_path(), tmp_path / "b", "--wheels", "index", env=environment)
    )
    assert "could not download" in refused and not (tmp_path / "b").exists()


def test_a_full_folder_leaves_nothing(needs_installation: None, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    run = installed_ovspec("bundle", demo_pair_path(), tmp_path / "a" / "out", preexec_fn=limit)
    assert f"out '{tmp_path / 'a' / 'out'}': no room" in one_line(run)
    assert list(tmp_path.iterdir()) == []


def test_what_can_not_be_bundled(needs_installation: None, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    assert "is not empty" in one_line(ovspec("bundle", demo_pair_path(), tmp_path))
    assert "cannot be made" in one_line(ovspec("bundle", demo_pair_path(), tmp_path / "mine.txt" / "out"))
    assert "is no OpenVINO model" in one_line(ovspec("bundle", tmp_path, tmp_path / "out"))
    absent = ovspec("bundle", demo_pair_path(), tmp_path / "out", "--draft-model", tmp_path / "absent")
    assert "does not exist" in one_line(absent)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_checkout_is_refused(tmp_path: Path) -> None:
    paths = [str(ROOT / part) for part in (".", "models", "transforms", "custom_ops")]
    run = installed_ovspec("bundle", demo_pair_path(), tmp_path / "out", env={"PYTHONPATH": ":".join(paths)})
    assert "`pip install .`" in one_line(run)
    assert not (tmp_path / "out").exists()

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import openvino as ov
import pytest

import ovspec_ops
from ovspec_ops import loader
from ovspec_ops.self_check import CheckResult, self_check


@pytest.mark.slow
def test_self_check_passes_on_every_instruction_set() -> None:
    before = ovspec_ops.active_isa()
    results = self_check()
    assert {r.isa for r in results} == set(ovspec_ops.available_isas())
    attention = {"VerifyAttention", "CacheWrite", "KeySummary", "BlockSelect"}
    others = {"DecoderLayers", "SparseMoE", "GatedMLP", "Linear"}
    assert {r.name.split()[0] for r in results} == attention | others
    assert [r for r in results if not r.ok] == []
    assert ovspec_ops.active_isa() == before


def test_nan_is_no_pass() -> None:
    assert not CheckResult("x", "plain", float("nan"), 1.0).ok


def test_best_instruction_set_is_first_and_plain_is_last() -> None:
    isas = ovspec_ops.available_isas()
    order = ("amx", "avx512vnni", "avx512", "avx2vnni", "avx2", "plain")
    assert isas == [isa for isa in order if isa in isas]
    assert isas[-1] == "plain"


def test_instruction_sets_for_tests_are_never_offered() -> None:
    for_tests = {"avx512tiles", "avx2x16", "avx2dot"}
    assert for_tests.isdisjoint(ovspec_ops.available_isas())
    assert set(loader.isas_for_tests()) <= for_tests


def test_the_library_under_test_is_a_developers_build() -> None:
    """Else the instruction sets for tests are missing, and their tests are skipped."""
    assert loader.build_info()["developer"] == "ON", (
        "build it with -DOVSPEC_DEVELOPER=ON, as `make test` does"
    )


def test_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"instruction set is 'avx1024', which is no instruction set"):
        loader.set_isa("avx1024")


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(ovspec_ops.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_environment_forces_an_instruction_set() -> None:
    done = python("import ovspec_ops; print(ovspec_ops.active_isa())", OVSPEC_ISA="plain")
    assert done.stdout.strip() == "plain", done.stderr


@pytest.mark.parametrize("name", ["sse9", "AVX2", "avx512"])
def test_environment_that_cannot_be_met_is_an_error(name: str) -> None:
    if name in ovspec_ops.available_isas():
        pytest.skip(f"this processor has {name}")
    done = python("import openvino, ovspec_ops; ovspec_ops.load(openvino.Core())", OVSPEC_ISA=name)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"RuntimeError: ovspec_ops: OVSPEC_ISA is '{name}'")


@pytest.mark.parametrize("content", ["[" * 100_000, '{"openvino_version": "%s"}' % ("9\\n" * 50_000)])
def test_damaged_build_info_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
) -> None:
    library = tmp_path / "libovspec_ops.so"
    library.touch()
    (tmp_path / "_build_info.json").write_text(content, encoding="utf-8")
    monkeypatch.setenv("OVSPEC_EXTENSION_LIB", str(library))
    with pytest.raises(RuntimeError) as caught:
        loader.check_versions()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OVSPEC_EXTENSION_LIB", str(tmp_path / "nothing.so"))
    with pytest.raises(RuntimeError, match=r"no native library at .*nothing\.so; ") as caught:
        ovspec_ops.load(ov.Core())
    assert "\n" not in str(caught.value)


def test_library_of_another_openvino_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "libovspec_ops.so"
    shutil.copy(ovspec_ops.extension_path(), library)
    (tmp_path / "_build_info.json").write_text(json.dumps({"openvino_version": "2025.3.0-1"}))
    monkeypatch.setenv("OVSPEC_EXTENSION_LIB", str(library))
    with pytest.raises(
        RuntimeError, match=r"built for OpenVINO 2025\.3\.0, but OpenVINO .* runs; install"
    ) as caught:
        ovspec_ops.load(ov.Core())
    assert "\n" not in str(caught.value)


def test_library_without_build_info_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "libovspec_ops.so"
    library.write_bytes(b"")
    monkeypatch.setenv("OVSPEC_EXTENSION_LIB", str(library))
    with pytest.raises(RuntimeError, match=r"cannot read .*_build_info\.json"):
        ovspec_ops.load(ov.Core())


def test_library_was_built_for_the_version_it_names() -> None:
    assert loader.build_info()["openvino_version"] == loader._native().ovspec_openvino_version().decode()

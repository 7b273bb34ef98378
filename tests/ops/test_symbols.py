"""No kernel leaves a function under a name that instruction sets share: the linker would keep any one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = sorted((Path(__file__).parents[2] / "custom_ops/ovspec_ops").glob("*/kernel.cpp"))
# The widest set compiles every header's code; nothing of it runs here. Without optimisation no function is
# inlined unless its attribute says so.
OPTIONS = (
    "-std=c++17 -O0 -fPIC -fno-exceptions -w -DOVSPEC_ISA=amx -DOVSPEC_LANES=16 -DOVSPEC_DOT -DOVSPEC_AMX "
    "-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mamx-tile -mamx-int8"
)
# And what the compiler itself links, for `__builtin_cpu_supports`.
C_LIBRARY = {"memcpy", "memset", "memmove", "memcmp", "__stack_chk_fail", "_GLOBAL_OFFSET_TABLE_"}
COMPILER = {"__cpu_model", "__cpu_features2"}


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda path: path.parent.name)
def test_every_symbol_belongs_to_one_instruction_set(kernel: Path, tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler, "no C++ compiler: the library is built with one"
    (tmp_path / "ovspec_isas.hpp").write_text(
        "#define OVSPEC_ISAS(use, ...) use(amx, amx, false, __VA_ARGS__)\n"
    )
    includes = [f"-I{kernel.parents[1]}", f"-I{tmp_path}"]
    target = tmp_path / "kernel.o"
    subprocess.run([compiler, *OPTIONS.split(), *includes, "-c", kernel, "-o", target], check=True)
    listed = subprocess.run(["nm", "--portability", target], check=True, capture_output=True, text=True)
    symbols = [line.split()[:2] for line in listed.stdout.splitlines()]
    assert any(kind == "D" or kind == "R" for _, kind in symbols), "the table of kernels is missing"
    # Lower case: seen in this object file only. "v" and "w" are weak.
    shared = {
        name for name, kind in symbols if (kind.isupper() or kind in "uvw") and "6ovspec3amx" not in name
    }
    assert shared <= C_LIBRARY | COMPILER

"""What a tile loads is in memory before it is loaded: GCC's intrinsic does not say that it reads memory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "custom_ops/ovspec_ops"
OPTIONS = (
    "-std=c++17 -O3 -fno-exceptions -w -DOVSPEC_ISA=amx -DOVSPEC_LANES=16 -DOVSPEC_DOT -DOVSPEC_AMX "
    "-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mamx-tile -mamx-int8"
)
# One buffer holds what two tiles load, one after the other, as kernels fill theirs anew for each step.
PROBE = """
#include "common/tiles.hpp"
namespace ovspec::OVSPEC_ISA::tiles {
void loads(const std::uint8_t* first, const std::uint8_t* second, IVec* sums) {
    alignas(64) std::uint8_t copy[64];
    __builtin_memcpy(copy, first, sizeof(copy));
    OVSPEC_LOAD_TILE(0, copy, 0);
    __builtin_memcpy(copy, second, sizeof(copy));
    OVSPEC_LOAD_TILE(1, copy, 0);
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 16, 64);
}
}
"""
COMPILERS = sorted(
    {
        Path(found).resolve()
        for name in (os.environ.get("CXX", "c++"), *(f"g++-{version}" for version in range(11, 20)))
        if (found := shutil.which(name))
    }
)
STORE, LOAD = re.compile(r"\tvmov\w+ +%[xyz]mm\d+,.*\(%r[bs]p\)"), re.compile(r"\ttileloadd ")


@pytest.mark.parametrize("compiler", COMPILERS, ids=lambda path: path.name)
def test_stores_stand_before_the_tile_loads_that_read_them(compiler: Path, tmp_path: Path) -> None:
    disassembler = shutil.which("objdump")
    if disassembler is None:
        pytest.skip("no objdump")
    source, target = tmp_path / "probe.cpp", tmp_path / "probe.o"
    source.write_text(PROBE)
    command = [compiler, *OPTIONS.split(), f"-I{PACKAGE}", "-c", source, "-o", target]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    if "-mamx" in built.stderr:
        pytest.skip(f"{compiler.name} has no AMX: {built.stderr.splitlines()[0]}")
    assert built.returncode == 0, built.stderr
    listing = subprocess.run(
        [disassembler, "--disassemble", "--no-show-raw-insn", target],
        check=True,
        capture_output=True,
        text=True,
    )
    kinds = [
        "store" if STORE.search(line) else "load"
        for line in listing.stdout.splitlines()
        if STORE.search(line) or LOAD.search(line)
    ]
    # A copy may be several stores.
    turns = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    assert turns == ["store", "load", "store", "load"], listing.stdout


def test_kernels_load_tiles_behind_the_barrier_only() -> None:
    users = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.glob("*/*.[ch]pp"))
        if "_tile_loadd(" in path.read_text(encoding="utf-8")
    ]
    assert users == ["common/emulated_tiles.hpp", "common/tiles.hpp"]

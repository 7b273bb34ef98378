"""`ovspec info --self-check --model` proves a user's model, and names the first operation that differs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from commands import ovspec
from openvino import opset15 as ops

from ovspec.proofs.row_check import check_rows

SUM = "mean of the pass"


@pytest.fixture(scope="module")
def broken_ir(demo_ir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo target, in whose third layer every row gets a little of the mean of all rows of its pass."""
    folder = tmp_path_factory.mktemp("broken") / "model"
    shutil.copytree(demo_ir, folder, ignore=shutil.ignore_patterns("draft", "openvino_model.*"))
    model = ov.Core().read_model(demo_ir / "openvino_model.xml")
    residual = next(
        node for node in model.get_ordered_ops()
        if node.get_friendly_name() == "__module.model.layers.2/aten::add/Add"
    )  # fmt: skip
    readers = list(residual.output(0).get_target_inputs())
    share = ops.multiply(ops.reduce_mean(residual.output(0), [0, 1], keep_dims=True), np.float32(0.01))
    broken = ops.add(residual.output(0), share)
    broken.set_friendly_name(SUM)
    for reader in readers:
        reader.replace_source_output(broken.output(0))
    model.validate_nodes_and_infer_types()
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    return folder


@pytest.mark.slow
def test_a_sound_model(demo_ir: Path) -> None:
    run = ovspec("info", "--self-check", "--model", demo_ir, "--splits", "2", "--json")
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert told["rows"] == {"splits": 2, "difference": None, "identity_breakers": []}
    assert told["verdict"].endswith(
        f"; rows of {demo_ir} have the same bits in 2 random splits, and with one thread"
    )


@pytest.mark.slow
def test_the_first_operation_that_differs_is_named(broken_ir: Path) -> None:
    run = ovspec("info", "--self-check", "--model", broken_ir, "--splits", "2")
    assert run.returncode == 1
    assert f"a row depends on its pass: Add {SUM}: " in run.stderr
    assert run.stdout.splitlines()[-1].endswith(f"; FAILED: rows of {broken_ir} depend on their pass")


@pytest.mark.slow
def test_properties_reach_the_check(demo_ir: Path) -> None:
    by_channel = {"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_CHANNEL"}
    found = check_rows(demo_ir, 1, by_channel)
    assert [reason.split(":")[0] for reason in found.identity_breakers] == ["u8 keys by channel"]
    # The first layer's keys by channel are rounded with those of other passes, so its attention is the first.
    assert found.difference is not None and found.difference.startswith("VerifyAttention of layer 0: ")


REFUSED = {
    "a model without a check": (["--model", "MODEL"], "--model is for --self-check"),
    "a property without a model": (["--self-check", "--property", "A=1"], "--property A=1 is for a model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, demo_ir: Path) -> None:
    arguments, message = REFUSED[name]
    run = ovspec("info", *(demo_ir if argument == "MODEL" else argument for argument in arguments))
    assert run.returncode == 2 and message in run.stderr

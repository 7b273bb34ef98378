"""How a head's folder is recognised, and the message for one that does not fit its target."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import openvino as ov
import pytest
from commands import ovspec as command
from drafters.eagle3_models import BOUNDARIES, CONFIG, DRAFTED, HIDDEN, LAYERS, VOCAB, Pair, Reference, pair
from openvino import opset15 as ops
from safetensors.torch import load_file, save_file
from settings import F32

import ovspec
from ovspec.drafters.eagle3 import eagle3_boundaries
from ovspec.operations.backends import Backends
from ovspec.pipeline.models.head_model import draft_choices
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.folder.head_info import HeadInfo, head_kind
from ovspec_models.heads import check_target, export_head, open_head


@pytest.fixture(scope="module")
def models() -> Pair:
    return pair("llama")


def exported(models: Pair, folder: Path, **config: Any) -> Path:
    """The head's folder with other facts in its config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (folder / name).symlink_to(models.folder / "draft" / name)
    found = json.loads((models.folder / "draft" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**found, **config}))
    return folder


def load(models: Pair, folder: Path) -> None:
    found = draft_choices(ovspec.draft_model(folder), models.info, "dense", "CPU", "native", F32, None)
    assert found is not None
    found.load(VOCAB, 32)


def refusal(models: Pair, folder: Path) -> str:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        load(models, folder)
    return str(caught.value)


def test_kind_of_a_folder(models: Pair, tmp_path: Path) -> None:
    assert head_kind(models.folder / "draft") == head_kind(models.folder / "checkpoint") == "eagle3"
    assert head_kind(models.folder) is None and head_kind(tmp_path) is None
    for architecture in ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
        assert head_kind(tmp_path) == "eagle3"
    # The IR marks itself as a head, whatever its config.json says.
    folder = exported(models, tmp_path / "ir", architectures=["LlamaForCausalLM"])
    assert head_kind(folder) == "eagle3"


def test_boundaries(models: Pair, tmp_path: Path) -> None:
    assert eagle3_boundaries(32) == (2, 16, 29) and eagle3_boundaries(LAYERS) == BOUNDARIES
    with pytest.raises(ValueError, match="2 layers only"):
        eagle3_boundaries(2)
    named = exported(models, tmp_path / "named", eagle_aux_hidden_state_layer_ids=[1, 2, 3])
    assert HeadInfo.read(named).boundaries == (1, 2, 3)
    nested = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    assert HeadInfo.read(exported(models, tmp_path / "n", eagle_config=nested)).boundaries == (2, 3, 4)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"target_hidden_size": 128}, f"its hidden size is 128, this target's {HIDDEN}"),
        ({"vocab_size": 99}, f"its vocabulary is 99, this target's {VOCAB}"),
        ({"target_num_layers": 9}, f"its number of layers is 9, this target's {LAYERS}"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, f"it reads {3 * HIDDEN} numbers"),
    ],
)
def test_heads_for_other_targets(models: Pair, tmp_path: Path, config: dict[str, Any], said: str) -> None:
    assert said in refusal(models, exported(models, tmp_path / "draft", **config))


def verified_by(name: str | None, *architectures: str) -> dict[str, Any]:
    """What a head of speculators says of the target that it was trained with."""
    return {"speculators_config": {"verifier": {"name_or_path": name, "architectures": [*architectures]}}}


def test_heads_of_other_verifiers(models: Pair, tmp_path: Path) -> None:
    """The sizes are the same, so that nothing else tells them apart."""
    model = replace(models, folder=tmp_path / "target")
    shutil.copytree(models.folder, model.folder, ignore=shutil.ignore_patterns("draft", "checkpoint"))
    config = json.loads((models.folder / "config.json").read_text())
    (model.folder / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"]}))
    same = ("LlamaForCausalLM", "LlamaForConditionalGeneration")
    for number, architecture in enumerate(same):
        load(model, exported(models, tmp_path / f"same{number}", **verified_by(None, architecture)))
    load(model, exported(models, tmp_path / "unsaid", **verified_by("Qwen/Qwen3-8B")))
    about = verified_by("Qwen/Qwen3-8B", "Qwen3ForCausalLM")
    said = "its verifier is a Qwen3ForCausalLM (Qwen/Qwen3-8B), this target a LlamaForCausalLM; take the head"
    other = exported(models, tmp_path / "other", **about)
    assert said in refusal(model, other)
    load(models, other)  # a target whose config.json names no architecture
    told = json.loads(command("info", str(other), "--json").stdout)["head"]
    assert told["target"] == "Qwen/Qwen3-8B" and told["target_architectures"] == ["Qwen3ForCausalLM"]
    checkpoint = open_head(Reference(models.reference.embedding).save(tmp_path / "c", **about), "eagle3")
    with pytest.raises(ValueError, match=re.escape(said)):
        check_target(checkpoint, model.folder)
    wrong = exported(models, tmp_path / "wrong", speculators_config={"verifier": {"architectures": "Llama"}})
    assert "of the architectures 'Llama', expected a name and a list" in refusal(model, wrong)


def test_kinds_and_boundaries_that_are_not_known(models: Pair, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["EagleModel"]}))
    said = (
        "of the kind 'eagle' (versions 1 and 2 read the last state alone), which is not known; known: eagle3,"
    )
    assert said in refusal(models, tmp_path)
    backends = Backends.resolve(models.folder, "CPU", F32, boundaries=(2, 3, 99))
    with pytest.raises(ValueError, match=f"boundary 99: the model has {LAYERS} layers"):
        ModelRunner(models.folder, backends=backends)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"norm_before_residual": "yes"},
            "norm_before_residual of config.json is 'yes', expected False or True,",
        ),
        ({"hidden_act": "gelu"}, "hidden_act of config.json is 'gelu', expected 'silu' or 'swish',"),
        (
            {"eagle_aux_hidden_state_layer_ids": ["a"], "norm_before_fc": False},
            "config.json: the layers of the target that the head reads are ['a'], expected numbers; get the "
            "head again",
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            "rope_type is 'yarn', expected 'default' or 'llama3': others are not known; take another head",
        ),
        (
            {"num_attention_heads": "4"},
            "num_attention_heads of config.json is '4', expected a positive integer; get config.json again",
        ),
        (
            {"rms_norm_eps": 0},
            "rms_norm_eps of config.json is 0, expected a positive number; get config.json",
        ),
        ({"rope_scaling": "llama3"}, "is 'llama3', expected an object; get config.json again"),
        (
            {"num_hidden_layers": 2},
            "no weight layers.1.input_layernorm.weight, which its config.json asks for",
        ),
    ],
)
def test_settings_that_are_refused(models: Pair, tmp_path: Path, config: dict[str, Any], said: str) -> None:
    folder = Reference(models.reference.embedding).save(tmp_path / "head", **config)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        open_head(folder, "eagle3")
    assert said in str(caught.value) and str(folder) in str(caught.value)


def test_folders_that_hold_no_such_head(models: Pair, tmp_path: Path) -> None:
    def said(folder: Path, kind: str = "eagle3") -> str:
        with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
            open_head(folder, kind)
        return str(caught.value)

    assert f"'{tmp_path}' holds no head: it has no config.json" in said(tmp_path)
    checkpoint = models.folder / "checkpoint"
    assert "holds a head of the kind 'eagle3': use --eagle3" in said(checkpoint, "dflash")
    for architecture, kind in (("DFlashDraftModel", "dflash"), ("DSparkDraftModel", "dflash")):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
        assert f"use --{kind}" in said(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"num_nextn_predict_layers": 1}))
    assert "use --mtp" in said(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    assert "holds no head: its config.json names none" in said(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "not valid JSON" in said(tmp_path)


def test_checkpoints_that_are_not_whole(models: Pair, tmp_path: Path) -> None:
    folder = Reference(models.reference.embedding).save(tmp_path / "head")
    # Copies: the file, which is written anew, stays mapped otherwise.
    arrays = {name: array.clone() for name, array in load_file(folder / "model.safetensors").items()}
    for missing, said in (("d2t", f"drafts {DRAFTED} of {VOCAB} tokens and has no d2t"), ("fc.weight", "fc")):
        save_file({k: v for k, v in arrays.items() if k != missing}, folder / "model.safetensors")
        with pytest.raises(ValueError, match=said):
            open_head(folder, "eagle3")
    other = {name: array for name, array in arrays.items() if name != "t2d"} | {"d2t": arrays["d2t"] + VOCAB}
    save_file(other, folder / "model.safetensors")
    export_head(open_head(folder, "eagle3"), models.info, tmp_path / "out", "fp32")
    assert "another target: d2t names token" in refusal(models, tmp_path / "out")
    assert "export it with its target" in refusal(models, models.folder / "checkpoint")


def test_the_command_refuses_in_one_line(models: Pair, tmp_path: Path) -> None:
    other = Reference(models.reference.embedding).save(tmp_path / "head", vocab_size=99)
    for path, said in ((other, "vocabulary is 99"), (tmp_path, "holds no head"), (models.folder, "no head")):
        done = command("export", "-m", str(models.folder), str(tmp_path / "out"), "--eagle3", str(path))
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr
    assert CONFIG["draft_vocab_size"] == DRAFTED
    told = json.loads(command("info", str(models.folder / "draft"), "--json").stdout)["head"]
    assert told["kind"] == "eagle3" and told["target_layers"] == LAYERS


def test_another_format_than_asked_for_is_said(models: Pair, tmp_path: Path) -> None:
    """Before the long work; the folder is in use, so nothing is exported here."""
    (tmp_path / "file").touch()
    head = Reference(models.reference.embedding).save(tmp_path / "head")
    arguments = ("export", "-m", models.folder, tmp_path, "--eagle3", head, "--weight-format", "int4")
    done = command(*map(str, arguments))
    assert done.returncode == 2 and "is not empty" in done.stderr
    assert "warning: the head gets int8 weights, not int4" in done.stderr


def test_an_entry_of_a_head_is_refused(models: Pair, tmp_path: Path) -> None:
    draft = ovspec.draft_model(models.folder / "draft", CACHE_DIR=str(tmp_path))
    with pytest.raises(ValueError, match="CACHE_DIR: a head is compiled in a moment and never kept"):
        ovspec.LLMPipeline(models.folder, "CPU", draft_model=draft)


def test_sizes_of_the_layers_in_an_object_of_their_own(models: Pair, tmp_path: Path) -> None:
    """Some publish them so; a value in config.json itself takes precedence."""
    folder = Reference(models.reference.embedding).save(tmp_path / "head")
    own = ("architectures", "draft_vocab_size")
    config = {name: CONFIG[name] for name in own} | {
        "transformer_layer_config": {k: v for k, v in CONFIG.items() if k not in own}
        | {"architectures": ["LlamaForCausalLM"]}
    }
    (folder / "config.json").write_text(json.dumps(config))
    checkpoint = open_head(folder, "eagle3")
    check_target(checkpoint, models.folder)
    export_head(checkpoint, models.info, tmp_path / "out", "fp32")
    load(models, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["architectures"] == CONFIG["architectures"]


def test_an_ir_that_asks_for_more_than_is_known(models: Pair, tmp_path: Path) -> None:
    """optimum-intel, or a later version of it, may have written what this version would not do."""
    assert "has no norm where config.json says norm_before_fc" in refusal(
        models, exported(models, tmp_path / "setting", norm_before_fc=True)
    )
    model = ov.Core().read_model(models.folder / "draft" / "openvino_model.xml")
    config = (models.folder / "draft" / "config.json").read_text()

    def saved(name: str) -> Path:
        (tmp_path / name).mkdir()
        ov.save_model(model, tmp_path / name / "openvino_model.xml", compress_to_fp16=False)
        (tmp_path / name / "config.json").write_text(config)
        return tmp_path / name

    load(models, saved("same"))
    model.set_rt_info("4", ["eagle3", "window"])
    assert "openvino_model.xml says eagle3.window of the head" in refusal(models, saved("fact"))
    model.set_rt_info("True", ["later"])
    assert "says" in refusal(models, saved("facts"))
    more = ops.parameter([-1], name="depth")
    more.output(0).set_names({"depth"})
    model.add_parameters([more])
    assert "the head has the input depth, which is not known" in refusal(models, saved("input"))


def test_a_damaged_ir_is_refused_in_one_line(models: Pair, tmp_path: Path) -> None:
    for name, size in (("openvino_model.xml", 2000), ("openvino_model.bin", 10)):
        folder = exported(models, tmp_path / name)
        whole = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / name).write_bytes(whole[:size])
        assert "openvino_model.xml" in refusal(models, folder)
    # OpenVINO's message has the name of the node in it, which is no text.
    folder = exported(models, tmp_path / "name")
    whole = (folder / "openvino_model.xml").read_bytes()
    (folder / "openvino_model.xml").unlink()
    broken = whole.replace(b'type="ReadValue"', b'type="ReadV\xb0lue"')
    (folder / "openvino_model.xml").write_bytes(broken)
    assert str(folder) in refusal(models, folder)
    # A head without an output that is read.
    (folder / "openvino_model.xml").write_bytes(whole.replace(b'names="logits"', b'names="other"'))
    assert "the head can't be loaded" in refusal(models, folder)

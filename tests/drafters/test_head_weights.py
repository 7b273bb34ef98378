"""Checkpoints of heads: each is read right, or refused in one line before the target's export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters import mtp_models
from drafters.eagle3_models import DRAFTED, HIDDEN, LAYERS, VOCAB, Reference, pair
from drafters.published_formats import FORMATS, Format
from safetensors.torch import load_file, save_file

from ovspec_models.folder.head_info import HeadInfo
from ovspec_models.heads import check_target, export_head, open_head
from ovspec_models.heads.mtp import mtp_arrays

Arrays = dict[str, torch.Tensor]
_Q, _EMBEDDING = "midlayer.self_attn.q_proj.weight", "embed_tokens.weight"


def checkpoint(folder: Path) -> tuple[Path, Arrays]:
    """A head with an embedding of its own, and copies of its weights."""
    head = Reference(torch.zeros(VOCAB, HIDDEN)).save(folder)
    arrays = {name: array.clone() for name, array in load_file(head / "model.safetensors").items()}
    return head, {**arrays, _EMBEDDING: torch.randn(VOCAB, HIDDEN)}


def refusal(folder: Path, kind: str = "eagle3") -> str:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        open_head(folder, kind)
    return str(caught.value)


CHANGES: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "quantised": (lambda old: {_Q: old[_Q].to(torch.int8)}, f"{_Q} holds numbers of the type int8, expected"),
    "fp8": (lambda old: {_Q: old[_Q].to(torch.float8_e4m3fn)}, "of the type float8_e4m3fn, expected"),
    "output of no dimension": (lambda old: {"lm_head.weight": torch.tensor(1.0)}, "the shape [], expected"),
    "fc of no dimension": (lambda old: {"fc.weight": torch.tensor(1.0)}, "fc.weight has the shape []"),
    "d2t of no dimension": (lambda old: {"d2t": torch.tensor(1)}, f"for each of the {DRAFTED} tokens"),
    "d2t that is short": (lambda old: {"d2t": old["d2t"][:-1].clone()}, f"shape [{DRAFTED - 1}], expected"),
    "d2t of reals": (lambda old: {"d2t": old["d2t"].float()}, "d2t has float32 of the shape"),
    "output that is short": (
        lambda old: {"lm_head.weight": old["lm_head.weight"][:-1].clone()},
        f"for each of the {DRAFTED - 1} tokens of lm_head",
    ),
    "embedding of too few tokens": (
        lambda old: {_EMBEDDING: old[_EMBEDDING][:-1].clone()},
        f"{_EMBEDDING} has the shape [{VOCAB - 1}, {HIDDEN}], expected [{VOCAB}, {HIDDEN}]",
    ),
    "embedding of another size": (
        lambda old: {_EMBEDDING: torch.zeros(VOCAB, HIDDEN // 2)},
        f"expected [{VOCAB}, {HIDDEN}]",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_can_not_be_used(change: str, tmp_path: Path) -> None:
    folder, arrays = checkpoint(tmp_path)
    changes, said = CHANGES[change]
    save_file({**arrays, **changes(arrays)}, folder / "model.safetensors")
    assert said in refusal(folder)


@pytest.mark.parametrize("form", [form for form in FORMATS if not form.refused], ids=lambda form: form.name)
def test_a_weight_of_no_dimension(form: Format, tmp_path: Path) -> None:
    """Each that is read, in every format, also those whose sizes are read from the weights."""
    folder = form.save(tmp_path / "head")
    read = open_head(folder, form.kind).arrays.read
    # The sizes of Hydra's layer are those of its target, known when it is exported.
    read = {name for name in read if not name.startswith("prefix_embeding_layer.layers")}
    (file,) = [*folder.glob("*.safetensors"), *folder.glob("*.pt")]
    arrays = torch.load(file) if file.suffix == ".pt" else load_file(file)
    arrays = {name: array.clone() for name, array in arrays.items()}
    file.unlink()
    for name in sorted(read):
        save_file({**arrays, name: arrays[name].reshape(-1)[0].clone()}, folder / "model.safetensors")
        refusal(folder, form.kind)
    assert read


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_shards_and_other_files(dtype: torch.dtype, tmp_path: Path) -> None:
    folder, arrays = checkpoint(tmp_path)
    arrays = {name: array.to(dtype) if array.is_floating_point() else array for name, array in arrays.items()}
    save_file(arrays, folder / "model.safetensors")
    expected = open_head(folder, "eagle3").arrays
    (folder / "model.safetensors").unlink()
    names = sorted(arrays)
    places = {name: f"model-{1 + names.index(name) % 2:05}-of-00002.safetensors" for name in names}
    for file in set(places.values()):
        save_file({name: arrays[name] for name in names if places[name] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    same(open_head(folder, "eagle3").arrays, expected)
    # What it has of its own would become the target's.
    shard = folder / places[_EMBEDDING]
    shard.unlink()
    left = {name: arrays[name] for name in names if places[name] == shard.name and name != _EMBEDDING}
    save_file(left, shard)
    assert f"no weight {_EMBEDDING}, which {index.name} says is in '{shard.name}'" in refusal(folder)
    for file in (*folder.glob("*.safetensors"), index):
        file.unlink()
    torch.save(arrays, folder / "pytorch_model.bin")
    torch.save(HeadInfo, folder / "training_args.bin")  # a class, which is not read as weights
    same(open_head(folder, "eagle3").arrays, expected)


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    assert all((found[name] == expected[name]).all() for name in expected)


def test_boundaries_beyond_the_target(tmp_path: Path) -> None:
    models = pair()
    for last, fits in ((LAYERS + 1, True), (LAYERS + 2, False)):
        folder = Reference(models.reference.embedding).save(
            tmp_path / str(last), eagle_aux_hidden_state_layer_ids=[1, 2, last]
        )
        if fits:
            check_target(open_head(folder, "eagle3"), models.folder)
            continue
        with pytest.raises(
            ValueError, match=f"another target: it reads boundary {last}, this target of 7 la"
        ):
            check_target(open_head(folder, "eagle3"), models.folder)


def test_a_null_is_no_setting(tmp_path: Path) -> None:
    models = pair()
    folder = Reference(models.reference.embedding).save(tmp_path / "head", model_type=None, rope_theta=None)
    export_head(open_head(folder, "eagle3"), models.info, tmp_path / "ir", "fp32")
    assert None not in json.loads((tmp_path / "ir" / "config.json").read_text()).values()


@pytest.mark.parametrize("said", [None, "something else"])
def test_norms_of_qwens_modules_without_its_type(said: str | None, tmp_path: Path) -> None:
    """Their names alone say that they multiply by 1 + weight."""
    module = mtp_models.Reference("qwen", torch.zeros(VOCAB, HIDDEN), torch.zeros(VOCAB, HIDDEN))
    folder = module.save(tmp_path)
    expected = mtp_arrays(open_head(folder, "mtp"))
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = config["text_config"]["model_type"] = said
    (folder / "config.json").write_text(json.dumps(config))
    same(mtp_arrays(open_head(folder, "mtp")), expected)


@pytest.mark.parametrize("said", [None, "something else"])
def test_norms_of_modules_of_speculators_without_a_type(said: str | None, tmp_path: Path) -> None:
    """The names are the same for both kinds of norms."""
    module = mtp_models.Reference("deepseek", torch.zeros(VOCAB, HIDDEN), torch.zeros(VOCAB, HIDDEN))
    folder = mtp_models.save_as_speculators(module, tmp_path / "head")
    open_head(folder, "mtp")
    config = json.loads((folder / "config.json").read_text())
    config["transformer_layer_config"]["model_type"] = said
    (folder / "config.json").write_text(json.dumps(config))
    assert f"model_type of config.json is {said!r}, expected one of qwen3, qwen3_next" in refusal(
        folder, "mtp"
    )


@pytest.mark.parametrize(
    ("said", "both"),
    [
        ({"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "rope_theta"),
        ({"rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_type": "llama3"}}, "rope_type"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 10000}}, ""),
        ({"rope_theta": None, "rope_scaling": {"factor": None}, "rope_parameters": {"factor": 2.0}}, ""),
    ],
)
def test_positions_that_are_said_twice(said: dict[str, Any], both: str, tmp_path: Path) -> None:
    """Readers of config.json take one or the other."""
    folder = Reference(torch.zeros(VOCAB, HIDDEN)).save(tmp_path, **said)
    if both:
        assert f"{both} of config.json is both" in refusal(folder)
    else:
        open_head(folder, "eagle3")

"""A family that is not in the table is compared with its exported graph when it is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
from tiers import by_tier
from tiny_checkpoints import CHUNK, VOCAB, Tiny, save_checkpoint, with_noise, write_checkpoint
from tiny_types import tiny_config

import ovspec
from ovspec.cli.options.failures import is_refusal
from ovspec.proofs.reference_check import probe
from ovspec_models import ModelInfo, export_model
from ovspec_models.folder.model_types import LIKE
from ovspec_models.folder.unpaged_types import LATENT, UNPAGED

pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")


@pytest.mark.parametrize(
    ("layers", "served"), [pytest.param("global", True, marks=pytest.mark.slow), ("local", False)]
)
def test_windows_that_the_paged_graph_loses_are_refused(tmp_path: Path, layers: str, served: bool) -> None:
    """GPT-Neo's windows are a constant mask, which OpenVINO's transformation drops, GenAI's too."""
    sizes = {"num_layers": 2, "num_heads": 4, "window_size": 32, "attention_types": [[["global", layers], 1]]}
    tiny = Tiny("GPTNeoConfig", {**sizes, "vocab_size": VOCAB, "hidden_size": 64, "initializer_range": 0.2})
    folder = export_model(
        write_checkpoint(tiny, tmp_path / "checkpoint"), tmp_path / "ir", weight_format="fp32"
    )
    if served:
        ovspec.LLMPipeline(folder)
        return
    with pytest.raises(
        ValueError, match=r"'gpt_neo' are not tested, and this one computes other logits"
    ) as caught:
        ovspec.LLMPipeline(folder)
    assert "\n" not in str(caught.value) and "genai" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("diffllama", r"layer \S+: its attention does not read cached keys and values as they are"),
        ("gpt_neox_japanese", r"no attention that OpenVINO can page"),
    ],
)
def test_attention_that_cannot_be_paged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, said: str
) -> None:
    """As types that no table names: it is found in the graph, before a comparison with the exported one."""
    from transformers import AutoModelForCausalLM

    monkeypatch.setitem(LIKE, "diffllama", "LlamaOpenVINOConfig")
    monkeypatch.delitem(UNPAGED, kind)
    model = with_noise(AutoModelForCausalLM.from_config(tiny_config(kind)).float().eval())
    folder = export_model(
        save_checkpoint(model, tmp_path / "checkpoint"), tmp_path / "ir", weight_format="fp32"
    )
    with pytest.raises(ValueError, match=rf"^[^\n]*{said}[^\n]*with transformers instead$"):
        ovspec.LLMPipeline(folder)


@pytest.mark.parametrize("kind", LATENT)
def test_models_over_latents_are_refused_before_the_export(tmp_path: Path, kind: str) -> None:
    """Also where this version of transformers does not know the type."""
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 96, "hidden_size": 64}
    checkpoint = write_checkpoint(
        Tiny("LlamaConfig", {**sizes, "vocab_size": VOCAB}), tmp_path / "checkpoint"
    )
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "model_type": kind}))
    with pytest.raises(ValueError, match=rf"^[^\n]*'{kind}' can't be served[^\n]*latents[^\n]*$"):
        export_model(checkpoint, tmp_path / "ir", weight_format="fp32")
    assert not (tmp_path / "ir").exists()


def test_texts_beyond_a_chunk_are_refused_with_their_length(exported_family: Callable[[str], Path]) -> None:
    """Llama 4: the paged graph has lost the chunks."""
    pipe = ovspec.LLMPipeline(exported_family("Llama 4"))
    tokens = ov.Tensor(np.full((1, CHUNK), 7))
    with pytest.raises(
        ValueError, match=rf"has {CHUNK} tokens, the model {CHUNK} positions \(some of .*chunks"
    ):
        pipe.generate(tokens, max_new_tokens=1)
    shorter = ov.Tensor(np.full((1, CHUNK - 4), 7))
    assert len(pipe.generate(shorter, max_new_tokens=40, ignore_eos=True).tokens[0]) == 4


def renamed(folder: Path, copy: Path) -> Path:
    """The model with a `model_type` that is in no table."""
    copy.mkdir()
    for path in folder.iterdir():
        if path.is_file():
            (copy / path.name).symlink_to(path)
    config = json.loads((folder / "config.json").read_text())
    (copy / "config.json").unlink()
    (copy / "config.json").write_text(json.dumps({**config, "model_type": "mystery"}))
    return copy


@pytest.mark.parametrize("name", by_tier(["Llama", "Qwen3-MoE"], ["Llama"]))
def test_a_family_that_computes_the_same_is_served_and_the_verdict_kept(
    exported_family: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    folder, cache = renamed(exported_family(name), tmp_path / "model"), tmp_path / "cache"
    text = ovspec.LLMPipeline(folder, CACHE_DIR=str(cache)).generate("Once upon a time", max_new_tokens=4)
    (record,) = cache.glob("ovspec-checked-*.json")
    difference = json.loads(record.read_text())["difference"]
    assert 0 < difference < 1e-4
    again = ovspec.LLMPipeline(folder, CACHE_DIR=str(cache))
    assert again.generate("Once upon a time", max_new_tokens=4) == text
    # The result is read from the file and not computed again.
    record.write_text(json.dumps({"difference": 0.5}))
    with pytest.raises(RuntimeError, match="'mystery' are not tested"):
        ovspec.LLMPipeline(folder, CACHE_DIR=str(cache))


@pytest.mark.parametrize("name", ["MPT", "Falcon, ALiBi"])
def test_a_bias_that_the_paged_graph_loses_is_refused_whatever_the_models_name(
    exported_family: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = renamed(exported_family(name), tmp_path / "model")
    with pytest.raises(ValueError, match=r"adds a bias to the scores \(ALiBi\)"):
        ovspec.LLMPipeline(folder)
    # If the transformation does not recognise the form, the comparison of numbers or OpenVINO refuses.
    monkeypatch.setattr("ovspec_transforms.attention.paged_cache.biased_attention", lambda model: None)
    with pytest.raises(ValueError, match=r"'mystery' are not tested|transformation refuses this model"):
        ovspec.LLMPipeline(folder)


def test_a_graph_that_cannot_be_run_on_the_probe_is_refused_not_a_fault_of_ours(
    exported_family: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = renamed(exported_family("Llama"), tmp_path / "model")
    graph = ov.Core().read_model(folder / "openvino_model.xml")
    extra = ops.parameter([-1], np.float32)
    graph.add_parameters([extra])
    result = graph.outputs[0].get_node().input(0)
    result.replace_source_output(ops.add(result.get_source_output(), extra).output(0))
    for path in folder.glob("openvino_model.*"):
        path.unlink()  # a link to what all tests read
    ov.save_model(graph, folder / "openvino_model.xml", compress_to_fp16=False)
    with pytest.raises(
        ValueError, match="'mystery' are not tested, and this one can't be compared"
    ) as caught:
        ovspec.LLMPipeline(folder)
    assert is_refusal(caught.value) and "\n" not in str(caught.value)


def test_the_probe_goes_past_windows_and_chunks(
    exported_family: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = renamed(exported_family("Mistral"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    for given, length in (({}, 256), ({"any_chunk_length": 300}, 428), ({"some_window": 500}, 511)):
        (folder / "config.json").write_text(json.dumps({**config, **given}))
        tokens = probe(ModelInfo.read(folder))
        assert len(tokens) == length and tokens.max() < 4096

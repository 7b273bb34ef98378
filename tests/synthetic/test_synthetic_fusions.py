"""The CPU plugin and the stock paged pass treat a synthetic model as they treat optimum-intel's export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import openvino as ov
import pytest
from synthetic.cases import TINY_SHAPES, paged, runtime_layers, transformers_model
from tiers import by_tier

from ovspec_models.synthetic import build_model

FORMATS = {"int8": ("int8", False), "int4-asym": ("int4", False), "int4-sym": ("int4", True)}
# The stateful graph also computes a mask, which the export does with more nodes than are needed.
FUSED = ("FullyConnected", "RMS", "RoPE", "ScaledDotProductAttention", "GatherMatmul", "MemoryInput", "TopK")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ov.Model]:
    """Give optimum-intel's f32 export of a family's tiny model, each made once."""
    intel: Any = pytest.importorskip("optimum.intel", reason="needs ovspec[export]")
    torch: Any = pytest.importorskip("torch", reason="needs ovspec[export]")
    models: dict[str, ov.Model] = {}

    def get(family: str) -> ov.Model:
        if family not in models:
            reference = transformers_model(TINY_SHAPES[family])
            for name, parameter in reference.named_parameters():
                # The exporter drops norm weights that are all one, which no trained model has.
                if "norm" in name:
                    parameter.data += 0.1 * torch.rand_like(parameter)
            checkpoint = tmp_path_factory.mktemp(family)
            reference.save_pretrained(checkpoint)
            loaded = intel.OVModelForCausalLM.from_pretrained(
                checkpoint, export=True, compile=False, load_in_8bit=False
            )
            models[family] = loaded.model
        return models[family].clone()

    return get


def _compressed(model: ov.Model, format_id: str) -> ov.Model:
    """Compress an export as optimum-intel does, with NNCF."""
    nncf: Any = pytest.importorskip("nncf", reason="needs ovspec[export]")
    weight_format, sym = FORMATS[format_id]
    mode = nncf.CompressWeightsMode
    if weight_format == "int8":
        return nncf.compress_weights(model, mode=mode.INT8_ASYM)
    return nncf.compress_weights(
        model, mode=mode.INT4_SYM if sym else mode.INT4_ASYM, ratio=1.0, group_size=128
    )


def _synthetic(family: str, format_id: str) -> ov.Model:
    weight_format, sym = FORMATS[format_id]
    return build_model(TINY_SHAPES[family], weight_format, sym=sym)


@pytest.mark.parametrize(
    ("family", "format_id"),
    by_tier(
        product(TINY_SHAPES, FORMATS),
        [("qwen3_moe", "int4-sym")],
    ),
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*trac:UserWarning")
def test_runtime_graphs_match_the_export(
    family: str, format_id: str, exported: Callable[[str], ov.Model]
) -> None:
    real, synthetic = _compressed(exported(family), format_id), _synthetic(family, format_id)
    assert runtime_layers(paged(synthetic)) == runtime_layers(paged(real))
    if format_id == "int8":
        real_types, types = runtime_layers(real).types, runtime_layers(synthetic).types
        assert {name: types[name] for name in FUSED} == {name: real_types[name] for name in FUSED}


@pytest.mark.parametrize("family", TINY_SHAPES)
def test_interface_matches_the_export(family: str, exported: Callable[[str], ov.Model]) -> None:
    def ports(model: ov.Model) -> dict[str, tuple[str, str]]:
        every = [*model.inputs, *model.outputs]
        return {port.any_name: (str(port.partial_shape), str(port.element_type)) for port in every}

    def states(model: ov.Model) -> dict[str, tuple[str, str]]:
        infos = [variable.info for variable in model.get_variables()]
        return {info.variable_id: (str(info.data_shape), str(info.data_type)) for info in infos}

    real, synthetic = exported(family), _synthetic(family, "int8")
    assert ports(synthetic) == ports(real)
    assert states(synthetic) == states(real)
    assert ports(paged(synthetic)) == ports(paged(real))


def test_runtime_options_match_the_export(exported: Callable[[str], ov.Model]) -> None:
    def options(model: ov.Model) -> dict[str, str]:
        return dict(model.get_rt_info("runtime_options").value)

    real = options(exported("qwen3"))
    assert real["KV_CACHE_PRECISION"] == "f16"
    for weight_format in ("fp32", "fp16"):
        assert options(build_model(TINY_SHAPES["qwen3"], weight_format)) == real
    for weight_format in ("int8", "int4"):
        compressed = options(build_model(TINY_SHAPES["qwen3"], weight_format))
        assert compressed == {"ACTIVATIONS_SCALE_FACTOR": real["ACTIVATIONS_SCALE_FACTOR"]}


@pytest.mark.parametrize("family", TINY_SHAPES)
@pytest.mark.parametrize("format_id", FORMATS)
def test_fusions_leave_nothing_behind(family: str, format_id: str) -> None:
    """The counts follow from the architecture, so the test above cannot pass on two wrong graphs."""
    shape = TINY_SHAPES[family]
    layers = shape.num_hidden_layers
    types = runtime_layers(paged(_synthetic(family, format_id))).types
    linears = 5 if shape.is_moe else 7
    assert types["FullyConnected"] == linears * layers + 1
    assert types["RMS"] == (4 if shape.qk_norm else 2) * layers + 1
    assert types["RoPE"] == 2 * layers
    assert types["PagedAttention"] == layers
    assert types["GatherMatmul"] == (3 * layers if shape.is_moe else 0)
    # The rotary angles; every other product is fused.
    assert types["MatMul"] == 1


@pytest.mark.parametrize("family", TINY_SHAPES)
@pytest.mark.parametrize("layers", [1, 3])
def test_paged_pass_finds_every_layer(family: str, layers: int) -> None:
    model = paged(build_model(replace(TINY_SHAPES[family], num_hidden_layers=layers), "int8"))
    attention = [
        node for node in model.get_ordered_ops() if node.get_type_name() == "PagedAttentionExtension"
    ]
    assert len(attention) == layers
    # Caches are numbered as the layers stand in the model.
    numbers = [node.input(3).get_source_output().get_node().get_friendly_name() for node in attention]
    assert numbers == [f"key_cache.{n}" for n in range(layers)]
    caches = {port.any_name for port in model.inputs if "_cache." in port.any_name}
    assert caches == {f"{part}_cache.{n}" for part in ("key", "value") for n in range(layers)}
    assert not {"ReadValue", "Assign", "ScaledDotProductAttention"} & {
        node.get_type_name() for node in model.get_ops()
    }

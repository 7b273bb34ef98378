"""Which passes fire on a model, how often, and what they leave behind."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from ovspec_models.shapes import ModelShape, get_shape
from ovspec_models.synthetic import build_model
from ovspec_transforms import (
    Selection,
    default_anchor_layers,
    gather_logits,
    paged_layers,
    rope_angles,
    route_rows,
    select_blocks,
    select_blocks_stock,
    to_paged,
)
from ovspec_transforms.attention.paged_cache import ALIBI_SLOPES, SCALE, SINKS, SLIDING_WINDOW

TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 160,
}
F32 = {"INFERENCE_PRECISION_HINT": "f32"}
SHAPES: dict[str, ModelShape] = {
    "qwen3": replace(get_shape("qwen3-0.6b", layers=5), **TINY),
    "llama": replace(get_shape("llama-3.1-8b", layers=3), **TINY),
    "qwen3-moe": replace(
        get_shape("qwen3-moe-64x8", layers=2),
        **TINY,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
    ),
}


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> ModelShape:
    return SHAPES[request.param]


def paged(shape: ModelShape) -> ov.Model:
    model = build_model(shape, "int8")
    to_paged(model)
    return model


def types(model: ov.Model) -> Counter[str]:
    return Counter(node.get_type_name() for node in model.get_ops())


def input_names(model: ov.Model) -> set[str]:
    return {port.get_any_name() for port in model.inputs}


def test_every_layer_is_paged(shape: ModelShape) -> None:
    model = build_model(shape, "int8")
    assert to_paged(model).count == shape.num_hidden_layers
    layers = paged_layers(model)
    assert [layer.index for layer in layers] == list(range(shape.num_hidden_layers))
    assert {(layer.num_kv_heads, layer.key_head_size, layer.sliding_window) for layer in layers} == {
        (2, 32, 0)
    }
    assert "attention_mask" not in input_names(model) and "past_lens" in input_names(model)


def test_angles_of_rotary_embeddings_are_products_of_elements(shape: ModelShape) -> None:
    model = build_model(shape, "int8")
    products = types(model)["MatMul"]
    report = rope_angles(model)
    assert report.count == 1 and types(model)["MatMul"] == products - 1
    assert rope_angles(model).count == 0


@pytest.mark.parametrize(
    ("left", "right", "transposes"),
    [
        ([1, 16, 1], [-1, 1, 1], False),
        ([-1, 1], [1, 7], False),
        ([3, 4], [4, 2], False),
        ([1, 5], [5, 1], True),
    ],
)
def test_a_product_over_one_element_has_the_same_bits(
    left: list[int], right: list[int], transposes: bool
) -> None:
    inputs = [ops.parameter(ov.PartialShape(shape), np.float32) for shape in (left, right)]
    model = ov.Model([ops.matmul(*inputs, transposes, transposes)], inputs)
    random = np.random.default_rng(3)
    shapes = [[6 if size < 0 else size for size in shape] for shape in (left, right)]
    given = [random.standard_normal(shape, np.float32) for shape in shapes]
    before = ov.Core().compile_model(model, "CPU", F32)(given)[0]
    assert rope_angles(model).count == (left[-1] == 1 and not transposes)
    after = ov.Core().compile_model(model, "CPU", F32)(given)[0]
    np.testing.assert_array_equal(before, after, strict=True)


def test_paged_twice_is_refused(shape: ModelShape) -> None:
    with pytest.raises(ValueError, match="paged already"):
        to_paged(paged(shape))


def test_model_without_cache_is_refused() -> None:
    data = ops.parameter([1, 4], ov.Type.f32)
    with pytest.raises(ValueError, match="no attention that OpenVINO can page"):
        to_paged(ov.Model([ops.relu(data)], [data]))


def test_logits_are_gathered_before_the_head(shape: ModelShape) -> None:
    model = paged(shape)
    report = gather_logits(model)
    assert report.count == 1
    assert "sampled_tokens_indices" in input_names(model)
    head = model.output("logits").get_node().input(0).get_source_output().get_node()
    while head.get_type_name() != "MatMul":
        head = head.input(0).get_source_output().get_node()
    assert head.input(0).get_source_output().get_node().get_type_name() == "Gather"


def test_rows_of_every_layer_are_routed(shape: ModelShape) -> None:
    model = paged(shape)
    assert route_rows(model).count == shape.num_hidden_layers
    assert (
        types(model)["VerifyAttention"] == types(model)["PagedAttentionExtension"] == shape.num_hidden_layers
    )
    assert {"written_begins", "verify_tables"} <= input_names(model)
    for node in model.get_ops():
        if node.get_type_name() == "PagedAttentionExtension":
            consumers = {port.get_node().get_type_name() for port in node.output(0).get_target_inputs()}
            assert consumers == {"VerifyAttention"}


def test_anchors_select_and_the_others_reuse(shape: ModelShape) -> None:
    model = paged(shape)
    route_rows(model)
    assert select_blocks(model, [0, 1], Selection("paper")).count == shape.num_hidden_layers
    assert types(model)["BlockSelect"] == types(model)["KeySummary"] == 2
    assert {"verify_budgets", "key_summary.0", "key_summary.1"} <= input_names(model)
    assert "key_summary.2" not in input_names(model)
    users = Counter()
    for node in model.get_ops():
        if node.get_type_name() == "VerifyAttention":
            users[node.input(5).get_source_output().get_node().get_friendly_name()] += 1
    assert sorted(users.values()) == sorted([1, shape.num_hidden_layers - 1])
    counts = model.output("selected_counts").get_partial_shape()
    assert counts[0].get_length() == shape.num_hidden_layers and counts[1].get_length() == 2


def test_default_anchors_come_denser_at_the_start() -> None:
    assert default_anchor_layers(range(28)) == (0, 1, 2, 6, 10, 14, 18, 22, 26)
    assert default_anchor_layers(range(2)) == (0, 1)
    assert default_anchor_layers([1, 3, 5, 7]) == (1, 3, 5)


@pytest.mark.parametrize("anchors", [[], [1], [0, 0], [0, 2, 1], [0, 5], [0, -1]])
def test_bad_anchors_are_refused(anchors: list[int]) -> None:
    model = paged(SHAPES["qwen3"])
    route_rows(model)
    with pytest.raises(ValueError, match="anchor_layers"):
        select_blocks(model, anchors, Selection("paper"))


def test_selecting_before_routing_is_refused() -> None:
    with pytest.raises(ValueError, match="no input 'verify_tables'"):
        select_blocks(paged(SHAPES["qwen3"]))


def selects_blocks(attention: ov.Node) -> bool:
    """Whether a VerifyAttention reads the list of a BlockSelect."""
    sources = [port.get_source_output().get_node() for port in attention.inputs()]
    return "BlockSelect" in [node.get_type_name() for node in sources]


def test_windowed_layers_stay_dense() -> None:
    model = paged(SHAPES["qwen3"])
    set_input(model, [1, 3], SLIDING_WINDOW, np.array(64, np.int32))
    assert [layer.sliding_window for layer in paged_layers(model)] == [0, 64, 0, 64, 0]
    assert route_rows(model).count == 5
    assert select_blocks(model).count == 3
    for node in model.get_ops():
        if node.get_type_name() == "VerifyAttention":
            selects = selects_blocks(node)
            assert selects == (node.get_attributes()["sliding_window"] == 0)


def test_sinks_of_a_layer_reach_its_verification() -> None:
    model = paged(SHAPES["qwen3"])
    set_input(model, [2], SINKS, np.zeros((1, 4, 1, 1), np.float16))
    route_rows(model)
    shapes = {
        node.input(1).get_source_output().any_name: [
            str(port.get_partial_shape()) for port in node.inputs()[7:]
        ]
        for node in model.get_ops()
        if node.get_type_name() == "VerifyAttention"
    }
    assert shapes == {f"key_cache.{layer}": ["[4]"] if layer == 2 else [] for layer in range(5)}


def test_alibi_slopes_are_refused_with_the_layer() -> None:
    model = paged(SHAPES["qwen3"])
    set_input(model, [2], ALIBI_SLOPES, np.ones(4, np.float32))
    name = next(layer.name for layer in paged_layers(model) if layer.index == 2)
    with pytest.raises(ValueError, match="ALiBi slopes") as caught:
        route_rows(model)
    assert name in str(caught.value) and "attention='stock'" in str(caught.value)


def test_computed_scale_is_refused() -> None:
    model = paged(SHAPES["qwen3"])
    node = paged_layers(model)[0].node
    scale = ops.parameter([], ov.Type.f32, name="scale")
    node.input(SCALE).replace_source_output(scale.output(0))
    model.add_parameters([scale])
    with pytest.raises(ValueError, match="its scale is computed at run time"):
        route_rows(model)


def test_reports_require_what_was_asked() -> None:
    report = gather_logits(paged(SHAPES["qwen3"]))
    assert report.require(1) is report
    with pytest.raises(ValueError, match="changed 1 places of 2"):
        report.require(2)


def set_input(model: ov.Model, layers: list[int], position: int, value: np.ndarray) -> None:
    for layer in paged_layers(model):
        if layer.index in layers:
            layer.node.input(position).replace_source_output(ops.constant(value).output(0))


def test_stock_selection_hands_every_layer_its_anchors_table(shape: ModelShape) -> None:
    model = paged(shape)
    before = types(model)
    assert select_blocks_stock(model, anchor_layers=[0, 1]).count == shape.num_hidden_layers
    assert types(model)["PagedAttentionExtension"] == before["PagedAttentionExtension"]
    assert {node.get_type_info().version_id for node in model.get_ops()}.isdisjoint({"ovspec"})
    assert {"key_summary.all", "held_keys", "verify_coverage", "select_always"} <= input_names(model)
    assert not {"select_always.0", "select_places"} & input_names(model)
    for position in (5, 7, 8, 12):
        names = source_names(model, position)
        assert len(set(names)) == 2 and len(set(names[1:])) == 1, position
        assert not {"past_lens", "block_indices_begins", "max_context_len"} & set(names), position
    counts = model.output("selected_counts").get_partial_shape()
    assert counts[0].get_length() == shape.num_hidden_layers and counts[1].get_length() == 1


def test_no_layer_waits_for_what_the_host_knows(shape: ModelShape) -> None:
    """A GPU reads these on the host: computed in the graph, every anchor would wait for the device."""
    model = paged(shape)
    routing = set(types(model))  # of experts, which takes some of these operations
    select_blocks_stock(model, anchor_layers=[0, 1], covers=False)
    for position, name in ((5, "select_past_lens"), (8, "select_begins"), (12, "select_max_context_len")):
        assert source_names(model, position)[:2] == [name, name]
    assert len(set(source_names(model, 7)[:2])) == 2
    assert not {"NonZero", "Range", "ScatterElementsUpdate"} & (set(types(model)) - routing)
    assert "verify_coverage" not in input_names(model)


def source_names(model: ov.Model, position: int) -> list[str]:
    """What feeds an input of every attention node."""
    sources = [layer.node.input(position).get_source_output() for layer in paged_layers(model)]
    return [
        source.get_any_name() if source.get_names() else source.get_node().get_friendly_name()
        for source in sources
    ]


def test_stock_selection_leaves_windows_and_alibi_dense() -> None:
    model = paged(SHAPES["qwen3"])
    set_input(model, [1], SLIDING_WINDOW, np.array(64, np.int32))
    set_input(model, [3], ALIBI_SLOPES, np.ones(4, np.float32))
    assert select_blocks_stock(model).count == 3
    assert {"select_always", "select_limits"} <= input_names(model)
    for layer in paged_layers(model):
        source = layer.node.input(5).get_source_output().get_node().get_type_name()
        assert (source == "Parameter") == (layer.index in (1, 3)), layer.index
    set_input(model, [0, 2, 4], SLIDING_WINDOW, np.array(64, np.int32))
    with pytest.raises(ValueError, match="every layer of this model has a sliding window or ALiBi slopes"):
        select_blocks_stock(model)


@pytest.mark.parametrize(("rule", "selecting"), [("mass", None), ("paper", 2)])
def test_every_layer_selects_or_the_anchors(shape: ModelShape, rule: str, selecting: int | None) -> None:
    model = paged(shape)
    route_rows(model)
    anchors = None if selecting is None else (0, 1)
    assert select_blocks(model, anchors, Selection(rule)).count == shape.num_hidden_layers
    assert types(model)["BlockSelect"] == (selecting or shape.num_hidden_layers)
    lists = model.output("selected_blocks").get_partial_shape()
    assert lists[0].get_length() == (selecting or shape.num_hidden_layers)


def test_anchors_of_another_rule_are_refused() -> None:
    model = paged(SHAPES["qwen3"])
    route_rows(model)
    with pytest.raises(ValueError, match=r"anchor_layers=\[0, 1\]: with rule='mass' every layer selects"):
        select_blocks(model, (0, 1))


@pytest.mark.parametrize(
    "settings",
    [
        {"rule": "first"},
        {"sink_blocks": 0},
        {"local_blocks": True},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_bad_rules_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Selection(**settings)  # type: ignore[arg-type]

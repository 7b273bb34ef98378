"""Configurations of adapters take what openvino_genai's take, and modes are honoured or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino_genai
import pytest
from adapter_files import random_matrices, write_adapter

import ovspec
from ovspec.adapters.adapter_config import AdapterBlend, PipelineAdapters, requested

Mode = ovspec.AdapterConfig.Mode


@pytest.fixture
def adapters(tmp_path: Path) -> list[ovspec.Adapter]:
    matrices = random_matrices({"model.layers.0.self_attn.q_proj": (24, 40)})
    return [ovspec.Adapter(write_adapter(tmp_path / f"{n}.safetensors", matrices)) for n in range(2)]


def test_it_has_what_openvino_genai_has() -> None:
    for mine, theirs in (
        (ovspec.Adapter, openvino_genai.Adapter),
        (ovspec.AdapterConfig, openvino_genai.AdapterConfig),
    ):
        assert {name for name in dir(theirs) if not name.startswith("_")} <= set(dir(mine))


def test_every_constructor(adapters: list[ovspec.Adapter]) -> None:
    one, two = adapters
    made: list[tuple[ovspec.AdapterConfig, list[Any], Any]] = [
        (ovspec.AdapterConfig(), [], Mode.MODE_AUTO),
        (ovspec.AdapterConfig(Mode.MODE_DYNAMIC), [], Mode.MODE_DYNAMIC),
        (ovspec.AdapterConfig(one), [(one, 1.0)], Mode.MODE_AUTO),
        (ovspec.AdapterConfig(one, Mode.MODE_STATIC), [(one, 1.0)], Mode.MODE_STATIC),
        (ovspec.AdapterConfig(one, 0.5, Mode.MODE_STATIC), [(one, 0.5)], Mode.MODE_STATIC),
        (ovspec.AdapterConfig(adapter=one, alpha=2), [(one, 2.0)], Mode.MODE_AUTO),
        (ovspec.AdapterConfig([one, two]), [(one, 1.0), (two, 1.0)], Mode.MODE_AUTO),
        (ovspec.AdapterConfig([one, two], [1, 3.0]), [(one, 1.0), (two, 3.0)], Mode.MODE_AUTO),
        (ovspec.AdapterConfig([(one, 0.25), (two, 4)]), [(one, 0.25), (two, 4.0)], Mode.MODE_AUTO),
    ]
    for config, pairs, mode in made:
        assert (
            config.get_adapters_and_alphas() == pairs and config.mode == mode and bool(config) == bool(pairs)
        )
    config = ovspec.AdapterConfig(one, 0.5)
    assert config.add(two).set_alpha(two, 3.0).get_alpha(two) == 3.0
    assert config.remove(one).get_adapters() == [two]


@pytest.mark.parametrize(
    ("alpha", "message"),
    [
        ("1", "alpha='1' of Adapter"),
        (True, "alpha=True of Adapter"),
        (float("nan"), "alpha=nan of Adapter"),
        (float("inf"), "alpha=inf of Adapter"),
        ([1.0, 2.0], r"alpha=\[1.0, 2.0\]"),
    ],
)
def test_an_alpha_is_a_finite_number(adapters: list[ovspec.Adapter], alpha: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ovspec.AdapterConfig(adapters[0], alpha)


def test_what_is_no_configuration(adapters: list[ovspec.Adapter]) -> None:
    one, two = adapters
    with pytest.raises(ValueError, match="MODE_FUSE: adapters are computed beside the weights"):
        ovspec.AdapterConfig(one, Mode.MODE_FUSE)
    with pytest.raises(ValueError, match="is in this AdapterConfig already; use set_alpha"):
        ovspec.AdapterConfig([one, one])
    with pytest.raises(ValueError, match="is not in this AdapterConfig; add it first"):
        ovspec.AdapterConfig(one).get_alpha(two)
    with pytest.raises(ValueError, match=r"Adapter\(\) holds nothing; give it a file"):
        ovspec.AdapterConfig(ovspec.Adapter())
    with pytest.raises(TypeError, match=r"expected an ovspec\.Adapter, got str"):
        ovspec.AdapterConfig(["adapter.safetensors"])  # type: ignore[list-item]


def test_what_is_given_twice(adapters: list[ovspec.Adapter]) -> None:
    one, two = adapters
    with pytest.raises(TypeError, match="adapter and adapters are both given: leave one out"):
        ovspec.AdapterConfig(one, adapter=two)
    for given in ((Mode.MODE_STATIC,), (one, Mode.MODE_STATIC)):
        with pytest.raises(TypeError, match="mode is given twice: leave one out"):
            ovspec.AdapterConfig(*given, mode=Mode.MODE_DYNAMIC)


def test_a_refused_set_changes_nothing(adapters: list[ovspec.Adapter]) -> None:
    one, two = adapters
    config = ovspec.AdapterConfig(one, 0.5)
    for bad in ([(two, 1.0), (one, float("nan"))], [(two, 1.0), (two, 2.0)]):
        with pytest.raises(ValueError, match=r"expected a finite number|is in this AdapterConfig already"):
            config.set_adapters_and_alphas(bad)
        assert config.get_adapters_and_alphas() == [(one, 0.5)]


def test_a_call_changes_what_the_mode_lets_it_change(adapters: list[ovspec.Adapter]) -> None:
    one, two = adapters

    def asked(mode: Any, config: object) -> AdapterBlend | None:
        return requested(PipelineAdapters.of(ovspec.AdapterConfig(one, 0.5, mode)), config)

    mine, changed, other = (ovspec.AdapterConfig(*of) for of in ((one, 0.5), (one, 2.0), (two, 0.5)))
    off = ovspec.AdapterConfig()
    for mode in (Mode.MODE_AUTO, Mode.MODE_DYNAMIC, Mode.MODE_STATIC_RANK, Mode.MODE_STATIC):
        assert asked(mode, None) == asked(mode, mine) == AdapterBlend(((one, 0.5),))
        if mode == Mode.MODE_STATIC:
            for config in (changed, other, off):
                with pytest.raises(ValueError, match="MODE_STATIC fixes adapters and alphas"):
                    asked(mode, config)
            continue
        assert asked(mode, changed) == AdapterBlend(((one, 2.0),)) and asked(mode, off) is None
        assert asked(mode, ovspec.AdapterConfig(one, 0.0)) is None
        if mode == Mode.MODE_STATIC_RANK:
            with pytest.raises(ValueError, match=r"MODE_STATIC_RANK has no Adapter\("):
                asked(mode, other)
        else:
            assert asked(mode, other) == AdapterBlend(((two, 0.5),))
    with pytest.raises(ValueError, match="MODE_STATIC differs from the pipeline's MODE_DYNAMIC"):
        asked(Mode.MODE_DYNAMIC, ovspec.AdapterConfig(one, Mode.MODE_STATIC))
    with pytest.raises(ValueError, match="this pipeline was made without"):
        requested(None, mine)
    assert requested(None, off) is None and requested(None, None) is None
    with pytest.raises(TypeError, match=r"expected an ovspec\.AdapterConfig, got openvino_genai"):
        requested(None, openvino_genai.AdapterConfig())


def test_identities_differ_by_adapter_and_alpha(adapters: list[ovspec.Adapter], tmp_path: Path) -> None:
    other = random_matrices({"model.layers.0.self_attn.q_proj": (24, 40)}, seed=1)
    one, same = adapters
    third = ovspec.Adapter(write_adapter(tmp_path / "third.safetensors", other))
    blends = [((one, 1.0),), ((one, 0.5),), ((third, 1.0),), ((one, 1.0), (third, 1.0))]
    assert len({AdapterBlend(parts).identity for parts in blends}) == len(blends)
    assert AdapterBlend(((one, 1.0),)).identity == AdapterBlend(((same, 1.0),)).identity

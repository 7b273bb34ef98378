"""Adapters of a pipeline and of its calls, on the demo pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from adapter_files import layer_sizes, random_adapter, random_matrices, write_adapter
from numpy.typing import NDArray
from openvino_genai import TokenizedInputs
from prompts import PROMPTS, STORY
from safetensors.numpy import save_file
from settings import F32
from tiers import by_tier

import ovspec
from ovspec.engine.requests.request import Request
from ovspec.pipeline.prefix_files import load_prefix, save_prefix

NEW_TOKENS = 24
Config = ovspec.AdapterConfig


@pytest.fixture(scope="module")
def adapters(demo_ir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[ovspec.Adapter]:
    """Of rank 8 for all layers, and of rank 3 for some."""
    folder = tmp_path_factory.mktemp("adapters")
    some = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
    return [
        ovspec.Adapter(random_adapter(folder / "one.safetensors", demo_ir, 8, 1, 2.0)),
        ovspec.Adapter(random_adapter(folder / "two.safetensors", demo_ir, 3, 2, 2.0, *some)),
    ]


@pytest.fixture(scope="module")
def plain(demo_ir: Path) -> ovspec.LLMPipeline:
    return ovspec.LLMPipeline(demo_ir, "CPU", drafter="none", **F32)


@pytest.fixture(scope="module")
def adapting(demo_ir: Path) -> ovspec.LLMPipeline:
    return ovspec.LLMPipeline(demo_ir, "CPU", drafter="none", adapters=Config(), **F32)


def tokens_of(pipeline: ovspec.LLMPipeline, text: str, **options: Any) -> list[int]:
    ids = np.array(pipeline.get_tokenizer().encode(text).input_ids.data, np.int64)
    inputs = TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
    tokens: list[int] = pipeline.generate(inputs, max_new_tokens=NEW_TOKENS, **options).tokens[0]
    return tokens


def test_calls_with_other_adapters_share_passes_and_change_nothing(
    plain: ovspec.LLMPipeline, adapting: ovspec.LLMPipeline, adapters: list[ovspec.Adapter]
) -> None:
    """Without adapters as in a pipeline that knows none; five calls in a batch as each alone, to the bit."""
    one, two = adapters
    asked = [None, Config(one), Config(two), Config([(one, 0.5), (two, -1.5)]), Config(one, 0.0)]
    prompt = plain.chat_prompts.tokenized(STORY[:400])
    settings = [adapting.settings(max_new_tokens=NEW_TOKENS, logprobs=1, adapters=of) for of in asked]

    def answers(numbers: list[int]) -> list[list[tuple[int, float]]]:
        requests = [Request(f"{number}", prompt, settings[number], logprobs=0) for number in numbers]
        handle, found = adapting.engine.run(requests), dict[str, list[tuple[int, float]]]()
        for output in handle:
            pairs = zip(output.token_ids, output.logprobs, strict=True)
            found.setdefault(output.request_id, []).extend((token, of.logprob) for token, of in pairs)
        return [found[request.request_id] for request in requests]

    together = answers([0, 1, 2, 3, 4])
    assert together == [answers([number])[0] for number in range(5)]
    assert together[0] == together[4] and len({str(answer) for answer in together}) == 4
    assert [token for token, _ in together[0]] == tokens_of(plain, STORY[:400])


def test_prompts_are_shared_within_the_same_adapters_only(
    adapting: ovspec.LLMPipeline, adapters: list[ovspec.Adapter], demo_ir: Path
) -> None:
    one, two = adapters
    adapting.runner.blocks.forget()

    def found(config: Config | None) -> int:
        before = adapting.runner.blocks.hits
        tokens_of(adapting, STORY, adapters=config)
        return adapting.runner.blocks.hits - before

    asked = [None, Config(one), Config(one, 0.5), Config(two)]
    assert [found(config) for config in asked] == [0, 0, 0, 0]
    shared = {found(config) for config in (*asked, Config(), Config(two, 0.0))}
    assert len(shared) == 1 and min(shared) > 64


@pytest.mark.parametrize(
    "drafter", by_tier(["assistant", "suffix", "sparse_self", "layer_skip"], ["assistant"])
)
def test_drafts_are_lossless_beside_adapters(
    demo_ir: Path, adapting: ovspec.LLMPipeline, adapters: list[ovspec.Adapter], drafter: str
) -> None:
    """Whatever the base model drafts; greedy and sampled."""
    draft = ovspec.draft_model(demo_ir / "draft") if drafter == "assistant" else None
    mine = Config(adapters[0])
    pipeline = ovspec.LLMPipeline(demo_ir, "CPU", draft_model=draft, drafter=drafter, adapters=mine, **F32)
    for prompt in PROMPTS[:3]:
        for sampling in ({}, {"do_sample": True, "rng_seed": 7}):
            want = tokens_of(adapting, prompt, adapters=mine, **sampling)
            assert tokens_of(pipeline, prompt, **sampling) == want
            base = tokens_of(adapting, prompt, **sampling)
            assert tokens_of(pipeline, prompt, adapters=Config(), **sampling) == base != want


def test_a_head_drafts_losslessly(
    demo_ir: Path, adapting: ovspec.LLMPipeline, adapters: list[ovspec.Adapter]
) -> None:
    head = ovspec.draft_model(demo_ir / "eagle3")
    pipeline = ovspec.LLMPipeline(demo_ir, "CPU", draft_model=head, adapters=Config(), **F32)
    for config in (None, Config(adapters[1])):
        want = tokens_of(adapting, PROMPTS[0], adapters=config)
        assert tokens_of(pipeline, PROMPTS[0], adapters=config) == want


def test_a_model_from_cache_dir_knows_its_layers(
    demo_ir: Path, adapting: ovspec.LLMPipeline, adapters: list[ovspec.Adapter], tmp_path: Path
) -> None:
    options = {**F32, "drafter": "none", "CACHE_DIR": str(tmp_path)}
    want = tokens_of(adapting, STORY[:300], adapters=Config(adapters[0]))
    for _ in range(2):
        pipeline = ovspec.LLMPipeline(demo_ir, "CPU", adapters=Config(adapters[0]), **options)
        assert tokens_of(pipeline, STORY[:300]) == want
    assert len(list(tmp_path.glob("*/model.blob"))) == 1
    without = ovspec.LLMPipeline(demo_ir, "CPU", **options)
    assert tokens_of(without, STORY[:300]) == tokens_of(adapting, STORY[:300])


@pytest.mark.slow
def test_prefix_files_belong_to_their_adapters(
    demo_ir: Path, plain: ovspec.LLMPipeline, adapters: list[ovspec.Adapter], tmp_path: Path
) -> None:
    """A file of the base model serves a pipeline whose calls use no adapters, and the other way round."""
    one, two = adapters

    def start(config: Config) -> ovspec.LLMPipeline:
        return ovspec.LLMPipeline(demo_ir, "CPU", drafter="none", adapters=config, **F32)

    with_one = start(Config(one))
    want = tokens_of(with_one, STORY)
    saved = save_prefix(with_one, tmp_path / "one", STORY, is_system_message=False)
    save_prefix(plain, tmp_path / "base", STORY, is_system_message=False)
    for config in (Config(two), Config(one, 0.5), Config()):
        with pytest.raises(ValueError, match="was saved with another set of LoRA adapters than"):
            load_prefix(start(config), tmp_path / "one")
    with pytest.raises(ValueError, match="was saved with another set of LoRA adapters than"):
        load_prefix(with_one, tmp_path / "base")
    later = start(Config(one))
    assert load_prefix(later, tmp_path / "one") == saved
    assert tokens_of(later, STORY) == want and later.runner.blocks.hits == saved
    assert load_prefix(start(Config()), tmp_path / "base") == saved


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "stock"}, "adapters: linear='stock', as attention='stock' has it"),
        ({"linear": "stock"}, "adapters: linear='stock': only our linear layers"),
        ({"adapters": "one.safetensors"}, "adapters: expected an ovspec.AdapterConfig, got builtins.str"),
    ],
)
def test_pipelines_without_a_place_for_adapters(demo_ir: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        ovspec.LLMPipeline(demo_ir, "CPU", **{"adapters": Config(), **options}, **F32)
    assert "\n" not in str(caught.value)


def test_calls_that_no_adapter_serves(
    plain: ovspec.LLMPipeline,
    adapting: ovspec.LLMPipeline,
    adapters: list[ovspec.Adapter],
    demo_ir: Path,
    tmp_path: Path,
) -> None:
    """One line by name; the calls after them are served."""

    def refused(pipeline: ovspec.LLMPipeline, adapter: ovspec.Adapter, message: str) -> None:
        with pytest.raises(ValueError, match=message) as caught:
            pipeline.generate("Once", adapters=Config(adapter), max_new_tokens=2)
        assert "\n" not in str(caught.value) and isinstance(caught.value, RuntimeError)

    def of(name: str, inputs: int, outputs: int) -> ovspec.Adapter:
        path = tmp_path / f"{name}{inputs}.safetensors"
        return ovspec.Adapter(write_adapter(path, random_matrices({name: (inputs, outputs)})))

    refused(plain, adapters[0], "adapters: this pipeline was made without")
    name, (inputs, outputs) = next(iter(layer_sizes(demo_ir).items()))
    refused(adapting, of(name, inputs + 8, outputs), f"is of {inputs + 8} inputs and {outputs} outputs, the")
    refused(adapting, of("model.layers.99.mlp.up_proj", 8, 8), "no linear layer .*layers.99.mlp.up_proj")
    refused(adapting, of("lm_head", 8, 8), "embedding and output layer take none")
    refused(adapting, of("model.layers.0.mlp.experts.3.up_proj", 8, 8), "the weights of experts take none")
    assert tokens_of(adapting, PROMPTS[0]) == tokens_of(plain, PROMPTS[0])


def test_layers_have_other_names_in_some_files(
    adapting: ovspec.LLMPipeline, demo_ir: Path, tmp_path: Path
) -> None:
    """PEFT's, those of kohya's scripts, and names without what stands in front of them in the model."""
    matrices = random_matrices(layer_sizes(demo_ir), strength=2.0)

    def answer(prefix: str, dropped: str = "", point: str = ".") -> list[int]:
        tensors = dict[str, NDArray[np.float32]]()
        for name, (a, b) in matrices.items():
            written = prefix + name.removeprefix(dropped).replace(".", point)
            tensors |= {f"{written}.lora_down.weight": a, f"{written}.lora_up.weight": b}
        save_file(tensors, tmp_path / "named.safetensors")
        adapter = ovspec.Adapter(tmp_path / "named.safetensors")
        return tokens_of(adapting, PROMPTS[0], adapters=Config(adapter))

    want = answer("base_model.model.")
    assert want == answer("lora_te_", point="_") == answer("", dropped="model.")
    assert want != tokens_of(adapting, PROMPTS[0])


def test_the_configuration_of_a_pipeline_holds_adapters(
    adapting: ovspec.LLMPipeline, adapters: list[ovspec.Adapter]
) -> None:
    """As any other field: of a GenerationConfig, and of set_generation_config."""
    want = tokens_of(adapting, PROMPTS[1], adapters=Config(adapters[1]))
    config = ovspec.GenerationConfig(adapters=Config(adapters[1]), max_new_tokens=NEW_TOKENS)
    assert str(adapting.generate([PROMPTS[1]], config).texts) == str(
        adapting.generate([PROMPTS[1]], adapters=Config(adapters[1]), max_new_tokens=NEW_TOKENS).texts
    )
    before = adapting.get_generation_config()
    adapting.set_generation_config(config)
    try:
        assert tokens_of(adapting, PROMPTS[1]) == want
    finally:
        adapting.set_generation_config(before)
    assert tokens_of(adapting, PROMPTS[1]) != want

"""The plan of a pipeline's memory: what it adds up, what it refuses, and that its advice fits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from adapter_files import random_adapter
from click.testing import CliRunner
from openvino_genai import SchedulerConfig
from prompts import PROMPTS
from settings import F32

import ovspec
from ovspec.cli import cli, main
from ovspec.memory.memory_plan import MemoryPlan, cache_room, plan_memory
from ovspec.memory.model_plan import ModelPlan
from ovspec_models import ModelInfo, demo_pair_path


@pytest.fixture
def info(demo_ir: Path) -> ModelInfo:
    return ModelInfo.read(demo_ir)


def plan(info: ModelInfo, context: int = 4096, **options: Any) -> MemoryPlan:
    """A plan for a context that the demo pair does not have."""
    return plan_memory(replace(info, max_position_embeddings=None), context, **options)


@pytest.mark.parametrize("precision", ["f32", "f16", "u8"])
def test_the_cache_is_what_the_pipeline_allocates(demo_ir: Path, info: ModelInfo, precision: str) -> None:
    properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": precision}
    pipe = ovspec.LLMPipeline(demo_ir, "CPU", max_context=256, **properties)
    pipe.generate(PROMPTS[0], max_new_tokens=2)
    token = pipe.runner.cache.block_bytes / pipe.runner.block_size
    assert pipe.memory_plan.target.cache == (256 + 32) * token
    assert pipe.memory_plan.cache_precision == precision
    assert pipe.memory_plan.target.mapped == (demo_ir / "openvino_model.bin").stat().st_size


def test_more_of_anything_takes_more(info: ModelInfo, demo_ir: Path) -> None:
    base = plan(info, available=0)
    draft = ModelInfo.read(demo_ir / "draft")
    larger = [
        plan(info, 8192, available=0),
        plan(info, available=0, draft=draft),
        plan(info, available=0, properties={"KV_CACHE_PRECISION": "f32"}),
        plan(info, available=0, max_num_batched_tokens=2048),
    ]
    assert all(other.total > base.total for other in larger)
    parts = base.target
    assert (
        base.total
        == base.process + parts.weights + parts.cache + parts.working
        == base.process + parts.steady
    )


@pytest.mark.parametrize("precision", ["u8", "f32"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_context_that_is_advised_fits(info: ModelInfo, precision: str, share: float) -> None:
    properties = {"KV_CACHE_PRECISION": precision}
    context = 1 << 20
    enough = plan(info, context, properties=properties, available=1 << 60)
    available = enough.total - int((1 - share) * enough.target.cache)
    short = plan(info, context, properties=properties, available=available)
    with pytest.raises(ValueError, match=r"--max-context \d+ at most") as caught:
        short.check()
    message = str(caught.value)
    for part in (f"needs {short.total / 1e9:.2f} GB", f"{available / 1e9:.2f} GB are available"):
        assert part in message
    assert ("KV_CACHE_PRECISION=u8" in message) == (precision == "f32")
    advised = int(re.search(r"--max-context (\d+)", message)[1])
    plan(info, advised, properties=properties, available=available).check()
    with pytest.raises(ValueError, match="--max-context"):
        plan(info, advised + 64, properties=properties, available=available).check()


def test_without_room_for_the_weights(info: ModelInfo, demo_ir: Path) -> None:
    draft = ModelInfo.read(demo_ir / "draft")
    alone = plan(info, 32, available=0).total
    with pytest.raises(ValueError, match="--draft-model none"):
        plan(info, 32, draft=draft, available=alone).check()
    with pytest.raises(ValueError, match="--weight-format int8 or int4"):
        plan(info, 32, available=info.weight_bytes // 2).check()


@pytest.mark.parametrize("name", ["adapters", "pictures"])
def test_what_lies_beside_models_takes_what_the_context_could_have(info: ModelInfo, name: str) -> None:
    room, held = plan(info, available=0).total, 5_000_000
    with_some = plan(info, available=room, **{name: held})
    assert with_some.total == room + held
    with pytest.raises(ValueError, match=rf"{name} 0\.01, KV cache .* --max-context \d+ at most"):
        with_some.check()


def test_adapters_are_in_memory_already(info: ModelInfo) -> None:
    """When it is planned, so that what is free comes beside them."""
    held = 5_000_000
    few = plan(info, 32, available=0).total
    with pytest.raises(ValueError, match=r"adapters 0\.01, .*; give fewer adapters, or some of lower rank"):
        plan(info, 32, available=few, adapters=held).check()
    plan(info, 32, available=few + held, adapters=held).check()
    before = plan(info).available
    assert plan(info, adapters=10**12).available > before + 10**12 - 2**30


def test_pictures_take_what_other_requests_could_have(info: ModelInfo, demo_ir: Path) -> None:
    held = 5_000_000
    draft = ModelInfo.read(demo_ir / "draft")
    alone = plan(info, 32, available=0, pictures=held).total
    with pytest.raises(ValueError, match="--draft-model none"):
        plan(info, 32, draft=draft, available=alone, pictures=held).check()
    available = 400_000_000
    rooms = [cache_room(info, 4, 2**20, available, pictures=size) for size in (0, 50_000_000, 100_000_000)]
    assert rooms[0] > rooms[1] > rooms[2]
    with pytest.raises(ValueError, match="models, pictures and a pass of 4 drafts"):
        cache_room(info, 4, 2**20, available, pictures=available)


def test_ended_requests_keep_a_part_of_what_the_context_leaves(info: ModelInfo) -> None:
    needed = plan(info, available=0).total
    assert plan(info, available=needed + 80_000_000).prefix_cache == 10_000_000
    assert plan(info, available=needed + 2**40).prefix_cache == 2**30
    overruled = plan(info, available=needed - 8)
    assert overruled.prefix_cache == (needed - 8) // 8 and overruled.as_json()["prefix_cache"] > 0


def test_the_room_for_keys_and_values_leaves_drafts_of_all_requests_their_rows(
    info: ModelInfo, demo_ir: Path
) -> None:
    """What the bound and a pass of 63 drafts for each request need is available, and a block more is not."""
    draft, available = ModelInfo.read(demo_ir / "draft"), 400_000_000

    def room(requests: int, length: int = 2**20) -> int:
        return cache_room(info, requests, length, available, draft=draft)

    block = 32 * info.kv_cache_bytes_per_token("u8", "BY_TOKEN")
    assert room(4) % block == 0
    # 64 rows of 4,096 logits in both models, and their activations, for each of 16 further requests.
    assert room(4) - room(20) > 16 * 64 * 4 * (info.vocab_size + draft.vocab_size) // 2
    assert room(4, length=64) == 4 * 2 * block  # no more than the requests can have
    with pytest.raises(ValueError, match=r"--max-num-seqs \d+: .* lower it"):
        room(2**62)


def test_the_room_for_keys_and_values_leaves_all_requests_their_states(info: ModelInfo) -> None:
    """Of linear attention: of each request as many as a draft has, without drafts a few."""
    values = 2_000_000

    def room(requests: int, state_values: int, drafts: bool) -> int:
        model = replace(info, state_values=state_values)
        return cache_room(model, requests, 2**20, 4_000_000_000, drafts=drafts)

    def states(requests: int, drafts: bool) -> int:
        return (room(requests, 0, drafts) - room(requests, values, drafts)) // (2 * values)

    # A cache that grows has one of its tensors twice, and tensors end with whole pages.
    assert 0.85 * 8 * 18 < states(8, drafts=True) <= 8 * 18
    assert 0.7 * (16 + 8 * 3) < states(8, drafts=False) <= 16 + 8 * 3


class TestPipeline:
    def test_ended_requests_keep_what_was_planned(self, demo_ir: Path) -> None:
        def kept(**arguments: Any) -> float:
            pipe = ovspec.LLMPipeline(demo_ir, "CPU", max_context=256, **arguments, **F32)
            return pipe.runner.blocks.max_cached * pipe.runner.cache.block_bytes

        total = ovspec.LLMPipeline(demo_ir, "CPU", max_context=256, **F32).memory_plan.total
        block = 2_000_000  # blocks are whole
        assert 4_000_000 - block < kept(memory_limit=total + 32_000_000) <= 4_000_000
        config = SchedulerConfig()
        config.cache_size, config.enable_prefix_caching = 1, True
        assert 2**30 - block < kept(scheduler_config=config, memory_limit=total + 32_000_000) <= 2**30
        config.enable_prefix_caching = False
        assert kept(scheduler_config=config) == 0

    def test_refused_before_anything_is_compiled(
        self, demo_ir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ovspec.memory.memory_plan.device_bytes", lambda device: 50_000_000)
        # Calling it would be another error.
        monkeypatch.setattr("ovspec.pipeline.models.target_model.ModelRunner", None)
        with pytest.raises(ValueError, match=r"0\.05 GB are available") as caught:
            ovspec.LLMPipeline(demo_ir, "CPU")
        assert "\n" not in str(caught.value)

    def test_a_limit_of_the_users_holds_instead(self, demo_ir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ovspec.memory.memory_plan.device_bytes", lambda device: 50_000_000)
        for limit in (10**9, math.inf):
            pipe = ovspec.LLMPipeline(demo_ir, "CPU", memory_limit=limit, **F32)
            assert pipe.generate(PROMPTS[0], max_new_tokens=2)
            assert pipe.memory_plan.available == (50_000_000 if limit == math.inf else limit)
        monkeypatch.undo()
        with pytest.raises(ValueError, match=r"0\.04 GB are available; .* --memory-limit SIZE or"):
            ovspec.LLMPipeline(demo_ir, "CPU", memory_limit=40_000_000)

    @pytest.mark.parametrize("value", [0, -1, True, "6GB", math.nan])
    def test_bad_limit(self, demo_ir: Path, value: Any) -> None:
        with pytest.raises(ValueError, match=f"memory_limit={value!r}: expected bytes above 0"):
            ovspec.LLMPipeline(demo_ir, "CPU", memory_limit=value)

    @pytest.mark.slow
    def test_adapters_of_the_pipeline_are_planned(self, demo_ir: Path, tmp_path: Path) -> None:
        """Keys and values of a server get what they leave."""
        file = random_adapter(tmp_path / "one.safetensors", demo_ir, rank=64)
        adapter = ovspec.Adapter(file)
        assert file.stat().st_size * 0.9 < adapter.nbytes < file.stat().st_size * 1.2

        def start(**arguments: Any) -> ovspec.LLMPipeline:
            return ovspec.LLMPipeline(demo_ir, "CPU", max_context=256, **arguments, **F32)

        total = start(memory_limit=10**9).memory_plan.total
        config = ovspec.AdapterConfig(adapter, 0.0)
        with pytest.raises(ValueError, match=f"adapters {adapter.nbytes / 1e9:.2f}, "):
            start(memory_limit=total + adapter.nbytes - 1, adapters=config)
        pipe = start(memory_limit=total + adapter.nbytes, adapters=config)
        assert pipe.memory_plan.total == total + adapter.nbytes
        less, more = 290_000_000, 290_000_000 + adapter.nbytes
        rooms = [
            start(memory_limit=limit, adapters=of).bound_cache(64)
            for limit, of in ((less, None), (more, config), (more, None))
        ]
        assert rooms[0] == rooms[1] < rooms[2]

    def test_pipelines_of_a_machine_divide_what_it_has(self, demo_ir: Path) -> None:
        def start(limit: int) -> ovspec.LLMPipeline:
            return ovspec.LLMPipeline(demo_ir, "CPU", max_context=256, memory_limit=limit, **F32)

        alone, one_of_two = start(290_000_000).bound_cache(64), start(580_000_000).bound_cache(64, share=2)
        assert alone == one_of_two < start(580_000_000).bound_cache(64)
        with pytest.raises(ValueError, match=r"0\.06 GB are available to each of 9 replicas; lower"):
            start(580_000_000).bound_cache(64, share=9)

    @pytest.mark.parametrize("size", ["16", 32, 0])
    def test_groups_of_a_quantised_cache_are_planned(self, demo_ir: Path, size: Any) -> None:
        """The plan knows the bytes of a token that the compiled model has."""
        groups = {"KEY_CACHE_GROUP_SIZE": size, "VALUE_CACHE_GROUP_SIZE": 16}
        given: dict[str, Any] = {"KV_CACHE_PRECISION": "u8", "attention": "stock", **groups}
        pipe = ovspec.LLMPipeline(demo_ir, "CPU", max_context=256, **given)
        assert pipe.memory_plan.target.cache * 32 == (256 + 32) * pipe.runner.cache.block_bytes

    def test_max_context_is_kept(self, demo_ir: Path) -> None:
        pipe = ovspec.LLMPipeline(demo_ir, "CPU", max_context=40, **F32)
        encoded = pipe.get_tokenizer().encode(PROMPTS[0])
        length = encoded.input_ids.shape[1]
        assert len(pipe.generate(encoded, ignore_eos=True, max_new_tokens=400).tokens[0]) == 40 - length
        with pytest.raises(ValueError, match="40"):
            pipe.generate(PROMPTS[0] * 10, max_new_tokens=1)

    @pytest.mark.parametrize("value", [0, -5, 1.5, True, 10**9])
    def test_bad_context(self, demo_ir: Path, value: Any) -> None:
        with pytest.raises(ValueError, match=f"max_context={value}"):
            ovspec.LLMPipeline(demo_ir, "CPU", max_context=value)


class TestCommands:
    def test_info(self, demo_ir: Path) -> None:
        result = CliRunner().invoke(cli, ["info", str(demo_ir), "--context", "512"], catch_exceptions=False)
        assert "memory" in result.output and "available" in result.output and "fits" in result.output
        with pytest.raises(ValueError, match="needs a model"):
            CliRunner().invoke(cli, ["info", "--context", "512"], catch_exceptions=False)

    @pytest.mark.slow
    def test_info_with_adapters(self, demo_ir: Path, tmp_path: Path) -> None:
        file = random_adapter(tmp_path / "one.safetensors", demo_ir)
        asked = ["info", str(demo_ir), "--json", "--context", "512"]
        plans = []
        for more in ([], ["--adapter", str(file)], ["--adapter", str(file), "--adapter", f"{file}=0.5"]):
            result = CliRunner().invoke(cli, [*asked, *more], catch_exceptions=False)
            plans.append(json.loads(result.output)["memory"])
        held = ovspec.Adapter(file).nbytes
        assert [of["adapters"] for of in plans] == [0, held, 2 * held]
        assert plans[2]["total"] == plans[0]["total"] + 2 * held
        with pytest.raises(ValueError, match=r"one\.safetensors is for the plan of memory: give --context"):
            CliRunner().invoke(cli, ["info", str(demo_ir), "--adapter", str(file)], catch_exceptions=False)

    @pytest.fixture
    def generate(
        self, demo_ir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> Callable[..., tuple[object, str]]:
        """Exit code and standard error of `ovspec generate`, on a machine without memory."""

        def run(*options: str) -> tuple[object, str]:
            arguments = ["ovspec", "generate", "-m", str(demo_ir), "-p", "Once", "--max-new-tokens", "2"]
            monkeypatch.setattr("ovspec.memory.memory_plan.device_bytes", lambda device: 1)
            monkeypatch.setattr("ovspec.cli.options.adapters.available_bytes", lambda: 1)
            monkeypatch.setattr("sys.argv", [*arguments, *options])
            with pytest.raises(SystemExit) as ended:
                main()
            return ended.value.code, capsys.readouterr().err

        return run

    def test_generate(self, generate: Callable[..., tuple[object, str]]) -> None:
        code, said = generate("--max-context", "512")
        assert code == 2 and said.count("\n") == 1
        assert "a context of 512 tokens needs" in said and "--no-memory-check" in said

    @pytest.mark.parametrize(
        "options", [["--no-memory-check"], ["--memory-limit", "1.5GiB"], ["--memory-limit", "900 mb"]]
    )
    def test_the_plan_is_overruled(
        self, generate: Callable[..., tuple[object, str]], options: list[str]
    ) -> None:
        assert generate(*options)[0] in (0, None)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--memory-limit", "6G"], "'6G': expected a size such as 6GB"),
            (["--memory-limit", "0"], "'0': expected a size"),
            (["--memory-limit", "30MB"], "0.03 GB are available"),
            (["--memory-limit", "6GB", "--no-memory-check"], "exclude each other"),
            (["--adapter", str(demo_pair_path() / "openvino_model.bin")], "reading it takes up to 0.0"),
        ],
    )
    def test_bad_limits(
        self, generate: Callable[..., tuple[object, str]], options: list[str], message: str
    ) -> None:
        code, said = generate(*options)
        assert code == 2 and message in said


@pytest.mark.parametrize(
    ("device", "cache", "smaller"),
    [
        ("CPU", "f32", "KV_CACHE_PRECISION=u8"),
        ("GPU", "f16", "KV_CACHE_PRECISION=u8"),
        ("GPU.1", "f32", "INFERENCE_PRECISION_HINT=f16"),
    ],
)
def test_what_is_recommended_is_not_refused(device: str, cache: str, smaller: str) -> None:
    """A GPU has no u8 cache beside f32."""
    model = ModelPlan(weights=10**9, start=0, cache=10**9, working=0, mapped=0)
    plan = MemoryPlan(4096, cache, model, None, available=10**9, largest_context=2048, device=device)
    with pytest.raises(ValueError, match=f"--max-context 2048 at most, or {smaller} "):
        plan.check()

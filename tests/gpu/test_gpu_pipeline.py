"""The demo pair on a GPU: its text is that of the CPU, in f32, whoever drafts and however it verifies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prompts import PROMPTS
from settings import F32_CACHE

import ovspec
from ovspec.memory.device_memory import device_bytes

pytestmark = pytest.mark.gpu


MANY = 200
DRAFTERS = [
    pytest.param({"draft": "CPU"}, id="draft on CPU"),
    pytest.param({"draft": ""}, id="draft on GPU"),
    pytest.param({"drafter": "prompt_lookup"}, id="prompt lookup"),
    pytest.param({"drafter": "suffix"}, id="suffix"),
    pytest.param({"drafter": "sparse_self"}, id="sparse self"),
    pytest.param({"draft": "CPU", "verify": "commit"}, id="commit"),
]


@pytest.fixture
def pipeline(demo_ir: Path, gpu: str) -> Callable[..., ovspec.LLMPipeline]:
    """A pipeline of the demo target."""

    def make(draft: str | None = None, device: str = gpu, **options: Any) -> ovspec.LLMPipeline:
        who: dict[str, Any] = {"drafter": "none"}
        if draft is not None:
            who = {"drafter": "assistant", "draft_model": ovspec.draft_model(demo_ir / "draft", draft)}
        return ovspec.LLMPipeline(demo_ir, device, **{**who, **options}, **F32_CACHE)

    return make


@pytest.fixture(scope="module")
def expected(demo_ir: Path) -> str:
    pipe = ovspec.LLMPipeline(demo_ir, "CPU", drafter="none", **F32_CACHE)
    return pipe.generate(PROMPTS[0], max_new_tokens=MANY, ignore_eos=True)


def test_plain_text_is_that_of_the_cpu(pipeline: Callable[..., ovspec.LLMPipeline], expected: str) -> None:
    assert pipeline().generate(PROMPTS[0], max_new_tokens=MANY, ignore_eos=True) == expected


@pytest.mark.parametrize("options", DRAFTERS)
def test_drafts_and_commits_do_not_change_it(
    pipeline: Callable[..., ovspec.LLMPipeline], expected: str, options: dict[str, Any]
) -> None:
    pipe = pipeline(**options)
    result = pipe.generate([PROMPTS[0]], max_new_tokens=MANY, ignore_eos=True)
    assert result.texts == [expected]
    if "draft" in options:  # the text hardly repeats itself, so lookups may find nothing in it
        assert result.perf_metrics.get_acceptance_rate() > 0


def test_trees_do_not_change_it(pipeline: Callable[..., ovspec.LLMPipeline], expected: str) -> None:
    pipe = pipeline(draft="CPU")
    if reason := pipe.runner.why_no_trees:
        pytest.skip(f"this device: {reason}")
    tree = {"branching_factor": 3, "tree_depth": 4, "num_assistant_tokens": 12}
    result = pipe.generate([PROMPTS[0]], max_new_tokens=MANY, ignore_eos=True, **tree)
    assert result.texts == [expected]
    assert result.perf_metrics.get_acceptance_rate() > 0


def test_sparse_verification_reads_less(pipeline: Callable[..., ovspec.LLMPipeline]) -> None:
    pipe = pipeline("CPU", verify=ovspec.SparseVerify(budget=96))
    result = pipe.generate([" ".join(PROMPTS)], max_new_tokens=40, ignore_eos=True)
    assert result.perf_metrics.get_attention_density() < 1


def test_several_prompts_in_chunks(pipeline: Callable[..., ovspec.LLMPipeline], gpu: str) -> None:
    prompts = [" ".join(PROMPTS[:count]) for count in (3, 1, 2)]
    texts = [
        pipeline("CPU", device, max_num_batched_tokens=24).generate(prompts, max_new_tokens=20).texts
        for device in (gpu, "CPU")
    ]
    assert texts[0] == texts[1]


def test_a_second_start_takes_the_programs_of_cache_dir(
    pipeline: Callable[..., ovspec.LLMPipeline], tmp_path: Path
) -> None:
    texts = [
        pipeline(CACHE_DIR=str(tmp_path)).generate(PROMPTS[0], max_new_tokens=10, ignore_eos=True)
        for _ in range(2)
    ]
    assert texts[0] == texts[1]
    assert list(tmp_path.iterdir())


def test_auto_is_what_openvino_chooses(pipeline: Callable[..., ovspec.LLMPipeline], gpu: str) -> None:
    assert pipeline(device="AUTO:CPU").runner.backends.device == "CPU"
    assert pipeline(device=f"AUTO:{gpu}").runner.backends.device.startswith("GPU")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"attention": "native"}, "native attention runs on CPU only"),
        ({"linear": "native"}, "native linear run on CPU only"),
        ({"verify": ovspec.SparseVerify(ffn_density=0.5)}, "only our operation limits channels"),
        ({"device": "GPU.7"}, "'GPU.7' is not available here: expected one of"),
        ({"device": "MULTI:GPU,CPU"}, "the cache lies on one device"),
        ({"KV_CACHE_PRECISION": "u8"}, "KV_CACHE_PRECISION=u8 with an inference precision of f32"),
        ({"KEY_CACHE_QUANT_MODE": "BY_TOKEN"}, "'KEY_CACHE_QUANT_MODE' is unknown to device GPU"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(demo_ir: Path, gpu: str, options: dict[str, Any], said: str) -> None:
    device = options.pop("device", gpu)
    with pytest.raises(ValueError, match=said):
        ovspec.LLMPipeline(demo_ir, device, **{**F32_CACHE, **options})


def test_a_property_that_the_plugin_refuses_is_named(demo_ir: Path, gpu: str) -> None:
    with pytest.raises(ValueError, match=r"refuses .* PERF_COUNT=maybe: "):
        ovspec.LLMPipeline(demo_ir, gpu, **F32_CACHE, PERF_COUNT="maybe")


def test_the_memory_is_that_of_the_device(demo_ir: Path, gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ovspec.memory.memory_plan.device_bytes", lambda device: device_bytes(device) // 10**4
    )
    with pytest.raises(ValueError, match=f"are available on {gpu}"):
        ovspec.LLMPipeline(demo_ir, gpu, max_context=512, **F32_CACHE)

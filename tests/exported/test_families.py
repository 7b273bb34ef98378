"""Every family, exported by ovspec, computes what transformers computes, with drafts and without."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai
import pytest
import tiers
from numpy.typing import NDArray
from settings import F32
from tiny_checkpoints import LONG_FROM, TINY, by_tier, random_model

import ovspec
from ovspec.cache.cache import CachedSequence
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.passes.tables import Rows
from ovspec.proofs.reference_check import _parts, stateful_logits
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.families import FAMILIES

torch = pytest.importorskip("torch", reason="needs ovspec[export]")
pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

Exported = Callable[[str], Path]
Reference = Callable[[str], NDArray[np.float32]]
REFUSED = ("MPT", "Falcon, ALiBi")
# OpenVINO 2026.4 reads its own fused experts back from no file.
NOT_KEPT = (
    *("Qwen2-MoE", "Qwen3-MoE", "Qwen3-MoE, windows", "Mixtral", "LFM2-MoE", "AFMoE"),
    *("AFMoE, no shared experts", "Gemma 4, experts", "Qwen3-Next", "Granite-MoE", "Granite 4 hybrid"),
)
SERVED = [name for name in TINY if name not in REFUSED]
# Of the logits' spread. Two programs that add up f32 products in another order differ by some 1e-5 of it here
# (measured: 3e-6 to 4e-5); what `Tiny.lacks` takes away changes logits by more than 0.01 of it.
TOLERANCE = 2e-4
# transformers' own logits in f32 and in f64 are 4.7e-4 apart there.
WIDER = {"Qwen3-Next": 1e-3}
NEW_TOKENS = 24


def attention_of(name: str) -> str:
    return "stock" if name == "Bloom" else "native"


def test_every_family_of_the_registry_is_built() -> None:
    assert {family.name for family in FAMILIES} == {name.split(",")[0] for name in TINY}


@pytest.fixture(scope="module")
def runner(exported_family: Exported) -> Callable[[str], ModelRunner]:
    @functools.lru_cache(2)
    def get(name: str) -> ModelRunner:
        attention = AttentionConfig(attention_of(name))
        return ModelRunner(exported_family(name), "CPU", attention, F32)

    return get


def check_logits(
    name: str, model: ModelRunner, prompt: NDArray[np.int64], expected: NDArray[np.float32]
) -> None:
    """A prompt read in chunks, and its end read as drafts are verified: few rows after a context."""
    sequence, got = CachedSequence(), []
    for begin, end in (0, 60), (60, 120), *((begin, begin + 6) for begin in range(120, 150, 6)):
        rows = Rows(sequence, prompt[begin:end], sampled=end - begin, text_length=len(prompt))
        got.append(np.array(model.forward([rows]).logits))
    model.release(sequence)
    assert np.abs(np.concatenate(got) - expected).max() < WIDER.get(name, TOLERANCE) * expected.std()


def several_rows(model: ModelRunner, prompt: NDArray[np.int64]) -> NDArray[np.float32]:
    """Logits of a prompt's end and of verified rows behind it."""
    sequence = CachedSequence()
    parts = [
        np.array(model.forward([Rows(sequence, prompt[at], sampled=4)]).logits)
        for at in (slice(144), slice(144, 150))
    ]
    model.release(sequence)
    return np.concatenate(parts)


@pytest.mark.parametrize("name", tiers.by_tier(SERVED, ("Llama", "GPT-OSS")))
def test_comes_back_from_a_cache(
    name: str,
    runner: Callable[[str], ModelRunner],
    exported_family: Exported,
    prompt: NDArray[np.int64],
    tmp_path: Path,
) -> None:
    expected, attention = several_rows(runner(name), prompt), AttentionConfig(attention_of(name))
    for _ in range(2):
        again = ModelRunner(exported_family(name), "CPU", attention, {**F32, "CACHE_DIR": str(tmp_path)})
        assert np.array_equal(several_rows(again, prompt), expected)
        assert bool(again.long_rope) == bool(runner(name).long_rope)
    assert len(list(tmp_path.glob("*/model.blob"))) == (name not in NOT_KEPT)


# Products of frequencies and positions: layers with a window have their own, ALiBi and learned ones none.
ROPES = {
    "Bloom": 0,
    "Granite 4 hybrid, no positions and experts": 0,
    "Gemma 3": 2,
    "Gemma 3n": 2,
    "Gemma 4": 2,
    "Gemma 4, experts": 2,
}


# The scope groups the tests by family, so that one runner is kept at a time.
@pytest.mark.parametrize("name", by_tier(SERVED), scope="module")
class TestServed:
    def test_passes_fire_once_a_layer(self, name: str, runner: Callable[[str], ModelRunner]) -> None:
        fired = {report.name: report.count for report in runner(name).reports}
        if attention_of(name) == "native":
            assert fired.pop("NativeLinear") > 0 and fired.pop("JoinLayers") > 0
        fired.pop("RoundRows", None)
        layers = len(TINY[name].windows)
        expected = {"to_paged": layers, "GatherLogits": 1, "RopeAngles": ROPES.get(name, 1)}
        if attention_of(name) == "native":
            expected["RouteRows"] = expected["WriteCaches"] = layers
        else:
            expected["tree_mask"] = 0  # ALiBi counts slots, which are not the distances in a tree
        if name == "Phi-3":
            expected["split_long_rope"] = 1
        assert fired == expected

    def test_logits(
        self,
        name: str,
        runner: Callable[[str], ModelRunner],
        reference: Reference,
        prompt: NDArray[np.int64],
    ) -> None:
        check_logits(name, runner(name), prompt, reference(name))

    def test_what_makes_the_family_is_exercised(
        self, name: str, reference: Reference, prompt: NDArray[np.int64]
    ) -> None:
        if not TINY[name].lacks:
            return
        with torch.no_grad():
            other = random_model(TINY[name], **TINY[name].lacks)(torch.tensor(prompt[None])).logits[0]
        assert np.abs(other[-1].numpy() - reference(name)[-1]).max() > 50 * TOLERANCE * reference(name).std()

    def test_greedy_tokens_with_and_without_drafts(
        self, name: str, exported_family: Exported, prompt: NDArray[np.int64]
    ) -> None:
        attention = attention_of(name)
        texts = []
        for drafter in ("none", "prompt_lookup"):
            pipe = ovspec.LLMPipeline(
                exported_family(name), "CPU", attention=attention, drafter=drafter, **F32
            )
            options = {"num_assistant_tokens": 4} if drafter != "none" else {}
            result = pipe.generate(
                ov.Tensor(prompt[None]), max_new_tokens=NEW_TOKENS, ignore_eos=True, **options
            )
            texts.append(list(result.tokens[0]))
        assert texts[0] == texts[1]
        tokens = prompt.tolist()
        model = random_model(TINY[name])
        with torch.no_grad():
            # One pass over all tokens but the last checks every greedy choice.
            logits = model(torch.tensor([tokens + texts[0][:-1]])).logits[0, len(tokens) - 1 :]
        assert logits.argmax(-1).tolist() == texts[0]


@pytest.mark.parametrize("name", by_tier(name for name, tiny in TINY.items() if tiny.moe_layers))
def test_native_experts(
    name: str, exported_family: Exported, reference: Reference, prompt: NDArray[np.int64]
) -> None:
    model = ModelRunner(exported_family(name), "CPU", properties=F32, experts=ExpertConfig())
    assert {report.name: report.count for report in model.reports}["SparseMoE"] == TINY[name].moe_layers
    check_logits(name, model, prompt, reference(name))


@pytest.mark.parametrize("name", by_tier(SERVED))
def test_sparse_verification_reads_less(
    name: str, exported_family: Exported, prompt: NDArray[np.int64]
) -> None:
    def pipeline() -> ovspec.LLMPipeline:
        verify = ovspec.SparseVerify(budget=32)
        return ovspec.LLMPipeline(exported_family(name), "CPU", drafter="prompt_lookup", verify=verify, **F32)

    refusal = {"Bloom": "ALiBi"}.get(name) or ("sliding window" if all(TINY[name].windows) else None)
    if refusal:
        with pytest.raises(ValueError, match=refusal) as caught:
            pipeline()
        assert "\n" not in str(caught.value)
        return
    result = pipeline().generate(
        ov.Tensor(prompt[None]), max_new_tokens=8, ignore_eos=True, num_assistant_tokens=4
    )
    assert len(result.tokens[0]) == 8
    assert result.perf_metrics.get_attention_density() < 0.9
    assert result.perf_metrics.why_lossy


@pytest.mark.parametrize("name", by_tier(REFUSED))
@pytest.mark.parametrize("attention", ["native", "stock"])
def test_bias_that_would_be_lost_is_refused(name: str, attention: str, exported_family: Exported) -> None:
    with pytest.raises(ValueError, match=r"adds a bias to the scores \(ALiBi\).*optimum-intel") as caught:
        ovspec.LLMPipeline(exported_family(name), "CPU", attention=attention)
    said = str(caught.value)
    assert "\n" not in said and "__module" not in said
    assert f"'{exported_family(name)}', a model of type '{name.split(',')[0].lower()}'" in said


@pytest.mark.parametrize("name", by_tier(REFUSED))
def test_what_that_refusal_advises_is_right(
    name: str, exported_family: Exported, reference: Reference, prompt: NDArray[np.int64]
) -> None:
    """The stateful graph, as optimum-intel runs it, computes what transformers computes."""
    ends = [end for _, end in _parts(len(prompt))]
    expected = reference(name)[[end - 1 for end in ends]]
    got = stateful_logits(exported_family(name), prompt)
    assert np.abs(got - expected).max() < TOLERANCE * expected.std()


def test_long_rope_is_taken_where_a_text_grows_long(
    exported_family: Exported, prompt: NDArray[np.int64]
) -> None:
    """Texts on both sides of the limit share passes, and two of them cross it while they are generated."""
    lengths = (LONG_FROM - 20, LONG_FROM - 2, LONG_FROM, LONG_FROM + 30)
    model = random_model(TINY["Phi-3"])
    expected = []
    with torch.no_grad():
        for length in lengths:
            tokens = prompt[:length].tolist()
            for _ in range(NEW_TOKENS):
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
            expected.append(tokens[length:])
    padded = np.zeros((len(lengths), max(lengths)), np.int64)
    mask = np.zeros_like(padded)
    for row, length in enumerate(lengths):
        padded[row, :length], mask[row, :length] = prompt[:length], 1
    inputs = openvino_genai.TokenizedInputs(ov.Tensor(padded), ov.Tensor(mask))
    for drafter in ("none", "prompt_lookup"):
        pipe = ovspec.LLMPipeline(
            exported_family("Phi-3"), "CPU", drafter=drafter, max_num_batched_tokens=40, **F32
        )
        options = {"num_assistant_tokens": 4} if drafter != "none" else {}
        result = pipe.generate(inputs, max_new_tokens=NEW_TOKENS, ignore_eos=True, **options)
        assert [list(tokens) for tokens in result.tokens] == expected


def test_commit_is_refused_with_long_rope(exported_family: Exported) -> None:
    with pytest.raises(ValueError, match=f"verify='commit'.*change at {LONG_FROM} tokens"):
        ovspec.LLMPipeline(exported_family("Phi-3"), "CPU", drafter="prompt_lookup", verify="commit")


def test_soft_capping_of_attention_is_left_out_as_transformers_leaves_it_out(
    runner: Callable[[str], ModelRunner], reference: Reference, prompt: NDArray[np.int64]
) -> None:
    """What the registry says of Gemma 2: eager attention caps its scores, the default (sdpa) does not."""
    logits = {}
    for implementation in ("sdpa", "eager"):
        model = random_model(TINY["Gemma 2"], attn_logit_softcapping=1.0)
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            logits[implementation] = model(torch.tensor(prompt[None])).logits[0].numpy()
    spread = reference("Gemma 2").std()
    assert np.abs(logits["sdpa"] - reference("Gemma 2")).max() < TOLERANCE * spread
    assert np.abs(logits["eager"] - reference("Gemma 2")).max() > 50 * TOLERANCE * spread

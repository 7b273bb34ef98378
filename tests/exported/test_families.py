"""Every family, exported by ovspec, computes what transformers computes, with drafts and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from settings import F32
from tiny_checkpoints import TINY, random_model

import ovspec
from ovspec.cache import CachedSequence
from ovspec.model_runner import AttentionConfig, ModelRunner
from ovspec.tables import Rows
from ovspec_models.families import FAMILIES

torch = pytest.importorskip("torch", reason="needs ovspec[export]")
pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

Exported = Callable[[str], Path]
Reference = Callable[[str], NDArray[np.float32]]
REFUSED = ("MPT", "Falcon, ALiBi")
SERVED = [name for name in TINY if name not in REFUSED]
# Of the logits' spread. Two programs that add up f32 products in another order differ by some 1e-5 of it here
# (measured: 3e-6 to 4e-5); what `Tiny.lacks` takes away changes logits by more than 0.01 of it.
TOLERANCE = 2e-4
NEW_TOKENS = 24


def attention_of(name: str) -> str:
    return "stock" if name == "Bloom" else "native"


def test_every_family_of_the_registry_is_built() -> None:
    assert {family.name for family in FAMILIES} == set(TINY) - {"Falcon, ALiBi"}


@pytest.fixture(scope="module")
def runner(exported_family: Exported) -> Callable[[str], ModelRunner]:
    """One family's model at a time."""
    kept: dict[str, ModelRunner] = {}

    def get(name: str) -> ModelRunner:
        if name not in kept:
            kept.clear()
            kept[name] = ModelRunner(exported_family(name), "CPU", AttentionConfig(attention_of(name)), F32)
        return kept[name]

    return get


@pytest.mark.parametrize("name", SERVED)
class TestServed:
    def test_passes_fire_once_a_layer(self, name: str, runner: Callable[[str], ModelRunner]) -> None:
        fired = {report.name: report.count for report in runner(name).reports}
        expected = {"to_paged": 2, "GatherLogits": 1}
        if attention_of(name) == "native":
            expected["RouteRows"] = 2
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
        model, sequence, got = runner(name), CachedSequence(), []
        for begin in range(0, 120, 60):
            rows = Rows(sequence, prompt[begin : begin + 60], sampled=60, text_length=len(prompt))
            got.append(np.array(model.forward([rows])))
        # The rest as drafts are verified: few rows behind a context.
        for begin in range(120, 150, 6):
            rows = Rows(sequence, prompt[begin : begin + 6], sampled=6)
            got.append(np.array(model.forward([rows])))
        model.release(sequence)
        expected = reference(name)
        assert np.abs(np.concatenate(got) - expected).max() < TOLERANCE * expected.std()

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
        for drafter in (None, "prompt_lookup"):
            pipe = ovspec.LLMPipeline(
                exported_family(name), "CPU", attention=attention, drafter=drafter, **F32
            )
            options = {"num_assistant_tokens": 4} if drafter else {}
            result = pipe.generate(
                ov.Tensor(prompt[None]), max_new_tokens=NEW_TOKENS, ignore_eos=True, **options
            )
            texts.append(list(result.tokens[0]))
        assert texts[0] == texts[1]
        tokens = prompt.tolist()
        model = random_model(TINY[name])
        with torch.no_grad():
            # One pass over all but the last token judges every choice.
            logits = model(torch.tensor([tokens + texts[0][:-1]])).logits[0, len(tokens) - 1 :]
        assert logits.argmax(-1).tolist() == texts[0]

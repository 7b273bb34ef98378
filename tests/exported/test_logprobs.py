"""Log probabilities are those of a forward pass of transformers, whoever wrote a token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafters.own_drafters import SPARSE, Chance
from numpy.typing import NDArray
from settings import F32
from tiny_checkpoints import TINY, VOCAB, random_model

from ovspec.drafters import PromptLookupDrafter, UserDrafter
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request, TokenLogprobs
from ovspec.generation.generation_config import GenerationConfig, resolve, updated
from ovspec.modes.commit_verify import CommitVerify
from ovspec.operations.attention_config import AttentionConfig
from ovspec.runner.model_runner import ModelRunner

torch = pytest.importorskip("torch", reason="needs ovspec[export]")

DRAFTERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: None,
    "prompt_lookup": PromptLookupDrafter,
    "chance": lambda: UserDrafter(Chance(VOCAB), VOCAB),
}


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("mode", ["dense", CommitVerify(SPARSE, interval=4)], ids=["dense", "commit"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_of_transformers(
    exported_family: Callable[[str], Path],
    prompt: NDArray[np.int64],
    drafter: str,
    mode: Any,
    sampled: bool,
) -> None:
    options = {"do_sample": sampled, "temperature": 0.3, "max_new_tokens": 40, "rng_seed": 3}
    config = updated(GenerationConfig(), {**options, "num_assistant_tokens": 4, "repetition_penalty": 0.5})
    runner = ModelRunner(exported_family("Llama"), "CPU", AttentionConfig(selects=True), F32)
    engine = LLMEngine(runner, DRAFTERS[drafter](), mode, 48)
    given = prompt.tolist()
    engine.add_request(Request("a", given, resolve(config, (), True), logprobs=3, prompt_logprobs=2))
    tokens, found, of_prompt, writers = list[int](), list[TokenLogprobs](), list[TokenLogprobs](), set[str]()
    while engine.has_unfinished_requests:
        for output in engine.step():
            assert output.error is None
            tokens += output.token_ids
            found += output.logprobs
            of_prompt += output.prompt_logprobs
            writers |= set(output.writers)
    assert drafter != "prompt_lookup" or sampled or writers == {"target", "draft", "corrected"}
    with torch.no_grad():
        logits = random_model(TINY["Llama"])(torch.tensor([given + tokens])).logits[0].double()
    expected = torch.log_softmax(logits, -1).numpy()
    assert len(of_prompt) == len(given) - 1 and len(found) == len(tokens)
    for place, (token, one) in enumerate(zip((given + tokens)[1:], of_prompt + found, strict=True)):
        row = expected[place]
        assert abs(one.logprob - row[token]) < 1e-4
        best = np.sort(row)[::-1]
        assert np.allclose([value for _, value in one.top], best[: len(one.top)], atol=1e-4)
        assert all(abs(row[other] - value) < 1e-4 for other, value in one.top)
        assert abs(1 + int((row > row[token]).sum()) - one.rank) <= 1

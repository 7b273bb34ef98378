"""An EAGLE-3 head drafts what its reference drafts, and the text is that of plain decoding."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters.eagle3_models import BOUNDARIES, HYBRID, LAYERS, Reference, pair
from openvino_genai import GenerationConfig
from safetensors.torch import load_file, save_file
from settings import F32

from ovspec.drafters import SuffixDrafter
from ovspec.drafters.auto import AutoDrafter
from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.drafters.eagle3 import load_eagle3
from ovspec.drafters.recurrent_head import RecurrentHead
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.generation.generation_config import GenerationSettings, resolve, updated
from ovspec.generation.raw_metrics import RawPerfMetrics
from ovspec.modes.commit_verify import CommitVerify
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.backends import Backends
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.folder.head_info import HeadInfo
from ovspec_models.folder.sparse_verify import SparseVerify
from ovspec_models.heads import export_head, open_head

NEW_TOKENS, DRAFT = 30, 4
MODES: dict[str, Any] = {"dense": "dense", "commit": CommitVerify(SparseVerify(L0=16, rho=0.1), interval=5)}
SAMPLING: dict[str, Any] = {"do_sample": True, "temperature": 0.9, "top_p": 0.95, "rng_seed": 11}
TREE: dict[str, Any] = {"branching_factor": 3, "tree_depth": 4, "num_assistant_tokens": 9}


def settings_of(**options: Any) -> GenerationSettings:
    config = updated(
        GenerationConfig(), {"max_new_tokens": NEW_TOKENS, "num_assistant_tokens": DRAFT, **options}
    )
    return resolve(config, (), has_draft=True)


@functools.cache
def target(name: str, boundaries: tuple[int, ...], attention: str = "native") -> ModelRunner:
    graph = AttentionConfig(attention, selects=attention == "native" and bool(boundaries))
    folder = pair(name).folder
    return ModelRunner(folder, backends=Backends.resolve(folder, "CPU", F32, graph, boundaries=boundaries))


@functools.cache
def head(name: str, chunk: int = 32) -> RecurrentHead:
    folder = pair(name).folder
    graph = Backends.resolve(folder / "draft", "CPU", F32, boundaries=(1,))
    return load_eagle3(HeadInfo.read(folder / "draft"), pair(name).info, graph, chunk)


def answer(
    engine: LLMEngine, prompts: list[list[int]], settings: GenerationSettings
) -> tuple[list[list[int]], list[RawPerfMetrics]]:
    requests = [Request(str(number), prompt, settings) for number, prompt in enumerate(prompts)]
    return list(engine.generate(requests).values()), [request.metrics for request in requests]


@functools.cache
def plain(name: str, sampled: bool = False) -> list[list[int]]:
    settings = settings_of(**SAMPLING if sampled else {})
    engine = LLMEngine(target(name, (), "stock"), None, "dense", 32)
    return [answer(engine, [prompt], settings)[0][0] for prompt in pair(name).prompts]


def outcomes(
    drafter: Drafter, boundaries: tuple[int, ...], count: int = DRAFT, name: str = "llama"
) -> list[list[int]]:
    """Accepted tokens of every pass over each prompt's answer, with the states of these boundaries."""
    engine, found = LLMEngine(target(name, boundaries), drafter, "dense", 32), []
    for prompt, text in zip(pair(name).prompts, plain(name), strict=True):
        (got,), (metrics,) = answer(engine, [prompt], settings_of(num_assistant_tokens=count))
        assert got == text
        found.append(metrics.accepted_lengths)
    return found


def expected_outcomes(
    draft: Callable[[list[int], torch.Tensor, int], list[int]],
    states: Callable[[list[int]], torch.Tensor],
    count: int = DRAFT,
    name: str = "llama",
    at_least: float = 0.5,
) -> list[list[int]]:
    """What `outcomes` gives where a reference drafts.

    Args:
        draft: from a text, the states of its tokens but the last, and a number to at most so many tokens.
        states: of the tokens of a text.
        at_least: tokens accepted a pass, so that the comparison says something.
    """
    found = []
    for prompt, text in zip(pair(name).prompts, plain(name), strict=True):
        whole, length, accepted = prompt + text, len(prompt) + 1, list[int]()
        given = states(whole)
        while length < len(whole) - 1:
            tokens = draft(whole[:length], given[: length - 1], min(count, len(whole) - length - 1))
            accepted.append(next((i for i, x in enumerate(tokens) if x != whole[length + i]), len(tokens)))
            length += accepted[-1] + 1
        found.append(accepted)
    assert sum(map(sum, found)) >= at_least * sum(map(len, found))
    return found


@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(n, marks=pytest.mark.slow) for n in ("qwen3", "qwen3_moe", HYBRID))]
)
def test_acceptance_is_the_references(name: str) -> None:
    """Every pass accepts as many tokens as the reference; with a wrong boundary it does not."""
    models = pair(name)
    expected = expected_outcomes(models.reference.draft, models.states, name=name)
    assert outcomes(head(name), BOUNDARIES, name=name) == expected
    for place in range(3):
        shifted = tuple(b + (i == place) for i, b in enumerate(BOUNDARIES))
        found = outcomes(head(name), shifted, name=name)
        assert found != expected, f"boundary {place} shifted by one goes unnoticed"


@pytest.mark.parametrize("tied", [False, True], ids=["the target's", "its embedding"])
def test_acceptance_without_an_output_layer_of_its_own(tied: bool, tmp_path: Path) -> None:
    """It ends with the target's, or with its own embedding where config.json ties the two."""
    models = pair()
    output = models.model.get_output_embeddings().weight.detach()
    embedding = models.reference.embedding * 1.5 if tied else models.reference.embedding
    made = Reference(embedding, output=embedding if tied else output)
    texts = [models.greedy(prompt, 40) for prompt in models.prompts]
    made.train([(text, models.states(text)) for text in texts], 150)
    folder = made.save(tmp_path / "checkpoint", tie_word_embeddings=tied)
    if tied:
        arrays = {name: array.clone() for name, array in load_file(folder / "model.safetensors").items()}
        save_file({**arrays, "embed_tokens.weight": embedding}, folder / "model.safetensors")
    export_head(open_head(folder, "eagle3"), models.info, tmp_path / "draft", "fp32")
    info = HeadInfo.read(tmp_path / "draft")
    assert (info.own_embedding, info.own_output) == (tied, tied)
    graph = Backends.resolve(tmp_path / "draft", "CPU", F32, boundaries=(1,))
    drafter = load_eagle3(info, models.info, graph, 32)
    assert outcomes(drafter, BOUNDARIES) == expected_outcomes(made.draft, models.states)


def test_states_are_those_of_the_reference() -> None:
    models, runner = pair(), target.__wrapped__("llama", BOUNDARIES)  # a cache without these prompts
    assert BOUNDARIES == (2, 3, 4) and LAYERS == 7
    seen: list[torch.Tensor] = []

    class Watching(RecurrentHead):
        def observe(self, sequence: Any, begin: int, states: Any) -> None:
            seen.append(torch.from_numpy(states.copy()))

    watching = head("llama")
    watching.__class__ = Watching
    try:
        LLMEngine(runner, watching, "dense", 512).generate([Request("a", models.prompts[0], settings_of())])
    finally:
        watching.__class__ = RecurrentHead
    torch.testing.assert_close(seen[0], models.states(models.prompts[0]), atol=2e-4, rtol=1e-4)


@pytest.mark.slow
def test_ir_of_optimum_intel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What optimum-intel exports from the same checkpoint drafts the same; the target lends its embedding."""
    from optimum.exporters.openvino.convert import export_from_model
    from optimum.exporters.openvino.model_patcher import LlamaEagle3ForCausalLM

    models = pair()
    # Its command finds this class through transformers' remote code, which asks for packages of other models.
    model: Any = LlamaEagle3ForCausalLM.from_pretrained(models.folder / "checkpoint")
    monkeypatch.setattr(LlamaEagle3ForCausalLM, "__module__", "transformers")
    export_from_model(model.float(), tmp_path, task="text-generation-with-past", stateful=True)
    graph = Backends.resolve(tmp_path, "CPU", F32, boundaries=(1,))
    drafter = load_eagle3(HeadInfo.read(tmp_path), models.info, graph, 32)
    target_ = target("llama", BOUNDARIES)
    for prompt in models.prompts:
        ours, theirs = (
            answer(LLMEngine(target_, one, "dense", 32), [prompt], settings_of())[1][0].accepted_lengths
            for one in (head("llama"), drafter)
        )
        assert ours == theirs


@pytest.mark.parametrize("shape", [{}, TREE], ids=["chain", "tree"])
def test_entries_of_a_tree_are_those_of_their_paths(shape: dict[str, Any]) -> None:
    """Own states of a node's path, and no sibling's: the likeliest path is the reference's chain."""
    # A head of its own: another test's target gave other states for the same prompt.
    models, drafter = pair(), head("llama", chunk=16)
    engine = LLMEngine(target("llama", BOUNDARIES), drafter, "dense", 32)
    proposed: list[tuple[list[int], list[int]]] = []

    class Watching(RecurrentHead):
        def propose(self, sequences: Any, *asked: Any) -> Any:
            found = super().propose(sequences, *asked)
            proposed.append((list(sequences[0].tokens), first_path(found[0])))
            return found

    drafter.__class__ = Watching
    try:
        answer(engine, [models.prompts[0]], settings_of(**shape, max_new_tokens=20))
    finally:
        drafter.__class__ = RecurrentHead
    assert len(proposed) > 3
    for context, path in proposed:
        assert path == models.reference.draft(context, models.states(context)[:-1], len(path))


def first_path(proposal: Proposal) -> list[int]:
    """The path of the first children, which are the likeliest."""
    if proposal.parents is None:
        return proposal.tokens
    path: list[int] = []
    while (last := path[-1] if path else -1) in proposal.parents:
        path.append(proposal.parents.index(last))
    return [proposal.tokens[node] for node in path]


def test_lookups_before_the_head() -> None:
    models = pair()
    drafter = AutoDrafter(SuffixDrafter(), head("llama"))
    engine = LLMEngine(target("llama", BOUNDARIES), drafter, "dense", 32)
    for prompt, text in zip(models.prompts, plain("llama"), strict=True):
        assert answer(engine, [prompt], settings_of())[0][0] == text


def test_a_pass_of_the_head_that_is_cut_short_loses_no_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during the head's pass: its cache entries are computed again, at the right positions."""
    drafter, prompt = head("llama"), pair().prompts[0]
    drafter.runner.blocks.forget()
    engine = LLMEngine(target("llama", BOUNDARIES), drafter, "dense", 32)
    (text,), (whole,) = answer(engine, [prompt], settings_of())
    drafter.runner.blocks.forget()
    request = Request("one", prompt, settings_of())
    engine.add_request(request)
    while not engine.step():
        pass
    with monkeypatch.context() as patch:
        patch.setattr(drafter.runner, "forward", lambda batch: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    engine.recover()
    while engine.has_unfinished_requests:
        engine.step()
    assert request.metrics.accepted_lengths == whole.accepted_lengths and text

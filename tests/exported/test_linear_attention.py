"""A model with linear attention gives its plain text whatever is drafted, and its states go back."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from commands import ovspec as command
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from openvino_genai import GenerationConfig, SchedulerConfig
from settings import F32
from tiers import by_tier
from tiny_checkpoints import TINY, export_tiny, save_checkpoint

import ovspec
from ovspec.bench.backends import random_context
from ovspec.cache.cache import CachedSequence, CacheTensor
from ovspec.cache.sequence_states import MOST_STATES, SequenceStates
from ovspec.drafters.user import UserDrafter
from ovspec.engine.llm_engine import LLMEngine
from ovspec.engine.requests.request import Request
from ovspec.generation.generation_config import GenerationSettings, resolve, updated
from ovspec.graphs.identity import StockProducts, identity_breakers
from ovspec.graphs.model_check import check_graph
from ovspec.memory.memory_plan import plan_memory
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.passes.tables import Rows
from ovspec.pipeline.prefix_files import load_prefix, save_prefix
from ovspec.proofs.row_invariance import RowProof
from ovspec.runner.model_runner import ModelRunner
from ovspec.runner.recurrent_states import RecurrentStates, kept_every
from ovspec_models import ModelInfo, demo_pair_path, export_model
from ovspec_transforms.graph import ancestors, nodes_of_type

pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")

HYBRIDS = ("Qwen3.5", "Qwen3-Next", "Granite 4 hybrid", "LFM2", "LFM2-MoE")
LENGTHS = (150, 97, 33, 2)
NEW_TOKENS = 40
SAMPLING: dict[str, Any] = {"do_sample": True, "temperature": 0.9, "top_p": 0.95, "rng_seed": 11}
SPARSE = ovspec.SparseVerify(L0=16, rho=0.1)
MODES: dict[str, Any] = {
    "dense": "dense",
    "commit": ovspec.CommitVerify(SPARSE, interval=5),
    "late commit": ovspec.CommitVerify(SPARSE, interval=30),
}


def settings_of(**options: Any) -> GenerationSettings:
    given = {"max_new_tokens": NEW_TOKENS, "num_assistant_tokens": 4, "ignore_eos": True, **options}
    return resolve(updated(GenerationConfig(), given), (), has_draft=True)


class Mistaken:
    """Drafts how texts go on, with a wrong token here and there."""

    def __init__(self, texts: list[list[int]], wrong: float = 0.25) -> None:
        self._texts, self._wrong, self._rng = texts, wrong, np.random.default_rng(8)

    def propose(self, context: list[int], k: int) -> tuple[list[int], None, None]:
        pairs = zip(self._texts, LENGTHS, strict=False)  # the longest first: prompts begin alike
        text = next(text for text, length in pairs if text[:length] == context[:length])
        right = text[len(context) : len(context) + k]
        mistakes = self._rng.random(len(right)) < self._wrong
        return [token + 1 if bad else token for token, bad in zip(right, mistakes, strict=True)], None, None


class Rejected:
    """Drafts of every length up to `longest`, each wrong once at every place, one behind the other."""

    def __init__(self, text: list[int], longest: int) -> None:
        self._text = text
        self.todo = [(length, right) for length in range(1, longest + 1) for right in range(length)]

    def propose(self, context: list[int], k: int) -> tuple[list[int], None, None]:
        if not self.todo or k < self.todo[0][0]:
            return [], None, None
        length, right = self.todo.pop(0)
        draft = self._text[len(context) : len(context) + length]
        draft[right] += 1
        return draft, None, None


@pytest.fixture(scope="module", params=by_tier(HYBRIDS, ["Qwen3.5"]))
def folder(request: pytest.FixtureRequest, exported_family: Callable[[str], Path]) -> Path:
    return exported_family(request.param)


@pytest.fixture(scope="module")
def runner(folder: Path) -> Iterator[ModelRunner]:
    made = ModelRunner(folder, attention=AttentionConfig(selects=True), properties=F32)
    yield made
    assert made.recurrent is not None and made.recurrent.held == 0


def test_the_default_precision_computes(folder: Path, runner: ModelRunner, prompt: NDArray[np.int64]) -> None:
    """On processors with bf16 the states are bf16 too, and with products of ours alone a pass was empty."""
    logits = []
    for model in (runner, ModelRunner(folder)):
        sequence = CachedSequence()
        logits.append(np.array(model.forward([Rows(sequence, prompt[:40], sampled=40)]).logits))
        model.release(sequence)
    exact, got = logits
    assert got.shape == exact.shape and np.linalg.norm(got - exact) < 0.2 * np.linalg.norm(exact)


@pytest.fixture(scope="module")
def plain(runner: ModelRunner, prompt: NDArray[np.int64]) -> Callable[[bool], list[list[int]]]:
    """The prompts, each with what plain decoding answers to it alone."""

    @functools.cache
    def texts(sampled: bool) -> list[list[int]]:
        settings = settings_of(**SAMPLING if sampled else {})
        return [
            [*tokens, *LLMEngine(runner, None).generate([Request("0", tokens, settings)])["0"]]
            for tokens in (prompt[:length].tolist() for length in LENGTHS)
        ]

    return texts


def answers(engine: LLMEngine, texts: list[list[int]], **options: Any) -> list[list[int]]:
    """The prompts of the first texts with their answers, written together."""
    prompts = [text[:length] for text, length in zip(texts, LENGTHS, strict=False)]
    requests = [Request(str(i), tokens, settings_of(**options)) for i, tokens in enumerate(prompts)]
    found = engine.generate(requests)
    return [[*tokens, *found[str(i)]] for i, tokens in enumerate(prompts)]


@pytest.mark.parametrize("together", by_tier([1, 4], [4]))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", by_tier([4, 30], [4]))
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_text_is_that_of_plain_decoding(
    runner: ModelRunner,
    plain: Callable[[bool], list[list[int]]],
    sampled: bool,
    count: int,
    mode: str,
    together: int,
) -> None:
    texts = plain(sampled)[:together]
    drafter = UserDrafter(Mistaken(texts), 4096)
    engine = LLMEngine(runner, drafter, MODES[mode], max_num_batched_tokens=64)
    options = SAMPLING if sampled else {}
    assert answers(engine, texts, num_assistant_tokens=count, **options) == texts


@pytest.mark.parametrize("mode", by_tier(["dense", "commit"], ["dense"]))
def test_drafts_are_rejected_at_every_length(
    runner: ModelRunner, plain: Callable[[bool], list[list[int]]], mode: str
) -> None:
    """Without a prefix cache, as all other tests have one."""
    for text, length in zip(plain(False), LENGTHS, strict=True):
        drafter = Rejected(text, 5)
        engine = LLMEngine(runner, UserDrafter(drafter, 4096), MODES[mode], prefix_cache_bytes=0)
        request = Request("0", text[:length], settings_of(num_assistant_tokens=5))
        assert engine.generate([request])["0"] == text[length:]
        assert drafter.todo == [] or mode == "commit"  # whose last pieces are shorter


def test_a_rollback_of_keys_and_values_alone_is_noticed(
    runner: ModelRunner, plain: Callable[[bool], list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a text goes on behind the state of rejected tokens, it is another."""

    def take_the_last(states: SequenceStates, length: int) -> int:
        last = list(states.slots.values())[-1:]
        states.slots = dict(zip([length], last, strict=False))
        return length

    monkeypatch.setattr(SequenceStates, "cut", take_the_last)
    texts = plain(False)[:1]
    drafter = UserDrafter(Mistaken(texts), 4096)
    assert answers(LLMEngine(runner, drafter), texts) != texts
    monkeypatch.undo()
    assert runner.recurrent is not None
    runner.recurrent = RecurrentStates.of(runner.compiled, runner.request)
    runner._parts = (*runner._parts[:-1], runner.recurrent)


def test_bits_do_not_depend_on_the_pass(folder: Path, prompt: NDArray[np.int64]) -> None:
    experts = ExpertConfig() if ModelInfo.read(folder).num_experts else None
    runner = ModelRunner(folder, properties=F32, experts=experts)
    assert not runner.identity_breakers
    proof = RowProof(runner, prompt)
    for seed in range(12):
        assert proof.difference(seed) is None


def test_a_model_of_this_kind_drafts(folder: Path, prompt: NDArray[np.int64]) -> None:
    """The target drafts for itself, as a draft model, of which all is accepted, and in its own cache."""
    options = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    ids = ov.Tensor(prompt[None])
    alone = ovspec.LLMPipeline(folder, "CPU", drafter="none", **F32).generate(ids, **options).tokens
    ways: tuple[dict[str, Any], ...] = (
        {"draft_model": ovspec.draft_model(folder), "drafter": "assistant"},
        {"drafter": ovspec.drafters.SparseSelf(SPARSE)},
    )
    for number, way in enumerate(ways):
        pipe = ovspec.LLMPipeline(folder, "CPU", **way, **F32)
        result = pipe.generate(ids, **options, num_assistant_tokens=4)
        assert result.tokens == alone
        assert number == 1 or result.perf_metrics.get_mean_acceptance_length() > 4.5
        assert pipe.runner.recurrent.held == 0


def test_a_preempted_request_is_read_again(
    runner: ModelRunner, plain: Callable[[bool], list[list[int]]]
) -> None:
    text, length = plain(False)[2], LENGTHS[2]
    drafter = UserDrafter(Mistaken(plain(False)), 4096)
    # Four prompts take two blocks each, and their answers a third.
    engine = LLMEngine(runner, drafter, cache_bytes=9 * runner.cache.block_bytes)
    requests = [Request(str(i), text[:length], settings_of()) for i in range(4)]
    try:
        assert list(engine.generate(requests).values()) == [text[length:]] * 4
        assert engine.num_preemptions > 0
    finally:
        runner.limit_cache(None, 0)


def test_nothing_is_shared(folder: Path, prompt: NDArray[np.int64]) -> None:
    """Keys and values of a beginning are there, the state behind it is not."""
    texts, scheduler = [], SchedulerConfig()
    for scheduler.enable_prefix_caching in (True, False):
        pipe = ovspec.LLMPipeline(folder, "CPU", scheduler_config=scheduler, **F32)
        texts += [pipe.generate(ov.Tensor(prompt[None]), max_new_tokens=5).tokens for _ in range(2)]
        assert pipe.engine.engine.target.blocks.hits == 0
    assert texts == 4 * texts[:1]


def test_slots(runner: ModelRunner, prompt: NDArray[np.int64]) -> None:
    """A pass writes one per row that may be rejected, and a failed one gives them back."""
    assert runner.recurrent is not None
    sequence = CachedSequence()

    def held(rows: int, sampled: int) -> int:
        runner.forward([Rows(sequence, prompt[sequence.length :][:rows], sampled)])
        assert runner.recurrent is not None
        return runner.recurrent.held

    assert [held(40, 0), held(6, 1), held(6, 5), held(1, 1)] == [1, 2, 7, 2]
    sequence.keep_state(sequence.length)
    assert [held(5, 5), held(5, 5), held(1, 1)] == [6, 7, 3]  # what it read, what it wrote, what it keeps
    sequence.keep_states(sequence.length)
    assert [held(1, 1) for _ in range(3)] == [3, 4, 5]
    batch = [Rows(sequence, prompt[:3], 3)]
    for _ in range(3):  # as if each had failed
        runner.recurrent.inputs(batch)
        assert runner.recurrent.held <= 5 + 3
    sequence.rollback(sequence.length - 1)
    assert sequence.length == 66
    runner.release(sequence)
    runner.recurrent.inputs([])
    assert runner.recurrent.held == 0


def test_a_long_draft_holds_no_more_states_than_a_pass(
    runner: ModelRunner, prompt: NDArray[np.int64]
) -> None:
    assert runner.recurrent is not None
    sequence = CachedSequence()
    runner.forward([Rows(sequence, prompt[:5], 1)])
    sequence.keep_states(sequence.length)
    for token in prompt[5:65]:
        logits = runner.forward([Rows(sequence, np.array([token]), 1)]).logits
        assert runner.recurrent.held <= MOST_STATES + 2
    last = np.array(logits)
    sequence.rollback(30)
    assert 22 <= sequence.length <= 30
    again = runner.forward([Rows(sequence, prompt[sequence.length : 65], 1)]).logits
    assert np.array_equal(again, last)
    sequence.rollback(5)
    assert sequence.length == 5
    runner.release(sequence)


@given(rows=st.integers(1, 700), data=st.data())
def test_how_often_a_pass_keeps_a_state(rows: int, data: st.DataObject) -> None:
    sampled = data.draw(st.integers(0, rows))
    every = kept_every(rows, sampled)
    assert 1 <= every <= rows and -(-rows // every) <= MOST_STATES
    assert every == 1 or sampled <= 1 or rows > MOST_STATES


def test_a_rollback_goes_to_a_state_that_is_held(runner: ModelRunner, prompt: NDArray[np.int64]) -> None:
    sequence = CachedSequence()
    runner.forward([Rows(sequence, prompt[:60], 60)])
    sequence.rollback(41)
    assert sequence.length == 40
    sequence.rollback(2)
    assert sequence.length == 0
    with pytest.raises(ValueError, match="rollback to 5: expected 0 to 0"):
        sequence.rollback(5)
    sequence.length = 20
    with pytest.raises(ValueError, match="no state of linear attention behind 20 tokens"):
        runner.forward([Rows(sequence, prompt[:4])])
    runner.release(sequence)


def test_its_bytes_are_planned_and_told(folder: Path, runner: ModelRunner) -> None:
    info = ModelInfo.read(folder)
    assert runner.recurrent is not None and 4 * info.state_values == runner.recurrent.slot_bytes
    plan = plan_memory(info, 64, properties=F32)
    keys = plan.target.cache - (MOST_STATES + 2) * runner.recurrent.slot_bytes
    assert keys == 3 * 32 * info.kv_cache_bytes_per_token("f32")
    told = command("info", str(folder)).stdout
    assert "linear_attention_state_bytes_f32" in told and " keep a state" in told


REFUSALS: dict[str, Callable[[Callable[..., ovspec.LLMPipeline], Path], object]] = {
    "tree_depth=2: the target can't verify trees: its layers of linear attention": lambda make, path: make(
        draft_model=ovspec.draft_model(demo_pair_path() / "draft")
    ).generate("Once", max_new_tokens=3, num_assistant_tokens=4, tree_depth=2, branching_factor=2),
    "prefill='sparse': 1 layers of the model have linear attention": lambda make, path: make(
        prefill="sparse"
    ),
    "drafter='layer_skip': 1 layers of the model have linear attention": lambda make, path: make(
        drafter="layer_skip"
    ),
    "this model's layers of linear attention have none; leave it out": lambda make, path: save_prefix(
        make(), path, "Once upon a time", False
    ),
    "a prefix cache holds keys and values": lambda make, path: load_prefix(make(), path),
    "the bench fills keys and values with random numbers": lambda make, path: random_context(
        make().runner, 64, np.random.default_rng(0)
    ),
    "device='GPU': 1 layers of the model have linear attention": lambda make, path: check_graph(
        ModelInfo.read(make().models_path), [], "GPU", AttentionConfig("stock")
    ),
}


@pytest.mark.parametrize("said", REFUSALS)
def test_refusals(said: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        REFUSALS[said](functools.partial(ovspec.LLMPipeline, folder, "CPU", **F32), tmp_path / "prefix")
    assert "\n" not in str(caught.value) and not (tmp_path / "prefix").exists()


def test_precisions_that_round_states_break_the_promise(runner: ModelRunner) -> None:
    state = CacheTensor("gated_delta_state_table.0", ov.Type.bf16, (4, 16, 16))
    (said,) = identity_breakers(runner.backends, StockProducts(), (state,), runner.block_size)
    assert "bf16" in said and "INFERENCE_PRECISION_HINT=f32" in said


@pytest.mark.slow
def test_compressed_weights_leave_the_rotary_frequencies(tmp_path: Path) -> None:
    """NNCF takes their product with positions for a linear layer."""
    folder = export_tiny("Qwen3.5", tmp_path, "int4", group_size=32)
    model = ov.Core().read_model(folder / "openvino_model.xml")
    constants = [
        node.get_output_element_type(0)
        for cosine in nodes_of_type(model, "Cos")
        for node in ancestors(cosine, ends=("ShapeOf",))
        if node.get_type_name() == "Constant"
    ]
    assert ov.Type.f32 in constants and not {ov.Type.u4, ov.Type.u8, ov.Type.i4, ov.Type.i8} & set(constants)


@pytest.mark.slow
def test_text_part_of_a_checkpoint_with_images(tmp_path: Path, prompt: NDArray[np.int64]) -> None:
    """As Qwen3.5 is published: text model, vision model and MTP module in one."""
    torch = pytest.importorskip("torch")
    import transformers
    from safetensors.torch import load_file, save_file

    torch.manual_seed(4)
    seen = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
    whole = transformers.Qwen3_5ForConditionalGeneration(
        transformers.Qwen3_5Config(
            text_config=TINY["Qwen3.5"].sizes,
            vision_config={**seen, "num_position_embeddings": 16},
            tie_word_embeddings=False,
        )
    ).eval()
    checkpoint = save_checkpoint(whole, tmp_path / "checkpoint")
    weights = load_file(checkpoint / "model.safetensors")
    save_file({**weights, "mtp.norm.weight": torch.zeros(64)}, checkpoint / "model.safetensors")
    runner = ModelRunner(export_model(checkpoint, tmp_path / "ir", weight_format="fp32"), properties=F32)
    sequence = CachedSequence()
    got = np.array(runner.forward([Rows(sequence, prompt, sampled=len(prompt))]).logits)
    with torch.no_grad():
        expected = whole(torch.tensor(prompt[None])).logits[0].numpy()
    assert np.abs(got - expected).max() < 2e-4 * expected.std()
    runner.release(sequence)

"""The calls that `openvino_genai.LLMPipeline` takes and refuses are those that ours takes and refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai
import pytest
from openvino_genai import ChatHistory, GenerationConfig, GenerationFinishReason, SchedulerConfig
from prompts import PROMPTS
from settings import F32

import ovspec

Make = Callable[..., ovspec.LLMPipeline]
PROMPT = PROMPTS[0]
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
EIGHT = {"max_new_tokens": 8}


@pytest.fixture(scope="module")
def ours(make_pipeline: Make) -> ovspec.LLMPipeline:
    return make_pipeline(draft=True)


def ids(pipeline: Any) -> Any:
    return np.array(pipeline.get_tokenizer().encode(PROMPT).input_ids.data)


def with_config(pipeline: Any) -> Any:
    config = pipeline.get_generation_config()
    before = config.max_new_tokens
    config.max_new_tokens = 4
    pipeline.set_generation_config(config)
    text = pipeline.generate(PROMPT)
    config.max_new_tokens = before
    pipeline.set_generation_config(config)
    return text


TAKEN: dict[str, Callable[[Any], Any]] = {
    "text": lambda p: p.generate(PROMPT, **EIGHT),
    "call": lambda p: p(PROMPT, **EIGHT),
    "by name": lambda p: p.generate(
        inputs=PROMPT, generation_config=GenerationConfig(**EIGHT), streamer=None
    ),
    "by position": lambda p: p.generate(PROMPT, GenerationConfig(**EIGHT), lambda piece: False),
    "keywords before the configuration": lambda p: p.generate(
        PROMPT, GenerationConfig(**EIGHT), max_new_tokens=3
    ),
    "configuration of the pipeline": with_config,
    "list": lambda p: p.generate([PROMPT], **EIGHT),
    "tuple": lambda p: p.generate((PROMPT, PROMPTS[1]), **EIGHT),
    "tokenized": lambda p: p.generate(p.get_tokenizer().encode(PROMPT), **EIGHT),
    "tokenized list": lambda p: p.generate(p.get_tokenizer().encode([PROMPT, PROMPTS[4]]), **EIGHT),
    "tensor": lambda p: p.generate(ov.Tensor(ids(p)), **EIGHT),
    "one stop string": lambda p: p.generate(PROMPT, max_new_tokens=30, stop_strings=" loved to"),
}


def described(result: Any) -> Any:
    """Type and contents of what `generate` returns."""
    if isinstance(result, str):
        return result
    names = ("texts", "tokens", "scores", "finish_reasons", "parsed", "extended_perf_metrics")
    fields = {name: getattr(result, name) for name in names if hasattr(result, name)}
    if "tokens" in fields:
        fields["tokens"] = [list(row) for row in fields["tokens"]]
    metrics = result.perf_metrics
    # openvino_genai counts the tokens of one of several prompts.
    prompts = [metrics.get_num_input_tokens()] if len(result.scores) == 1 else []
    counts = metrics.get_num_generated_tokens(), *prompts
    return (
        type(result).__name__,
        type(metrics).__name__,
        fields,
        counts,
        str(result) if "texts" in fields else None,
    )


@pytest.mark.parametrize("name", TAKEN)
def test_taken(make_pipeline: Make, genai: openvino_genai.LLMPipeline, name: str) -> None:
    plain = make_pipeline()
    assert described(TAKEN[name](plain)) == described(TAKEN[name](genai))


@pytest.mark.parametrize("name", TAKEN)
def test_taken_with_a_draft(ours: ovspec.LLMPipeline, make_pipeline: Make, name: str) -> None:
    drafted, plain = TAKEN[name](ours), TAKEN[name](make_pipeline())
    for name in ("texts", "tokens"):
        assert getattr(drafted, name, None) == getattr(plain, name, None)
    assert str(drafted) == str(plain) or not isinstance(drafted, str)


# Called where openvino_genai refuses; its types are RuntimeError or TypeError.
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "number": (lambda p: p.generate(5), "got int"),
    "nothing": (lambda p: p.generate(None), "got NoneType"),
    "array": (lambda p: p.generate(ids(p)), "got ndarray"),
    "numbers": (lambda p: p.generate([1, 2]), "got int"),
    "histories": (lambda p: p.generate([ChatHistory()]), "got ChatHistory"),
    "no tokens": (lambda p: p.generate("", **EIGHT), "has no tokens"),
    "dict as configuration": (lambda p: p.generate(PROMPT, {"max_new_tokens": 3}), "got dict"),
    "text for a number": (lambda p: p.generate(PROMPT, max_new_tokens="a"), "max_new_tokens='a'"),
    "no new tokens": (lambda p: p.generate(PROMPT, max_new_tokens=0), "max_new_tokens"),
    "temperature": (lambda p: p.generate(PROMPT, do_sample=True, temperature=0.0), "temperature"),
    "top_p": (lambda p: p.generate(PROMPT, do_sample=True, top_p=2.0), "top_p"),
    "answers without sampling": (
        lambda p: p.generate(PROMPT, num_return_sequences=2, **EIGHT),
        "num_return_sequences",
    ),
    "number as streamer": (lambda p: p.generate(PROMPT, streamer=3), "streamer=int"),
    "streamer for two": (lambda p: p.generate([PROMPT, PROMPT], streamer=print, **EIGHT), "streamer: 2"),
    "empty history": (lambda p: p.generate(ChatHistory(), **EIGHT), "ChatHistory is empty"),
    "history without template": (
        lambda p: p.generate(ChatHistory([{"role": "user", "content": "Hi"}]), **EIGHT),
        "chat template",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_same_kind_of_error(
    ours: ovspec.LLMPipeline, genai: openvino_genai.LLMPipeline, name: str
) -> None:
    call, part = REFUSED[name]
    with pytest.raises((RuntimeError, TypeError)) as theirs:
        call(genai)
    with pytest.raises(type(theirs.value)) as mine:
        call(ours)
    assert isinstance(mine.value, ValueError)
    assert part in str(mine.value) and "\n" not in str(mine.value)


def conversation(pipeline: Any) -> list[str]:
    tokenizer = pipeline.get_tokenizer()
    tokenizer.set_chat_template(TEMPLATE)
    try:
        pipeline.start_chat("Be kind.")
        said = [pipeline.generate(text, **EIGHT) for text in ("Hello there", "And then?")]
        said += pipeline.generate(["In a list"], **EIGHT).texts
        with pytest.raises(RuntimeError):
            pipeline.generate(["Two", "at once"], **EIGHT)
        said.append(pipeline.generate("And after that?", **EIGHT))
        pipeline.finish_chat()
        history = ChatHistory([{"role": "user", "content": "Hello"}])
        said += [str(pipeline.generate(history, **EIGHT)), str(len(history))]
        history.append({"role": "assistant", "content": said[-2]})
        history.append({"role": "user", "content": "Why?"})
        said.append(str(pipeline.generate(history, **EIGHT)))
        sampled = {"do_sample": True, "num_return_sequences": 3, "top_k": 1}
        said += pipeline.generate(history, **EIGHT, **sampled).texts
        said += [pipeline.generate("Hello", apply_chat_template=value, **EIGHT) for value in (True, False)]
        assert said[-1] != said[-2]
        return said
    finally:
        tokenizer.set_chat_template("")


def test_chats(ours: ovspec.LLMPipeline, genai: openvino_genai.LLMPipeline) -> None:
    assert conversation(ours) == conversation(genai)
    for pipeline in (ours, genai):
        pipeline.finish_chat()  # without a chat it does nothing


def test_tokenizer(ours: ovspec.LLMPipeline, genai: openvino_genai.LLMPipeline) -> None:
    mine, theirs = ours.get_tokenizer(), genai.get_tokenizer()
    assert type(mine) is type(theirs)
    # openvino_genai can't turn a vocabulary with parts of characters into text (`get_vocab_vector`).
    for name in [name for name in dir(theirs) if name.startswith("get_") and name != "get_vocab_vector"]:
        assert getattr(mine, name)() == getattr(theirs, name)(), name
    assert mine.decode(ids(ours)[0].tolist()) == theirs.decode(ids(genai)[0].tolist()) == PROMPT


class TestConstructor:
    def test_forms(self, demo_ir: Path, genai: openvino_genai.LLMPipeline) -> None:
        tokenizer = openvino_genai.Tokenizer(demo_ir)
        expected = genai.generate(PROMPT, **EIGHT)
        forms: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            ((tokenizer, "CPU", F32), {}),
            (("CPU", F32), {}),
            ((tokenizer,), {"device": "CPU", **F32}),
            ((), {"tokenizer": tokenizer, "device": "CPU", "config": F32}),
        ]
        for arguments, named in forms:
            pipeline = ovspec.LLMPipeline(demo_ir, *arguments, **named)
            assert pipeline.generate(PROMPT, **EIGHT) == expected
            assert (pipeline.get_tokenizer() is tokenizer) == ("tokenizer" in named or tokenizer in arguments)
            if not named:
                theirs = openvino_genai.LLMPipeline(demo_ir, *arguments)
                assert theirs.generate(PROMPT, **EIGHT) == expected

    def test_prompt_lookup(self, demo_ir: Path) -> None:
        assert ovspec.LLMPipeline(demo_ir, "CPU", prompt_lookup=True, **F32).drafts
        assert not ovspec.LLMPipeline(demo_ir, "CPU", drafter="none", prompt_lookup=False, **F32).drafts
        with pytest.raises(TypeError, match="prompt_lookup='false': expected True or False"):
            ovspec.LLMPipeline(demo_ir, "CPU", prompt_lookup="false")
        with pytest.raises(ValueError, match="prompt_lookup=True and drafter='suffix': leave one"):
            ovspec.LLMPipeline(demo_ir, "CPU", prompt_lookup=True, drafter="suffix")

    def test_scheduler_config(self, demo_ir: Path) -> None:
        config = SchedulerConfig()
        config.cache_size, config.max_num_batched_tokens = 1, 16
        pipeline = ovspec.LLMPipeline(demo_ir, "CPU", scheduler_config=config, **F32)
        assert pipeline.runner.cache.max_bytes == 2**30
        pipeline.generate(PROMPT * 3, **EIGHT)
        pipeline.runner.limit_cache(4 * pipeline.runner.cache.block_bytes, 0)
        with pytest.raises(
            RuntimeError, match=r"cache_size .* allows no more; shorten the prompt, or raise it"
        ) as caught:
            pipeline.generate(PROMPT * 200, **EIGHT)
        assert "\n" not in str(caught.value)
        whole = pipeline.generate([PROMPT], max_new_tokens=200, ignore_eos=True)
        assert whole.finish_reasons == [GenerationFinishReason.LENGTH]
        metrics = whole.perf_metrics
        full = 4 * pipeline.runner.block_size
        assert metrics.get_num_input_tokens() + metrics.get_num_generated_tokens() == full
        assert pipeline.generate(PROMPT, **EIGHT)

    @pytest.mark.parametrize("name", ["use_cache_eviction", "use_sparse_attention", "num_kv_blocks"])
    def test_other_scheduler_settings_are_refused(self, demo_ir: Path, name: str) -> None:
        config = SchedulerConfig()
        setattr(config, name, 5 if name == "num_kv_blocks" else True)
        with pytest.raises(RuntimeError, match=rf"scheduler_config\.{name}="):
            ovspec.LLMPipeline(demo_ir, "CPU", scheduler_config=config)

    @pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens"])
    def test_a_scheduler_that_runs_nothing_is_refused(self, demo_ir: Path, name: str) -> None:
        config = SchedulerConfig()
        setattr(config, name, 0)
        with pytest.raises(ValueError, match=f"{name}=0: expected .*at least 1"):
            ovspec.LLMPipeline(demo_ir, "CPU", scheduler_config=config)

    def test_what_has_no_place_is_refused(self, demo_ir: Path) -> None:
        weights = ov.Tensor(np.zeros(4, np.uint8))
        for arguments, part in (
            (("CPU", {}, 3), "3 has no place"),
            ((weights, "CPU"), "save it to a folder"),
            ((3,), "3 has no place"),
        ):
            with pytest.raises(TypeError, match=part) as caught:
                ovspec.LLMPipeline(demo_ir, *arguments)
            assert "\n" not in str(caught.value)
        with pytest.raises(TypeError, match="device is given twice"):
            ovspec.LLMPipeline(demo_ir, "CPU", device="CPU")
        with pytest.raises(TypeError, match="scheduler_config: expected"):
            ovspec.LLMPipeline(demo_ir, "CPU", scheduler_config={})

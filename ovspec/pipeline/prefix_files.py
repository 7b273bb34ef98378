"""Files with what prompts begin with: read once, kept for later starts."""

from __future__ import annotations

from pathlib import Path

from openvino_genai import ChatHistory

from ovspec.engine.requests.request import Request
from ovspec.errors import refuses_as_genai
from ovspec.generation.inputs import check_texts, tokenized
from ovspec.pipeline.loaded_pipeline import LoadedPipeline
from ovspec.runner.cache_file import load_prefix as load
from ovspec.runner.cache_file import save_prefix as save


@refuses_as_genai
def save_prefix(pipeline: LoadedPipeline, path: Path, text: str, is_system_message: bool) -> int:
    """Read a text, and write its keys and values to a file.

    Args:
        pipeline: reads it; nothing else may run.
        is_system_message: whether it is that of chats: what all of them begin with is read.

    Returns:
        Tokens that the file holds, whole blocks of them.

    Raises:
        ValueError: the text is shorter than a block, or the model has no chat template.
    """
    check_texts([text])
    prompts = pipeline.chat_prompts
    if is_system_message:
        first, second = (prompts.tokenized(prompts.templated(_chat(text, word))) for word in ("a", "Why?"))
        same = next((i for i, pair in enumerate(zip(first, second, strict=False)) if len(set(pair)) > 1), 0)
        tokens = first[:same]
    else:
        tokens = tokenized(pipeline.get_tokenizer(), text, special_tokens=True)
    settings = pipeline.settings(max_new_tokens=1, do_sample=False)
    with pipeline.alone("save_prefix"):
        if tokens:
            handle = pipeline.engine.run([Request("prefix", [*tokens, tokens[-1]], settings)])
            try:
                for _ in handle:
                    pass
            finally:
                handle.abort()
        runner = pipeline.runner
        return save(path, pipeline.models_path, runner, tokens, runner.adapters.load(settings.adapters))


@refuses_as_genai
def load_prefix(pipeline: LoadedPipeline, path: Path) -> int:
    """Let prompts begin with what a file of `save_prefix` holds; how many tokens that are.

    Raises:
        ValueError: a file that is damaged, or was made with another model, setting or version.
    """
    with pipeline.alone("load_prefix"):
        adapters = pipeline.runner.adapters.load(pipeline.settings().adapters)
        return load(path, pipeline.models_path, pipeline.runner, adapters)


def _chat(system: str, message: str) -> ChatHistory:
    return ChatHistory([{"role": "system", "content": system}, {"role": "user", "content": message}])

"""The documented interface of `openvino_genai`'s pipelines, and how ovspec differs from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino_genai

# Every field of GenerationConfig. A served one has options that change the text of one of the prompts; it is
# compared with that of openvino_genai in greedy decoding.
SAMPLING = {
    "do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "rng_seed": 7,
    "num_return_sequences": 2, "no_repeat_ngram_size": 1,
}  # fmt: skip
SERVED: dict[str, dict[str, Any]] = {
    "max_new_tokens": {"max_new_tokens": 3},
    "max_length": {"max_length": 24},
    "min_new_tokens": {"max_new_tokens": 60, "min_new_tokens": 58},
    "ignore_eos": {"max_new_tokens": 60, "ignore_eos": True},
    "eos_token_id": {"max_new_tokens": 40, "eos_token_id": 15},
    "stop_token_ids": {"max_new_tokens": 40, "stop_token_ids": {15}},
    "stop_strings": {"max_new_tokens": 40, "stop_strings": {" play"}},
    "include_stop_str_in_output": {
        "max_new_tokens": 40, "stop_strings": {" play"}, "include_stop_str_in_output": True
    },
    "repetition_penalty": {"max_new_tokens": 30, "repetition_penalty": 1.3},
    "presence_penalty": {"max_new_tokens": 30, "presence_penalty": 1.5},
    "frequency_penalty": {"max_new_tokens": 30, "frequency_penalty": 0.7},
    "echo": {"max_new_tokens": 10, "echo": True},
    "structured_output_config": {
        "max_new_tokens": 30,
        "structured_output_config": openvino_genai.StructuredOutputConfig(regex="(a|b)[0-9]{4}"),
    },
}  # fmt: skip
# Draft and template fields have tests of their own.
DRAFTING = (
    *("num_assistant_tokens", "assistant_confidence_threshold", "max_ngram_size"),
    *("branching_factor", "tree_depth"),
)
TEMPLATE = ("apply_chat_template",)
# It changes `scores`, and no text.
SCORES = ("logprobs",)
# Adapters are objects of ovspec's (tests/adapters).
ADAPTERS = ("adapters",)
# They make `parsed` of a text, and change none.
PARSERS = ("parsers",)
# test_beams.py compares what is found with them.
BEAMS = ("num_beams", "num_beam_groups", "diversity_penalty", "length_penalty", "stop_criteria")
REFUSED: dict[str, Any] = {
    "pruning_ratio": 10, "relevance_weight": 0.7,
    "return_omni_outputs": True,
}  # fmt: skip

_TAKEN = (*SERVED, *SAMPLING, *BEAMS, *DRAFTING, *TEMPLATE, *SCORES, *ADAPTERS, *PARSERS)

# Part of the surface, what is the same, and where ovspec differs on purpose.
TABLE: dict[str, tuple[str, str]] = {
    "`LLMPipeline(...)`": (
        "path, `[tokenizer,] device, config`, properties; `draft_model`, `prompt_lookup`; `cache_size`, "
        "`max_num_batched_tokens`, `max_num_seqs`, `enable_prefix_caching` and `dynamic_split_fuse` of a "
        "`SchedulerConfig`",
        "draft models come from `ovspec.draft_model`; `ATTENTION_BACKEND` `SDPA` runs as `PA`, with a "
        "warning; refused: a model as text and tensor, other scheduler settings, `extensions` other than "
        "ovspec's, `enable_save_ov_model`",
    ),
    "`generate`, `__call__`": (
        "text, texts, `ChatHistory`, `TokenizedInputs`, tensor of ids; configuration, "
        "keywords; the same result types",
        "unknown keywords, also of a `GenerationConfig`, and values that do not fit are refused, not "
        "ignored; with AMX compressed weights "
        'are multiplied more exactly (`linear="stock"`: as there)',
    ),
    "`GenerationConfig`": (
        ", ".join(f"`{name}`" for name in _TAKEN),
        "refused by name: " + ", ".join(f"`{name}`" for name in REFUSED),
    ),
    "LoRA adapters": (
        "`Adapter`, `AdapterConfig`, `LLMPipeline(..., adapters=...)`, `generate(..., adapters=...)`; "
        "MODE_AUTO, MODE_DYNAMIC, MODE_STATIC_RANK, MODE_STATIC",
        "both classes are ovspec's; adapters of a call are [of this call alone](models.md#lora-adapters), "
        "there of all that follow; lora_alpha / r of `adapter_config.json`, or kohya's `alpha`, is a factor "
        "beside the given alpha, there it is ignored; refused: MODE_FUSE, layers that the model lacks, "
        "tensors that are no LoRA matrices",
    ),
    "structured output": (
        "JSON schema, regex, EBNF, structural tags, compound grammars; objects have no properties that a "
        "schema does not name",
        "by llguidance, with drafts and without; JSON has one space behind a comma and a colon; an answer "
        "ends with its grammar, without an end-of-sequence token; left recursion, "
        "`min_new_tokens`, `ignore_eos` and `no_repeat_ngram_size` are refused beside it",
    ),
    "penalties": (
        "`presence_penalty` and `frequency_penalty` are taken from the magnitude of a logit: a negative "
        "one rises",
        "the [server](server.md#requests) and `ovspec batch` subtract them, as OpenAI does",
    ),
    "n-grams": (
        "with `no_repeat_ngram_size` no n-gram of this size comes twice in prompt and answer",
        "in greedy decoding and sampling too; there in beam search only",
    ),
    "beams": (
        "beam search, in groups too: tokens, scores, reasons; without a streamer, drafts, penalties or "
        "`do_sample`; `num_assistant_tokens` beside it is refused",
        "a pipeline with a drafter searches too, and drafts nothing; `ignore_eos`, `min_new_tokens` and "
        "`max_new_tokens` hold, there the first two do not; `structured_output_config` is refused, there "
        "ignored; what is for beams is refused with `num_beams=1`, there ignored; a stop string cuts its own "
        "beam only",
    ),
    "stop tokens": (
        "`stop_token_ids` replace all end-of-sequence ids but the main one; with `ignore_eos` nothing stops",
        "the [server](server.md#requests) adds them to the end-of-sequence ids, and stops at them with "
        "`ignore_eos` too, as vLLM does; ids that the model does not have are refused",
    ),
    "streamers": (
        "callable, `StreamerBase`, `TextStreamer`, `TextParserStreamer`; the answer is `None`, `bool`, `int` "
        "or `StreamingStatus`, and the finish reason `STOP`, `TOOL_CALL`, or of a cancelled answer `NONE`",
        "the text ends with the piece that was answered by a stop; an exception ends the call and is raised",
    ),
    "chat": (
        "`start_chat`, `finish_chat`, system message, history, `set_chat_template`; turns in tokens, as with "
        "`ATTENTION_BACKEND` `SDPA` there",
        "one answer per turn; a chat goes on as it began, in text or in tokens",
    ),
    "special tokens in messages": (
        "written into a prompt without the chat template they become control tokens",
        "in messages, and in a prompt that goes through the chat template, the name of a special token such "
        "as `<|im_end|>` stays text, so that nobody ends a message in another's name; `LLMPipeline(..., "
        "special_tokens_in_content=True)`: control tokens, as there. `ovspec info DIR` says whether the "
        "tokenizer can",
    ),
    "results": (
        "all fields, `str()`; `parsed` is made by parsers of a `TextParserStreamer`, and of a configuration",
        "`DecodedResults` can be iterated, and is an instance of GenAI's; `EncodedResults` is not, as "
        "GenAI's has no constructor; `max_new_tokens=0` "
        "ends with `LENGTH`, there with `NONE`",
    ),
    "`perf_metrics`": (
        "all getters, raw series, `+` and `+=`; `extended_perf_metrics` after drafts, all getters, those of "
        "each model too",
        "input tokens of all prompts are counted; `main_model_metrics` and `draft_model_metrics` count whole "
        "drafting rounds; the compiler of grammars is called `llguidance`, there `xgrammar`",
    ),
    "errors": (
        "what raises a `RuntimeError` or `TypeError` there raises a subclass of it here",
        "one line; also a `ValueError`",
    ),
    "stop strings": (
        "the same texts stop the output",
        "the text ends exactly where the stop string begins; OpenVINO GenAI drops the whole token that "
        "contains it. As in OpenVINO GenAI, a stop string that is kept ends with its token, and none waits "
        "for `min_new_tokens`",
    ),
}

_SOUND = "no model that ovspec serves speaks"
#: Arguments of `openvino_genai.VLMPipeline.generate` that are refused by name: a value, and why.
VLM_ARGUMENTS: dict[str, tuple[Any, str]] = {
    "videos": ([np.zeros((2, 8, 8, 3), np.uint8)], "only pictures are read"),
    "audios": ([np.zeros(8, np.float32)], "only pictures are read"),
    "videos_metadata": ([openvino_genai.VideoMetadata()], "only pictures are read"),
    "audio_streamer": (lambda chunk: None, _SOUND),
    "audio_chunk_frames": (4, _SOUND),
    **{
        name: (value, _SOUND if "omni" in name else "no visual token is left out")
        for name, value in REFUSED.items()
    },
}
#: Public names of its results and their metrics that ovspec's have not, and why.
VLM_MISSING = {
    "full_token_ids": _SOUND,
    "intermediate_hidden_states": _SOUND,
    "get_audio_encoding_duration": _SOUND,
    "get_text_embedding_duration": "the text embedding is a part of the language model's graph",
    "get_total_image_slice_count": "no family that is served cuts pictures into slices",
    "get_vision_encoding_duration": "get_prepare_embeddings_duration is the time of reading pictures",
    "vlm_raw_metrics": "raw_metrics has prepare_embeddings_durations",
}


def vlm_gaps() -> str:
    """The gaps as docs/pictures.md names them, reason by reason."""
    reasons: dict[str, list[str]] = {}
    for name, why in {**{name: why for name, (_, why) in VLM_ARGUMENTS.items()}, **VLM_MISSING}.items():
        reasons.setdefault(why, []).append(f"`{name}`")
    return "\n".join(f"| {', '.join(names)} | {why} |" for why, names in reasons.items())


def table() -> str:
    """The table as the page has it."""
    lines = ["| | as in OpenVINO GenAI | differs |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {part} | {same} | {other} |" for part, (same, other) in TABLE.items())])

"""A pipeline as a model of lm-evaluation-harness."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import lm_eval.models  # noqa: F401  # imported only while the registry is empty, so before ours
import numpy as np
import openvino as ov
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from openvino_genai import ChatHistory, TokenizedInputs
from rich.progress import track

from ovspec.eval.scoring import Scorer
from ovspec.generation.inputs import templated, tokenized
from ovspec.modes.verify_mode import why_lossy
from ovspec.pipeline.pipeline import LLMPipeline

_LOG = logging.getLogger(__name__)
_NAME = "ovspec"
_DEFAULT_BATCH = 16


class OvspecLM(TemplateLM):
    """The model of the harness; it makes `batch_size` answers at the same time."""

    def __init__(self, pipeline: LLMPipeline, name: str, batch_size: int = _DEFAULT_BATCH) -> None:
        super().__init__()
        self._pipeline, self._name, self._batch_size = pipeline, name, batch_size
        self._tokenizer = pipeline.get_tokenizer()
        self._scorer = Scorer(pipeline)
        self.max_length = pipeline.engine.engine.max_model_len

    def get_model_info(self) -> dict[str, Any]:
        """What the harness writes into `config` of its file of results."""
        return setting_of(self._pipeline)

    @property
    def eot_token_id(self) -> int:
        """The end-of-sequence token."""
        return int(self._tokenizer.get_eos_token_id())

    @property
    def prefix_token_id(self) -> int:
        """The token that precedes the first token of a text."""
        first = int(self._tokenizer.get_bos_token_id())
        return first if first >= 0 else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        """Name in the keys of the harness's caches of requests."""
        return self._name

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The model's template, if it is to be used."""
        return str(self._tokenizer.chat_template) if chat_template else None

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The text of a chat."""
        if not add_generation_prompt:
            raise ValueError(
                "add_generation_prompt=False is not supported: leave the assistant's prefill out"
            )
        return templated(self._tokenizer, ChatHistory(chat_history))

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids of a text; the first token of texts comes once, also where a chat template wrote it."""
        plain = tokenized(self._tokenizer, string, special_tokens=False)
        if add_special_tokens is False or plain[:1] == [self._tokenizer.get_bos_token_id()]:
            return plain
        return tokenized(self._tokenizer, string, special_tokens=True)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        results = []
        for names, context, continuation in _progress(requests, "log-likelihood", disable_tqdm):
            room = self.max_length - len(continuation)
            if room < 1:
                raise ValueError(
                    f"a continuation has {len(continuation)} tokens, the model {self.max_length} positions; "
                    "choose a task with shorter ones"
                )
            if len(context) > room:
                _LOG.warning("a context of %d tokens is cut to its last %d", len(context), room)
            results.append(self._scorer.score(context[-room:], continuation))
            if names is not None:
                self.cache_hook.add_partial("loglikelihood", names, results[-1])
        return results

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of whole texts, in windows of the model's positions."""
        results = []
        for request in _progress(requests, "rolling log-likelihood", disable_tqdm):
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            windows = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length - 1, 1)
            scored = [self._scorer.score(*make_disjoint_window(window))[0] for window in windows]
            results.append(sum(scored))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, results[-1])
        return results

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Generate answers; requests with the same settings share a batch."""
        groups: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(index)
        batches = [
            (json.loads(settings), indices[begin : begin + self._batch_size])
            for settings, indices in groups.items()
            for begin in range(0, len(indices), self._batch_size)
        ]
        answers = [""] * len(requests)
        for settings, indices in _progress(batches, "answers", disable_tqdm):
            texts = self._answers([requests[index].args[0] for index in indices], settings)
            for index, text in zip(indices, texts, strict=True):
                answers[index] = text
                self.cache_hook.add_partial("generate_until", requests[index].args, text)
        return answers

    def _answers(self, prompts: list[str], settings: dict[str, Any]) -> list[str]:
        fields = dict(normalize_gen_kwargs(settings))
        until, limit = fields.pop("until", []), int(fields.pop("max_gen_toks"))
        if not fields["do_sample"]:
            fields.pop("temperature", None)
        stops = {text for text in ([until] if isinstance(until, str) else until) if text}
        if stops:
            fields["stop_strings"] = stops
        keeps_stops = fields.get("include_stop_str_in_output", False)
        # Tokens end before a stop string at the latest, text may end within one of them.
        fields["include_stop_str_in_output"] = True
        inputs = _padded([self._cut(self.tok_encode(prompt), limit) for prompt in prompts])
        results = self._pipeline.generate(inputs, max_new_tokens=limit, **fields)
        texts = [str(self._tokenizer.decode(tokens)) for tokens in results.tokens]
        return texts if keeps_stops else [_before(text, stops) for text in texts]

    def _cut(self, tokens: list[int], limit: int) -> list[int]:
        """The last tokens of a prompt, few enough to leave room for an answer."""
        room = self.max_length - limit
        if room < 1:
            raise ValueError(
                f"max_gen_toks={limit}: the model has {self.max_length} positions; ask for fewer tokens"
            )
        if len(tokens) <= room:
            return tokens
        _LOG.warning("a prompt of %d tokens is cut to its last %d", len(tokens), room)
        return tokens[-room:]


def _padded(prompts: Sequence[Sequence[int]]) -> TokenizedInputs:
    """Token ids as an input of `generate`."""
    longest = max(map(len, prompts))
    ids, mask = np.zeros((2, len(prompts), longest), np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)], mask[row, : len(prompt)] = prompt, 1
    return TokenizedInputs(ov.Tensor(ids), ov.Tensor(mask))


def _before(text: str, stops: set[str]) -> str:
    """What stands before the first stop string."""
    return text[: min((place for stop in stops if (place := text.find(stop)) >= 0), default=len(text))]


def _progress(entries: Sequence[Any], title: str, silent: bool) -> Iterator[Any]:
    return iter(track(entries, title, disable=silent or not sys.stderr.isatty()))


def setting_of(pipeline: LLMPipeline) -> dict[str, Any]:
    """How a pipeline reads and verifies, by the names that `ovspec eval fidelity` has for it."""
    settings = pipeline.settings()
    lossy = why_lossy(pipeline.verify, settings.acceptance_threshold, pipeline.prefill)
    return {
        "verify": str(pipeline.verify),
        "prefill": str(pipeline.prefill or "dense"),
        "why_lossy": lossy or None,
        "identity_breakers": [*pipeline.runner.identity_breakers, *settings.identity_breakers],
    }


def run_harness(pipeline: LLMPipeline, name: str, arguments: Sequence[str]) -> None:
    """Run the harness's own command line with this model; `arguments` are those of `lm_eval run`.

    A last line says why the setting is lossy, where it is.
    """

    @register_model(_NAME)
    class _Registered(OvspecLM):
        @classmethod
        def create_from_arg_string(cls, arg_string: str, additional_config: Any = None) -> OvspecLM:
            return cls.create_from_arg_obj({}, additional_config)

        @classmethod
        def create_from_arg_obj(cls, arg_dict: Any, additional_config: Any = None) -> OvspecLM:
            size = (additional_config or {}).get("batch_size") or _DEFAULT_BATCH
            return OvspecLM(pipeline, name, int(size))

    sys.argv = ["lm_eval", "run", "--model", _NAME, *arguments]
    cli_evaluate()
    if lossy := setting_of(pipeline)["why_lossy"]:
        print(f"LOSSY: {lossy}")

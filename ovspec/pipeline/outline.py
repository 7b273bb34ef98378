"""What is known of a pipeline without its models."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from types import NoneType
from typing import Any

from openvino_genai import GenerationConfig, Tokenizer

from ovspec.adapters.adapter_config import PipelineAdapters
from ovspec.drafters import Auto, DrafterChoice, PromptLookup
from ovspec.errors import InvalidTypeError, InvalidValueError, refuses_as_genai
from ovspec.generation.chat_prompts import ChatPrompts
from ovspec.generation.generation_config import (
    GenerationSettings,
    resolve,
    updated,
    with_eos,
    without_assistant,
)
from ovspec.generation.grammars.grammar import Grammar
from ovspec.generation.grammars.grammars import Grammars
from ovspec.generation.inputs import eos_token_ids, read_generation_config, read_tokenizer
from ovspec.modes.commit_verify import CommitVerify
from ovspec.modes.verify_mode import VerifyMode
from ovspec.vision.picture_prompts import PicturePrompts
from ovspec_models import ModelInfo

_LOG = logging.getLogger(__name__)
_UNLIMITED_POSITIONS = 2**31 - 1  # for models that name no limit, such as those with ALiBi


class Outline:
    """Makes requests for a pipeline, which may run on another machine.

    Args:
        verify: how the pipeline verifies, calibrated values filled in.
        choice: who drafts; `None`: nobody.
        tokenizer: in place of the folder's.
        max_context: the most tokens of prompt and answer; `None`: the model's positions.
        special_tokens_in_content: whether the names of special tokens in messages become these tokens.
        adapters: LoRA adapters that requests use; `None`: they can use none.

    Attributes:
        max_model_len: tokens that prompt and answer may have together.
    """

    def __init__(
        self,
        info: ModelInfo,
        verify: VerifyMode,
        choice: DrafterChoice | None,
        tokenizer: Tokenizer | None = None,
        max_context: int | None = None,
        special_tokens_in_content: bool = False,
        adapters: PipelineAdapters | None = None,
    ) -> None:
        if not isinstance(special_tokens_in_content, bool):
            raise InvalidTypeError(
                f"special_tokens_in_content={special_tokens_in_content!r}: expected True or False"
            )
        self._verify, self._adapters = verify, adapters
        self._choice, self._vocab_size = choice, info.vocab_size
        self._tokenizer = tokenizer or read_tokenizer(info.folder)
        self._chat_prompts = ChatPrompts(self._tokenizer, info.folder, special_tokens_in_content)
        config = read_generation_config(info.folder)
        self._eos = eos_token_ids(info, config, self._tokenizer)
        self._config = config if self.drafts else without_assistant(config)
        #: Makes grammars ready for this model's tokens.
        self.grammars = Grammars(self._tokenizer, info.vocab_size, self._eos)
        self.max_model_len = max_context or info.max_position_embeddings or _UNLIMITED_POSITIONS

    @property
    def verify(self) -> VerifyMode:
        """How the target verifies."""
        return self._verify

    @property
    def drafts(self) -> bool:
        """Whether drafts are proposed to the target."""
        return self._choice is not None

    def get_tokenizer(self) -> Tokenizer:
        """The target's tokenizer."""
        return self._tokenizer

    @property
    def picture_prompts(self) -> PicturePrompts | None:
        """What makes prompts with pictures; `None` where these are not read."""
        return None

    @property
    def chat_prompts(self) -> ChatPrompts:
        """What makes token ids of chats."""
        return self._chat_prompts

    def get_generation_config(self) -> GenerationConfig:
        """A copy of the configuration that calls start from, with the end-of-sequence ids that they have."""
        return with_eos(updated(self._config, {}), self._eos)

    @refuses_as_genai
    def set_generation_config(self, config: GenerationConfig) -> None:
        """Replace the configuration that calls start from.

        Raises:
            ValueError: an unsupported or contradicting option.
        """
        self.settings(config)
        self._config = updated(config, {})

    def settings(self, config: GenerationConfig | None = None, **kwargs: Any) -> GenerationSettings:
        """The settings of an engine's `Request`, as `generate` makes them of the same arguments.

        Raises:
            ValueError: an unsupported or contradicting option.
        """
        return self._settings(updated(self._config if config is None else config, kwargs), None)

    def client_settings(
        self, fields: Mapping[str, Any], stops: Collection[int], grammar: Grammar | None = None
    ) -> GenerationSettings:
        """The settings for a client of OpenAI's interface; see `resolve`.

        Args:
            fields: of the configuration, by their names.
            stops: tokens that the client names.
            grammar: that the answer follows.

        Raises:
            ValueError: as `settings`.
        """
        return self._settings(updated(self._config, dict(fields)), stops, grammar)

    def _settings(
        self, config: GenerationConfig, stops: Collection[int] | None, grammar: Grammar | None = None
    ) -> GenerationSettings:
        """The settings of a configuration; a refusal says so where the model's files alone cause it."""
        try:
            return self._checked(config, stops, grammar)
        except InvalidValueError as error:
            try:
                self._checked(self._config, None, None)
            except InvalidValueError as own:
                if str(own) == str(error):
                    files = "the model's own generation_config.json or config.json"
                    raise type(error)(f"{error}; this comes from {files}") from error
            raise

    def _checked(
        self, config: GenerationConfig, stops: Collection[int] | None, grammar: Grammar | None
    ) -> GenerationSettings:
        settings = resolve(config, self._eos, self.drafts, stops, grammar, self._adapters)
        if settings.grammar is not None:
            self.grammars.constraint(settings.grammar)  # refuses what can't be followed
        _check(settings, self._choice, self._verify)
        if settings.beams and not isinstance(self._choice, (Auto, NoneType)):
            _LOG.warning("ovspec: beams are searched without drafts: drafter %r rests", self._choice.name)
        # Those that nothing stops at are suppressed before `min_new_tokens` all the same.
        stops, least = settings.sampling.stop_token_ids, settings.sampling.min_new_tokens
        if unknown := sorted(token for token in stops if token >= self._vocab_size):
            name = "eos_token_id" if config.eos_token_id == unknown[0] else "stop_token_ids"
            raise InvalidValueError(
                f"{name}: {unknown[0]} is no token of this model; ids are 0 to {self._vocab_size - 1}"
            )
        if least and len(stops) == self._vocab_size:
            raise InvalidValueError(
                f"stop_token_ids: they are all {len(stops)} tokens of this model, of which none may come "
                f"before the first {least}; leave some out"
            )
        return settings


def _check(settings: GenerationSettings, choice: DrafterChoice | None, verify: VerifyMode) -> None:
    """Refuse n-grams without prompt lookup, and a lossy acceptance beside commits."""
    if settings.max_ngram_size and not isinstance(choice, PromptLookup):
        raise InvalidValueError(
            f"max_ngram_size={settings.max_ngram_size}: this pipeline looks no n-grams up; pass "
            "drafter='prompt_lookup' to it"
        )
    if settings.acceptance_threshold < 1.0 and isinstance(verify, CommitVerify):
        raise InvalidValueError(
            f"acceptance_threshold={settings.acceptance_threshold:g} contradicts verify='commit', which "
            "is exact: leave one of them out"
        )

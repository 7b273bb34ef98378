"""Checks of a call's settings against the pipeline that is to serve them."""

from __future__ import annotations

from ovspec.drafters import Auto, DrafterChoice, PromptLookup
from ovspec.errors import InvalidValueError
from ovspec.generation.generation_config import GenerationSettings
from ovspec.verify.commit_verify import CommitVerify
from ovspec.verify.verify_mode import VerifyMode


def check_settings(
    settings: GenerationSettings, choice: DrafterChoice | None, verify: VerifyMode, vocab_size: int
) -> None:
    """Refuse settings that this pipeline can't serve.

    Args:
        settings: of the call.
        choice: the pipeline's drafter, if there is one.
        verify: how it verifies.
        vocab_size: tokens of its model.

    Raises:
        InvalidValueError: n-grams without prompt lookup, a lossy acceptance beside commits, or a stop token
            outside the vocabulary.
    """
    if settings.max_ngram_size and not isinstance(choice, (PromptLookup, Auto)):
        raise InvalidValueError(
            f"max_ngram_size={settings.max_ngram_size}: this pipeline looks no n-grams up; pass "
            "drafter='prompt_lookup' to it"
        )
    if settings.acceptance_threshold < 1.0 and isinstance(verify, CommitVerify):
        raise InvalidValueError(
            f"acceptance_threshold={settings.acceptance_threshold:g} contradicts verify='commit', which "
            "is exact: leave one of them out"
        )
    unknown = sorted(token for token in settings.stop_token_ids if token >= vocab_size)
    if unknown:
        raise InvalidValueError(
            f"stop_token_ids: {unknown[0]} is no token of this model, which has {vocab_size}"
        )

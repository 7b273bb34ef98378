"""Grammars, made ready for a model's tokens."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import openvino_genai

from ovspec.devices.clock import microseconds
from ovspec.errors import InvalidValueError
from ovspec.generation.grammars.grammar import Grammar
from ovspec.generation.grammars.token_bytes import TokenBytes
from ovspec.sampling.constraint import Constraint, first_line
from ovspec.sampling.either_constraint import EitherConstraint

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_KEPT = 64
# Tokens that a mask takes or leaves together, beside llguidance's own for JSON: masks of patterns of letters
# with a count take 0.1 ms of 49,152 tokens instead of 0.2 to 0.3.
_WORDS = ("[a-z ]{1,10}", "[a-zA-Z ]{1,10}")
# What llguidance may do before the first token: at least, for each character of a grammar, and at most. The
# most is its own limit, with which (a{1000}){1000} takes 0.8 s and 170 MB that are kept; a tenth is enough
# for large patterns and schemas. What is long itself, as an enum of thousands, has more.
_FUEL, _FUEL_OF_CHARACTER, _MOST_FUEL = 100_000, 4, 1_000_000
# Of a text that must follow, so many characters become tokens at a time: at every row, all of it would.
_AHEAD = 1024
# Texts whose tokens are kept, and how long they may be: half a MB at most.
_TEXTS, _SHORT = 2048, 64


class Grammars:
    """Makes constraints of grammars; any thread may ask.

    What a grammar's first use takes, milliseconds to a second, is spent once for all requests that have it.

    Args:
        tokenizer: of the model.
        vocab_size: of the model; a tokenizer may have fewer tokens.
        stop_token_ids: end-of-sequence tokens of the model.

    Attributes:
        init_times: milliseconds that llguidance took for the vocabulary, under its name, once it has.
    """

    def __init__(
        self, tokenizer: openvino_genai.Tokenizer, vocab_size: int, stop_token_ids: Sequence[int]
    ) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._stops = [token for token in stop_token_ids if token < vocab_size]
        self._ready: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self.init_times: dict[str, float] = {}

    def constraint(self, grammar: Grammar) -> Constraint:
        """A grammar at its beginning.

        Raises:
            InvalidValueError: it is none, nothing satisfies it, or the model's tokens can't be constrained.
        """
        with self._lock:
            matcher = self._ready.get(grammar.text)
        if matcher is None:
            matcher = self._made(grammar)  # without the lock: others need not wait for it
        with self._lock:
            self._ready[grammar.text] = matcher
            self._ready.move_to_end(grammar.text)
            if len(self._ready) > _KEPT:
                self._ready.popitem(last=False)
            made = Constraint(matcher.deep_copy(), self._vocab_size, self._stops)
        return made if grammar.other is None else EitherConstraint(made, self.constraint(grammar.other))

    def _made(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        fuel = min(_MOST_FUEL, max(_FUEL, _FUEL_OF_CHARACTER * len(grammar.text)))
        limits = LLParserLimits(initial_lexer_fuel=fuel)
        matcher = LLMatcher(self._tokens, grammar.text, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # what nothing satisfies is found here
        error = matcher.get_error()
        if not error:
            tried = matcher.deep_copy()
            tried.try_consume_tokens(tried.compute_ff_tokens()[:1])  # and what takes too long here
            error = tried.get_error()
        if not error:
            return matcher
        raise InvalidValueError(f"{grammar.field}: {first_line(error)}")

    @functools.cached_property
    def _tokens(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        started = microseconds()
        found = TokenBytes.of(self._tokenizer)
        if found is None or not self._stops:
            what = (
                "its tokens have no bytes of their own"
                if found is None
                else "it has no end-of-sequence token"
            )
            raise InvalidValueError(f"structured output: this model's tokenizer can't be constrained: {what}")
        wrapped = TokenizerWrapper(_Wrapped(self._tokenizer, found.table[: self._vocab_size], self._stops[0]))
        slices = [*_WORDS, *LLTokenizer.general_slices()]
        made = LLTokenizer(wrapped, n_vocab=self._vocab_size, eos_token=self._stops, slices=slices)
        self.init_times["llguidance"] = (microseconds() - started) / 1e3
        return made


class _Wrapped:
    """A tokenizer as llguidance asks for it."""

    bos_token_id = None

    def __init__(self, tokenizer: openvino_genai.Tokenizer, table: Sequence[bytes], stop: int) -> None:
        self._tokenizer, self.eos_token_id = tokenizer, stop
        self.special_token_ids = [token for token, data in enumerate(table) if not data]
        names = dict.fromkeys(self.special_token_ids, b"")
        for token in self.special_token_ids:
            names[token] = str(tokenizer.decode([token], skip_special_tokens=False)).encode()
        self.tokens = [data or names[token] for token, data in enumerate(table)]

        # Requests of one grammar ask for the same few texts again and again, at 0.2 to 1 ms each.
        self._encode = functools.lru_cache(_TEXTS)(self._encoded)

    def __call__(self, text: bytes | str) -> list[int]:
        text = (text.decode() if isinstance(text, bytes) else text)[:_AHEAD]
        return list((self._encode if len(text) <= _SHORT else self._encoded)(text))

    def _encoded(self, text: str) -> tuple[int, ...]:
        ids = self._tokenizer.encode(text, add_special_tokens=False).input_ids.data
        return tuple(np.array(ids).reshape(-1).tolist())

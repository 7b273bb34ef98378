"""Base class of the drafters, and the proposal that a drafter makes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ovspec.generation.sequence import Sequence
from ovspec.sampling.sampling import Distribution
from ovspec.sampling.tree_acceptance import ROOT, depth
from ovspec.schedule.schedule import ModelAsk


@dataclass(slots=True)
class Proposal:
    """Draft tokens x_1 .. x_k of one sequence, and the distributions q_1 .. q_k they were drawn from.

    Attributes:
        tokens: token ids; empty if the drafter proposes nothing.
        q: distribution of each token. An empty list, or an entry `None`, means that the token was chosen
            and not drawn. Lenient acceptance (`acceptance_threshold`) and block verification
            (`acceptance_rule`) read q.
        parents: for a tree, the index of each token's parent, -1 for one that follows the context; a parent
            precedes its children. `None` is a chain.
        confidences: the probability that decoding comes to each token, of a tree by the model that drafted
            it, of a chain by a head that says so, of a lookup by its match; no parent has less than its
            children. `None`: not known.
        match: of a lookup, how many of the last tokens stood before its tokens elsewhere; else 0.
        dropped: tokens that were cut off before it was verified.
    """

    tokens: list[int] = field(default_factory=list)
    q: list[Distribution | None] = field(default_factory=list)
    parents: list[int] | None = None
    confidences: list[float] | None = None
    match: int = 0
    dropped: list[int] = field(default_factory=list)

    @property
    def depth(self) -> int:
        """Tokens on the longest path; of a chain, all of them."""
        return len(self.tokens) if self.parents is None else depth(self.parents)

    def behind(self, tokens: list[int]) -> Proposal:
        """The draft that begins with other tokens, a chain that was chosen."""
        if not tokens:
            return self
        count, parents = len(tokens), self.parents
        if parents is not None:
            parents = [*range(ROOT, count - 1), *(parent + count for parent in parents)]
        return Proposal([*tokens, *self.tokens], [*[None] * count, *self.q] if self.q else [], parents)

    def is_drawn_for_blocks(self, sequence: Sequence) -> bool:
        """Whether block verification needs what its tokens were drawn from."""
        return bool(self.q) and sequence.settings.acceptance_rule == "block"

    def drop_unlikely(self, least: float) -> None:
        """Drop tokens whose confidence is below `least`; of a tree a parent outlives its children."""
        if self.confidences is None:
            return
        if self.parents is None:
            count = sum(confidence >= least for confidence in self.confidences)
            self.tokens, self.dropped = self.tokens[:count], self.tokens[count:]
            del self.q[count:]
            return
        self.dropped = [token for node, token in enumerate(self.tokens) if self.confidences[node] < least]
        self._keep([node for node, confidence in enumerate(self.confidences) if confidence >= least])

    def cut(self, sequence: Sequence) -> None:
        """Drop what the sequence's grammar does not allow, and with it all that follows."""
        constraint = sequence.processor.constraint
        if constraint is None or not self.tokens:
            return
        if self.parents is None:
            valid = constraint.valid(self.tokens)
            del self.tokens[valid:], self.q[valid:]
            if self.confidences is not None:
                del self.confidences[valid:]
            if self.is_drawn_for_blocks(sequence) or (
                self.q and sequence.settings.acceptance_threshold < 1.0
            ):
                # What was drawn and is allowed was drawn from the rest of q.
                self.q = [
                    None if q is None else q.within(constraint.mask(self.tokens[:place]))
                    for place, q in enumerate(self.q)
                ]
            return
        paths: dict[int, list[int]] = {ROOT: []}
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            before = paths.get(parent)
            if before is not None and not constraint.ends(before) and constraint.allows(before, token):
                paths[node] = [*before, token]
        self._keep(sorted(paths.keys() - {ROOT}))

    def _keep(self, nodes: SequenceOf[int]) -> None:
        """Keep these nodes of a tree, each with its parent."""
        assert self.parents is not None
        places = {ROOT: ROOT, **{node: place for place, node in enumerate(nodes)}}
        self.parents = [places[self.parents[node]] for node in nodes]
        self.tokens = [self.tokens[node] for node in nodes]
        if self.confidences is not None:
            self.confidences = [self.confidences[node] for node in nodes]

    def checked(self, name: str, k: int, vocab_size: int) -> Proposal:
        """Check the proposal and return it.

        Args:
            name: name of the drafter, for error messages.
            k: largest number of tokens that was asked for.
            vocab_size: of the target.

        Raises:
            ValueError: too many tokens, ids outside the vocabulary, or probabilities or parents that don't
                fit the tokens.
        """
        count = len(self.tokens)
        if count > k:
            raise ValueError(
                f"drafter {name!r} returned {count} tokens, asked for {k}: return at most so many"
            )
        wrong = next((token for token in self.tokens if not 0 <= token < vocab_size), None)
        if wrong is not None:
            raise ValueError(
                f"drafter {name!r} returned token {wrong}, which is none of the target's 0 to "
                f"{vocab_size - 1}: map its ids to the target's"
            )
        for token, q in zip(self.tokens, self.q or [None] * count, strict=True):
            if q is not None and q.prob(token) <= 0:
                raise ValueError(
                    f"drafter {name!r} gives token {token} probability 0: return the distribution that it "
                    "was drawn from"
                )
        self._check_parents(name)
        return self

    def _check_parents(self, name: str) -> None:
        if self.parents is None:
            return
        count = len(self.tokens)
        if len(self.parents) != count:
            raise ValueError(
                f"drafter {name!r} returned {len(self.parents)} parents for {count} tokens: return one for "
                "each, or None"
            )
        for index, parent in enumerate(self.parents):
            if not -1 <= parent < index:
                raise ValueError(
                    f"drafter {name!r} returned parent {parent} for token {index}: expected -1 or the index "
                    "of a token before it"
                )


class Drafter(ABC):
    """Proposes tokens for several sequences at once.

    A drafter keeps its state of a sequence in `Sequence.draft_states`, under its name, so that the state ends
    with the sequence.

    Attributes:
        name: as in `LLMPipeline(drafter=...)`.
        last_duration: time that the last `propose` spent in a model, microseconds.
        looks_up: whether proposals come from text that was seen before, with their `match`, for nothing.
        has_model: whether a token that it drafts takes time.
        reads_states: whether it drafts from hidden states of the target, which `observe` brings.
        why_no_trees: why it can't draft trees, in words; empty where it can.
    """

    name: str
    last_duration: float = 0.0
    looks_up: bool = False
    has_model: bool = True
    reads_states: bool = False
    why_no_trees: str = "it drafts chains only"

    def propose(
        self,
        sequences: SequenceOf[Sequence],
        counts: SequenceOf[int],
        of_model: SequenceOf[ModelAsk | None] = (),
    ) -> list[Proposal]:
        """Propose tokens that may follow each sequence.

        Args:
            sequences: what is generated.
            counts: largest number of tokens per sequence; 0: none.
            of_model: for a drafter that looks up and has a model, what the model is asked for; `None`, and
                where there is none: for `counts` too, behind which there was no match.

        Returns:
            One proposal per sequence.
        """
        self.last_duration = 0.0
        drafts = self._draft(sequences, counts)
        return [drafts.get(index) or Proposal() for index in range(len(sequences))]

    @abstractmethod
    def _draft(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> dict[int, Proposal]:
        """What `propose` returns, by index; time in a model is added to `last_duration`."""

    def observe(self, sequence: Sequence, begin: int, states: NDArray[np.float32]) -> None:
        """Hidden states of the target for the sequence's tokens from `begin` on, in place of earlier ones.

        They come from every pass over prompts, and from every verification for the tokens that it accepted;
        those of a commit replace those of the sparse passes before it.

        Args:
            sequence: whose tokens the target has read.
            begin: position of the first.
            states: f32 `[tokens, sum of hidden sizes]`, valid during the call.
        """
        return

    def would_draft(self, sequence: Sequence) -> bool:
        """Whether its model may have anything to gain by drafting for a sequence now."""
        return True

    def unread(self, sequences: SequenceOf[Sequence]) -> int:
        """Tokens that a model must read before it can draft, over all sequences."""
        return 0

    def limit_cache(self, cached_bytes: int) -> None:
        """Keep so much of sequences that have ended in the drafter's own cache."""
        return

    def warm_up(self, rows: int) -> None:
        """Compute the largest pass, of so many rows, before the first request."""
        return

    def begin(self, sequence: Sequence) -> None:
        """A sequence is about to run."""
        return

    def release(self, sequence: Sequence) -> None:
        """Free what the sequence holds in the drafter's own cache."""
        return

"""`eagle3`: a head of one layer drafts from hidden states of the target (EAGLE-3, arXiv 2503.01840).

Entry i of the head's cache pairs the target's state at position i with the embedding of token i + 1. Its
logits follow token i + 1, and its own last state stands for the target's in entry i + 1 of a draft. What a
draft has written is dropped: the entries of accepted tokens are computed again from the target's states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.drafters.draft_tree import DraftTree, depth_of
from ovspec.drafters.drafter import Drafter, Proposal
from ovspec.drafters.drawing import draw
from ovspec.generation.sequence import Sequence
from ovspec.runtime.backends import Backends
from ovspec.runtime.compile import read_model
from ovspec.runtime.devices import openvino_core
from ovspec.runtime.draft_runner import draft_runner
from ovspec.runtime.model_runner import ModelRunner
from ovspec.runtime.tables import Rows
from ovspec_models import ModelInfo
from ovspec_models.head_info import HeadInfo
from ovspec_transforms import BOUNDARY_STATES, Eagle3Parts, share_embedding, split_eagle3

_FEWEST_LAYERS = 3


def eagle3_boundaries(layers: int) -> tuple[int, ...]:
    """The boundaries that EAGLE-3 reads of a target with so many layers.

    Raises:
        ValueError: the target has too few.
    """
    if layers < _FEWEST_LAYERS:
        raise ValueError(f"an EAGLE-3 head reads three boundaries, the target has {layers} layers only")
    return (2, layers // 2, layers - 3)


@dataclass(slots=True)
class _Unread:
    """Features of positions that are no entries of the head's cache yet.

    Attributes:
        begin: the first position.
        features: f32 `[positions, size]`.
    """

    begin: int
    features: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    def pass_by(self, count: int) -> None:
        """The first of them are entries now; said after their pass, which may be cut short."""
        self.begin, self.features = self.begin + count, self.features[count:]


def load_eagle3(info: HeadInfo, target: ModelInfo, backends: Backends, prefill_chunk: int) -> Eagle3Drafter:
    """Compile the head of a folder for a target.

    Args:
        info: of the head's folder.
        target: of the target's folder, whose embedding it takes unless it has its own.
        backends: the operations that compute it.
        prefill_chunk: rows per pass while a prompt is read.

    Raises:
        ValueError: it is no EAGLE-3 head, or one for another target.
    """
    core = openvino_core()
    parts = split_eagle3(core.read_model(info.folder / "openvino_model.xml"))
    boundaries = info.boundaries or eagle3_boundaries(target.num_hidden_layers)
    states = len(boundaries) * target.hidden_size
    if parts.read != states:
        raise ValueError(
            f"'{info.folder}' is a head for another target: its fc reads {parts.read} numbers of a token, "
            f"the target's {len(boundaries)} boundaries of hidden size {target.hidden_size} give {states}"
        )
    embedded = parts.embedded
    if not info.own_embedding:
        embedded = share_embedding(parts.head, read_model(core, target.folder))
    if embedded != parts.size:
        raise ValueError(
            f"'{info.folder}' is a head for another target: its hidden size is {parts.size}, the embedding's "
            f"{embedded}"
        )
    ids = _target_ids(parts, info, target.vocab_size)
    own = ModelInfo.read(info.folder)
    runner = draft_runner(parts.head, backends, own.weight_bytes)
    fc = core.compile_model(parts.fc, backends.device, dict(backends.properties))
    return Eagle3Drafter(runner, fc, ids, target.vocab_size, prefill_chunk, own.max_position_embeddings)


def _target_ids(parts: Eagle3Parts, info: HeadInfo, vocab_size: int) -> NDArray[np.int64]:
    """The target's id of each of the head's tokens."""
    ids = np.arange(parts.drafted)
    if parts.offsets is None:
        if parts.drafted != vocab_size:
            raise ValueError(
                f"'{info.folder}' drafts {parts.drafted} of the target's {vocab_size} tokens and has no d2t, "
                "which says of which; export the head again"
            )
        return ids
    if parts.offsets.shape != ids.shape:
        raise ValueError(
            f"'{info.folder}': d2t has the shape {list(parts.offsets.shape)}, the head {parts.drafted} tokens"
        )
    ids = ids + parts.offsets
    if ids.min() < 0 or ids.max() >= vocab_size or len(np.unique(ids)) < len(ids):
        raise ValueError(
            f"'{info.folder}' is a head for another target: d2t names token {ids.max()} or one token twice, "
            f"the target's vocabulary is {vocab_size}"
        )
    return ids


class Eagle3Drafter(Drafter):
    """Drafts with an EAGLE-3 head, for several sequences at once.

    Args:
        runner: the head behind `fc`.
        fc: joins states of several boundaries, f32 `[1, rows, states]`, to features `[1, rows, size]`.
        target_ids: i64 `[draft vocabulary]`, the target's id of each of the head's tokens.
        vocab_size: of the target.
        prefill_chunk: rows per pass while a prompt is read.
        positions: of the head; beyond them nothing is proposed.
    """

    name = "eagle3"
    reads_states = True

    def __init__(
        self,
        runner: ModelRunner,
        fc: ov.CompiledModel,
        target_ids: NDArray[np.int64],
        vocab_size: int,
        prefill_chunk: int,
        positions: int | None = None,
    ) -> None:
        self.runner = runner
        self._fc = fc.create_infer_request()
        self._target_ids = target_ids
        self._vocab_size = vocab_size
        self._full = np.zeros((0, vocab_size), np.float32)
        self._chunk = prefill_chunk
        self._positions = math.inf if positions is None else positions
        self.why_no_trees = runner.why_no_tree_mask

    def observe(self, sequence: Sequence, begin: int, states: NDArray[np.float32]) -> None:
        """Keep the features of true states, and read them where they fill blocks, which others may share."""
        unread = self._unread(sequence)
        if begin > unread.begin + len(unread.features):
            return  # a part of the text was read unseen: there is nothing to draft from
        # Both are copied: the states are valid during the call, the features until the next.
        self._fc.set_input_tensor(ov.Tensor(states[np.newaxis]))
        self._fc.infer(share_outputs=True)
        features = self._fc.get_output_tensor().data[0].copy()
        if begin > unread.begin:
            features = np.concatenate([unread.features[: begin - unread.begin], features])
        unread.begin, unread.features = min(unread.begin, begin), features
        sequence.draft.rollback(min(sequence.draft.length, unread.begin))
        while (known := self._known(sequence)) > self.runner.block_size:
            # The last entry waits for the draft that begins with it.
            count = min(known - 1, self._chunk)
            self.runner.forward([self._rows(sequence, count, sampled=0)])
            unread.pass_by(count)
        self._publish(sequence)

    def propose(self, sequences: SequenceOf[Sequence], counts: SequenceOf[int]) -> list[Proposal]:
        """Draft for every sequence whose states are there."""
        self.last_duration = 0.0
        proposals = [Proposal() for _ in sequences]
        limits = [
            min(count, depth_of(sequence), self._positions - len(sequence.tokens))
            for sequence, count in zip(sequences, counts, strict=True)
        ]
        asked = [
            index for index, limit in enumerate(limits) if limit > 0 and self._is_ready(sequences[index])
        ]
        trees = {
            index: DraftTree(sequences[index], counts[index], int(limits[index]))
            for index in asked
            if sequences[index].settings.branching_factor > 1
        }
        chains = [index for index in asked if index not in trees]
        try:
            if trees:
                self._draft_trees(sequences, trees)
            for index, tree in trees.items():
                proposals[index] = tree.proposal()
            batch = self._first_rows(sequences, chains)
            drafting = chains
            while drafting:
                logits, features = self._forward(batch)
                if drafting is chains:
                    self._pass_by(sequences, chains)
                still, batch = [], []
                for index, row, feature in zip(drafting, logits, features, strict=True):
                    sequence, proposal = sequences[index], proposals[index]
                    if draw(sequence, proposal, row) and len(proposal.tokens) < limits[index]:
                        still.append(index)
                        token = np.array(proposal.tokens[-1:], np.int64)
                        batch.append(Rows(sequence.draft, token, states=1, features=feature[None, None]))
                drafting = still
        finally:
            for index in asked:
                sequence = sequences[index]
                sequence.draft.rollback(min(sequence.draft.length, len(sequence.tokens) - 1))
                self._publish(sequence)
        return proposals

    def _draft_trees(self, sequences: SequenceOf[Sequence], trees: Mapping[int, DraftTree]) -> None:
        """Grow trees: after the true entries, each pass has all nodes so far as rows."""
        growing = list(trees)
        logits, states = self._forward(self._first_rows(sequences, growing))
        self._pass_by(sequences, growing)
        features: dict[int, list[NDArray[np.float32]]] = {index: [] for index in growing}
        while growing:
            ends, still, batch = np.cumsum([len(trees[index].frontier) for index in growing]), [], []
            for index, end in zip(growing, ends.tolist(), strict=True):
                sequence, tree, before = sequences[index], trees[index], trees[index].frontier
                rows = slice(end - len(before), end)
                own = dict(zip(before, states[rows], strict=True))
                if tree.grow(logits[rows]):
                    still.append(index)
                    features[index] += [own[tree.parents[node]] for node in tree.frontier]
                    tokens, parents = tree.rows
                    count, joined = len(tree.frontier), np.stack(features[index])[:, np.newaxis]
                    sequence.draft.rollback(len(sequence.tokens) - 1)
                    batch.append(
                        Rows(sequence.draft, tokens, count, parents=parents, states=count, features=joined)
                    )
            growing = still
            if growing:
                logits, states = self._forward(batch)

    def _forward(self, batch: SequenceOf[Rows]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Logits over the target's vocabulary and own states of the sampled rows."""
        logits = self._in_target_ids(self.runner.forward(batch))
        self.last_duration += self.runner.last_pass.duration
        return logits, np.array(self.runner.output(BOUNDARY_STATES), np.float32)

    def _first_rows(self, sequences: SequenceOf[Sequence], indices: SequenceOf[int]) -> list[Rows]:
        """The true entries that a draft begins with."""
        return [self._rows(sequences[index], self._known(sequences[index]), states=1) for index in indices]

    def _pass_by(self, sequences: SequenceOf[Sequence], indices: SequenceOf[int]) -> None:
        for index in indices:
            self._unread(sequences[index]).pass_by(self._known(sequences[index]))

    def limit_cache(self, cached_bytes: int) -> None:
        """Limit what ended sequences leave in the head's cache."""
        self.runner.limit_cache(None, cached_bytes)

    def begin(self, sequence: Sequence) -> None:
        """Begin with what both caches have of the sequence: without states there are no entries."""
        tokens, draft = sequence.tokens, sequence.draft
        if not draft.length:
            self.runner.blocks.share(draft, tokens[1:], _seed(tokens))
        both = min(draft.length, sequence.target.length)
        draft.rollback(both)
        sequence.target.rollback(both)
        sequence.draft_states.pop(self.name, None)

    def release(self, sequence: Sequence) -> None:
        """Free the blocks of the sequence in the head's cache."""
        self._publish(sequence)
        self.runner.release(sequence.draft)
        sequence.draft_states.pop(self.name, None)

    def _publish(self, sequence: Sequence) -> None:
        blocks = self.runner.blocks
        if blocks.publishes(sequence.draft, sequence.confirmed - 1):
            tokens = sequence.tokens[: sequence.confirmed]
            blocks.publish(sequence.draft, tokens[1:], _seed(tokens))

    def _unread(self, sequence: Sequence) -> _Unread:
        unread: _Unread = sequence.draft_states.setdefault(self.name, _Unread(sequence.draft.length))
        return unread

    def _known(self, sequence: Sequence) -> int:
        """How many entries can be read: the token after the last position is not known yet."""
        unread = self._unread(sequence)
        return max(0, min(len(unread.features), len(sequence.tokens) - 1 - unread.begin))

    def _is_ready(self, sequence: Sequence) -> bool:
        """Whether there are entries to begin a draft with, and none is missing before them or after."""
        begin, count = self._unread(sequence).begin, self._known(sequence)
        return begin == sequence.draft.length and count > 0 and begin + count == len(sequence.tokens) - 1

    def _rows(self, sequence: Sequence, count: int, sampled: int = 1, states: int = 0) -> Rows:
        """The rows of the next entries."""
        unread = self._unread(sequence)
        begin, features = unread.begin, unread.features[:count, np.newaxis]
        tokens = np.array(sequence.tokens[begin + 1 : begin + 1 + count], np.int64)
        return Rows(sequence.draft, tokens, sampled, states=states, features=features)

    def _in_target_ids(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits over the target's vocabulary, valid until the next; unknown tokens have -inf."""
        if len(self._full) < len(logits):
            self._full = np.full((len(logits), self._vocab_size), -np.inf, np.float32)
        full = self._full[: len(logits)]
        full[:, self._target_ids] = logits
        return full


def _seed(tokens: SequenceOf[int]) -> bytes:
    """What blocks of entries depend on beside the tokens after the first."""
    return b"eagle3" + np.array(tokens[:1], np.int64).tobytes()

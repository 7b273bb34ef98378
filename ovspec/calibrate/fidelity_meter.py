"""KL and top-1 agreement of a sparse setting with dense passes on given texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from openvino_genai import GenerationConfig

from ovspec.calibrate.calibration import ROWS
from ovspec.eval.teacher_forcing import TeacherForcing
from ovspec.generation.generation_config import resolve, updated
from ovspec.generation.raw_metrics import RawPerfMetrics
from ovspec.operations.expert_budgets import expert_config
from ovspec.operations.ffn_budgets import ffn_config
from ovspec.runner.model_runner import ModelRunner
from ovspec_models.folder.sparse_verify import SparseVerify


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Fidelity of a setting compared with dense passes over the same tokens.

    Attributes:
        kl: mean KL(dense || setting) per position, nats, as `ovspec eval fidelity` reports it.
        agreement: share of the positions with the same most probable token as dense passes.
        loss: mean negative log-likelihood of the texts' next tokens, nats.
        experts_read: mean number of experts of a layer that a pass read; 0 if not counted.
        ffn_density: share of the feed-forward channels that a pass read; 1 without a limit.
        attention_density: share of the context that attention read; 1 when dense.
    """

    kl: float
    agreement: float
    loss: float = 0.0
    experts_read: float = 0.0
    ffn_density: float = 1.0
    attention_density: float = 1.0


class FidelityMeter:
    """Compares settings with dense passes at the ends of texts; the beginnings are read densely.

    Args:
        runner: the target; its graph can limit what the settings limit.
        texts: i64 `[tokens]` each; those of fewer than 3 tokens are left out.
        positions: largest number of positions to compare per text; at most half of a text.
    """

    def __init__(self, runner: ModelRunner, texts: Sequence[NDArray[np.int64]], positions: int) -> None:
        self._runner = runner
        greedy = {"do_sample": False, "num_assistant_tokens": ROWS - 1, "ignore_eos": True}
        settings = resolve(updated(GenerationConfig(), {**greedy, "max_new_tokens": 1}), (), True)
        self._texts: list[TeacherForcing] = []
        #: Positions at which every setting is compared.
        self.positions = 0
        for text in texts:
            compared = min(positions, len(text) // 2)
            begin = len(text) - compared - 1  # the first token behind it comes out of the prefill
            if begin < 1:
                continue
            tokens = text.tolist()
            self._texts.append(TeacherForcing(runner, settings, tokens[:begin], tokens[begin:]))
            self.positions += compared

    def measure(self, sparse: SparseVerify) -> Fidelity:
        """Run the texts' ends with a setting."""
        self._apply(sparse)
        decisions, metrics = [], list[RawPerfMetrics]()
        for forcing in self._texts:
            decisions += forcing.decisions(sparse)
            metrics.append(forcing.metrics)
        names = ("expert_layers", "channels_held", "context_tokens")
        layers, held, context = (sum(getattr(m, name) for m in metrics) for name in names)
        return Fidelity(
            kl=float(np.mean([decision.kl for decision in decisions])),
            agreement=float(np.mean([decision.agrees for decision in decisions])),
            loss=float(np.mean([decision.surprise for decision in decisions])),
            experts_read=sum(m.experts_read for m in metrics) / layers if layers else 0.0,
            ffn_density=sum(m.channels_read for m in metrics) / held if held else 1.0,
            attention_density=sum(m.attended_tokens for m in metrics) / context if context else 1.0,
        )

    def _apply(self, sparse: SparseVerify) -> None:
        if sparse.limits_attention and sparse.coverage is not None:
            self._runner.set_coverage(sparse.coverage)
        experts = self._runner.experts
        if experts is not None and (limits := expert_config(experts.backend, sparse)) is not None:
            self._runner.set_experts(limits)
        if self._runner.ffn is not None and (channels := ffn_config(None, sparse)) is not None:
            self._runner.set_ffn(channels)

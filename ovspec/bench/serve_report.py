"""Figures of a server under load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.table import Table

from ovspec.bench.serve_client import Timing

_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution of times in milliseconds; zeros if nothing was measured."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """The distribution of times in seconds."""
        if not seconds:
            return cls(0.0, 0.0, 0.0, 0.0)
        values = 1e3 * np.asarray(seconds, np.float64)
        return cls(float(values.mean()), *(float(np.percentile(values, p)) for p in _PERCENTILES))


@dataclass(frozen=True, slots=True)
class ServeReport:
    """What the requests of a measurement took; settings as in `ServeBench`, `seconds` of all requests."""

    model: str
    concurrency: int
    request_rate: float | None
    timings: Sequence[Timing]
    seconds: float

    @property
    def answered(self) -> list[Timing]:
        """Requests that were answered."""
        return [one for one in self.timings if not one.error]

    @property
    def errors(self) -> dict[str, int]:
        """How often each error came."""
        return dict(Counter(one.error for one in self.timings if one.error))

    @property
    def spreads(self) -> dict[str, Spread]:
        """The distributions of times, by name."""
        done = self.answered
        return {
            "ttft": Spread.of([one.ttft for one in done]),
            "tpot": Spread.of([one.tpot for one in done if one.num_tokens > 1]),
            "itl_per_token": Spread.of([gap for one in done for gap in one.token_gaps]),
            "itl_per_chunk": Spread.of([gap for one in done for gap in one.chunk_gaps]),
            "e2el": Spread.of([one.e2el for one in done]),
        }

    @property
    def acceptance(self) -> dict[str, float] | None:
        """The server's figures of drafts, over all requests; `None` if it gives none."""
        name = "speculative_decoding"
        found = [one.metrics[name] for one in self.answered if one.metrics.get(name)]
        if not found:
            return None
        steps = sum(one["num_spec_steps"] for one in found)
        accepted = sum(one["num_accepted_draft_tokens"] for one in found)
        proposed = sum(one["num_draft_tokens"] for one in found)
        return {
            "num_spec_steps": steps,
            "num_draft_tokens": proposed,
            "num_accepted_draft_tokens": accepted,
            "draft_acceptance_rate": accepted / proposed if proposed else 0.0,
            "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        }

    def as_json(self) -> dict[str, Any]:
        """All figures as JSON values; times in milliseconds, null what the server gives no numbers for."""
        done = self.answered
        tokens, chunks = sum(one.num_tokens for one in done), sum(len(one.arrivals) for one in done)
        said = (one.metrics.get("attention_density") for one in done)
        densities = [density for density in said if density is not None]
        return {
            "model": self.model,
            "concurrency": self.concurrency,
            "request_rate": self.request_rate,
            "num_requests": len(self.timings),
            "num_answered": len(done),
            "errors": self.errors,
            "duration_s": self.seconds,
            "request_throughput": len(done) / self.seconds,
            "num_prompt_tokens": sum(one.num_prompt_tokens for one in done),
            "num_output_tokens": tokens,
            "output_throughput": tokens / self.seconds if tokens else None,
            "tokens_per_chunk": tokens / chunks if tokens else None,
            **{f"{name}_ms": asdict(spread) for name, spread in self.spreads.items()},
            "speculative_decoding": self.acceptance,
            "attention_density": sum(densities) / len(densities) if densities else None,
        }

    def lines(self) -> list[str]:
        """Counts, rates and acceptance, one sentence per line."""
        body = self.as_json()
        lines = [
            f"{self.model}: {body['num_answered']} of {body['num_requests']} requests answered in "
            f"{self.seconds:.1f} s, {self.concurrency} at a time",
        ]
        rate = f"{body['request_throughput']:.2f} requests/s"
        if body["output_throughput"] is None:
            lines.append(f"{rate}; the server does not say how many tokens its answers have")
        else:
            per_chunk = f"{body['tokens_per_chunk']:.2f} tokens a chunk"
            lines.append(f"{body['output_throughput']:.1f} tokens/s, {rate}, {per_chunk}")
        if (drafts := self.acceptance) is not None and drafts["num_spec_steps"]:
            lines.append(
                f"mean acceptance length {drafts['mean_acceptance_length']:.2f}, "
                f"{drafts['draft_acceptance_rate']:.0%} of the draft tokens accepted"
            )
        if body["attention_density"] is not None and body["attention_density"] < 1.0:
            lines.append(f"attention density {body['attention_density']:.2f}")
        return lines

    def notes(self) -> list[str]:
        """The errors, one sentence per kind."""
        return [f"{count} requests failed: {error}" for error, count in self.errors.items()]

    def table(self) -> Table:
        """A table of the times."""
        table = Table("ms", "mean", "50%", "90%", "99%", title="times", title_justify="left")
        for name, spread in self.spreads.items():
            values = (spread.mean, spread.p50, spread.p90, spread.p99)
            cells = (f"{value:.1f}" if any(values) else "-" for value in values)
            table.add_row(name.replace("_", " "), *cells)
        return table

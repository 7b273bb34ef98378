"""Metrics for Prometheus, with vLLM's names, so that its dashboards and load tester read them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import zip_longest

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from ovspec.engine.requests.request import Request, RequestMetrics, RequestOutput

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_COUNTERS = {
    "spec_decode_num_drafts": "Drafts that were verified.",
    "spec_decode_num_draft_tokens": "Draft tokens that were verified.",
    "spec_decode_num_accepted_tokens": "Draft tokens that were accepted.",
    "prompt_tokens": "Tokens of prompts.",
    "generation_tokens": "Tokens of answers.",
    "prefix_cache_queries": "Tokens of prompts that were looked up in the cache.",
    "prefix_cache_hits": "Tokens of prompts whose keys and values were cached.",
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": "From a request's arrival to its first token.",
    "inter_token_latency_seconds": "Between steps that brought tokens, per token.",
    "request_time_per_output_token_seconds": "Mean time of a request's tokens after the first.",
    "e2e_request_latency_seconds": "From a request's arrival to the end of its answer.",
}
_DENSITIES = {
    "attention_density": "Share of the context's cache that verification read, per answer.",
    "prefill_density": "Share of the context that the prompt read while it was read, per answer.",
}


class Counts:
    """Counters, gauges and histograms of one server.

    Args:
        model: the served name, the label of all of them.
        gauges: what is asked for when the metrics are read, by name without prefix.
    """

    def __init__(self, model: str, gauges: Mapping[str, Callable[[], float]]) -> None:
        # `vllm bench serve` adds every line of a name, so a time of creation would count as accepted tokens.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._model = model
        counter = partial(Counter, registry=self._registry)
        histogram = partial(Histogram, labelnames=["model_name"], registry=self._registry)
        self._counters = {
            name: counter(f"vllm:{name}", text, ["model_name"]).labels(model)
            for name, text in _COUNTERS.items()
        }
        self._histograms = {
            name: histogram(f"vllm:{name}", text, buckets=_SECONDS).labels(model)
            for name, text in _HISTOGRAMS.items()
        }
        self._densities = {
            name: histogram(f"ovspec:{name}", text, buckets=_SHARES).labels(model)
            for name, text in _DENSITIES.items()
        }
        text = "Drafts whose token at this position was accepted."
        labels = ["model_name", "position"]
        self._per_position = counter("vllm:spec_decode_num_accepted_tokens_per_pos", text, labels)
        labels = ["model_name", "finished_reason"]
        self._ended = counter("vllm:request_success", "Answers that ended, by why.", labels)
        for name, read in gauges.items():
            gauge = Gauge(f"vllm:{name}", name.replace("_", " "), ["model_name"], registry=self._registry)
            gauge.labels(model).set_function(read)

    def text(self) -> bytes:
        """All of them in Prometheus' format."""
        return generate_latest(self._registry)

    def add(self, name: str, amount: float) -> None:
        """Raise a counter; it never goes down."""
        self._counters[name].inc(max(0.0, amount))

    def time(self, name: str, seconds: float) -> None:
        """Add to a histogram."""
        self._histograms[name].observe(seconds)

    def drafted(self, before: RequestMetrics, now: RequestMetrics) -> None:
        """Count what a step drafted."""
        if now.num_drafts <= before.num_drafts:
            return
        for counter, field in (
            ("spec_decode_num_drafts", "num_drafts"),
            ("spec_decode_num_draft_tokens", "num_draft_tokens"),
            ("spec_decode_num_accepted_tokens", "num_accepted_tokens"),
        ):
            self.add(counter, getattr(now, field) - getattr(before, field))
        accepted = (metrics.num_accepted_tokens_per_pos for metrics in (now, before))
        for position, (count, earlier) in enumerate(zip_longest(*accepted, fillvalue=0)):
            if count > earlier:
                self._per_position.labels(self._model, str(position)).inc(count - earlier)

    def ended(self, reason: str, metrics: RequestMetrics) -> None:
        """Count an answer that ended."""
        self._ended.labels(self._model, reason).inc()
        for name, density in self._densities.items():
            density.observe(getattr(metrics, name))


class AnswerClock:
    """Times and counts one answer as its outputs come.

    Attributes:
        seconds: from the begin to the end; 0 before the end.
    """

    def __init__(self, counts: Counts, request: Request) -> None:
        self._counts, self._prompt = counts, len(request.prompt_token_ids)
        self._started = self._first = self._last = request.arrival_time
        self._tokens = 0
        self._metrics = RequestMetrics()
        self.seconds = 0.0

    def output(self, output: RequestOutput) -> None:
        """Tokens came."""
        now, new = time.perf_counter(), sum(len(one.token_ids) for one in output.answers)
        self._counts.drafted(self._metrics, output.metrics)
        # A prompt that nothing is to be written behind has been read at the end.
        if not self._tokens and (new or (output.finished and output.error is None)):
            self._counts.add("prompt_tokens", self._prompt)
            self._counts.add("prefix_cache_queries", self._prompt)
            self._counts.add("prefix_cache_hits", output.metrics.num_cached_tokens)
        if new and not self._tokens:
            self._first = now
            self._counts.time("time_to_first_token_seconds", now - self._started)
        else:
            for _ in range(new):
                self._counts.time("inter_token_latency_seconds", (now - self._last) / new)
        self._counts.add("generation_tokens", new)
        self._tokens += new
        if output.error is None or output.metrics.num_drafts > self._metrics.num_drafts:
            self._metrics = output.metrics  # what failed elsewhere may come without
        self._last = now

    def end(self, reason: str) -> None:
        """The answer has ended; only the first call counts."""
        if self.seconds:
            return
        self.seconds = time.perf_counter() - self._started
        self._counts.time("e2e_request_latency_seconds", self.seconds)
        if self._tokens > 1:
            mean = (self._last - self._first) / (self._tokens - 1)
            self._counts.time("request_time_per_output_token_seconds", mean)
        self._counts.ended(reason, self._metrics)

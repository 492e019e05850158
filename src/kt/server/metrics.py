"""/metrics: what a Prometheus server collects. docs/server.md lists the names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kt.engine.request import Delta, Finished

if TYPE_CHECKING:
    from kt.engine.engine import Engine

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LONG: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_SHORT: Final = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0)


class Metrics:
    """Counts and times of one server."""

    def __init__(self, engine: Engine) -> None:
        registry = CollectorRegistry()
        registry.register(_EngineCollector(engine))
        self._registry = registry
        self.ended = Counter(
            "kt_answers", "Answers by how they ended", ["reason"], registry=registry
        )
        self.first = _histogram(
            registry, "kt_time_to_first_token_seconds", "From submission", _LONG
        )
        self.gap = _histogram(
            registry, "kt_inter_token_seconds", "Between two tokens of an answer", _SHORT
        )
        self.queue = _histogram(registry, "kt_queue_seconds", "Waiting for a place", _LONG)
        self.whole = _histogram(registry, "kt_answer_seconds", "From submission to the end", _LONG)

    def watch(self) -> Watch:
        """For one answer."""
        return Watch(self)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text form."""
        return generate_latest(self._registry)


class Watch:
    """Follows one answer."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._last: float | None = None
        self._over = False

    def heard(self, delta: Delta) -> None:
        """Tokens that come together share the time since the last ones."""
        if not delta.tokens:
            return
        now = time.monotonic()
        if self._last is not None:
            gap = (now - self._last) / len(delta.tokens)
            for _ in delta.tokens:
                self._metrics.gap.observe(gap)
        self._last = now

    def ended(self, finished: Finished) -> None:
        metrics, times = self._metrics, finished.timings
        if self._over:
            return
        self._over = True
        metrics.ended.labels(finished.reason).inc()
        metrics.queue.observe(times.queue)
        if finished.completion_tokens:
            metrics.first.observe(times.queue + times.prefill)
        metrics.whole.observe(times.queue + times.prefill + times.decode)

    def left(self) -> None:
        """Nobody waits for the rest of the answer, if it has not ended."""
        if not self._over:
            self._over = True
            self._metrics.ended.labels("cancelled").inc()


class _EngineCollector(Collector):
    """The engine's own counts, read when they are asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        used = stats.pages_total - stats.pages_free
        gauges = {
            "kt_requests_running": ("Answers being computed", stats.running),
            "kt_requests_waiting": ("Requests that wait for a place", stats.waiting),
            "kt_kv_pages": ("KV pages there are", stats.pages_total),
            "kt_kv_pages_used": ("KV pages that running answers hold", used),
            "kt_kv_pages_cached": ("KV pages in which a prefix can be found", stats.pages_cached),
        }
        counters = {
            "kt_requests": ("Requests taken", stats.requests),
            "kt_prompt_tokens": ("Prompt tokens, cached ones included", stats.prompt_tokens),
            "kt_cached_tokens": ("Prompt tokens found in the prefix cache", stats.cached_tokens),
            "kt_completion_tokens": ("Tokens generated", stats.completion_tokens),
            "kt_preemptions": ("Answers set back because pages ran out", stats.preemptions),
            "kt_failures": ("Steps that failed", stats.failures),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value)
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(name, text, value=value)


def _histogram(
    registry: CollectorRegistry, name: str, text: str, buckets: tuple[float, ...]
) -> Histogram:
    return Histogram(name, text, buckets=buckets, registry=registry)

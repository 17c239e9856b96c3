"""What `/metrics` says, for Prometheus: requests, gateway calls, and the state of the parts.

Counts and times of requests are kept here. What can be looked at is looked at when somebody asks.
Histograms of calls name one trace a bucket as their exemplar, which OpenMetrics' form shows. No
label holds a text of a client's: agents and versions are names of the home, routes are templates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from thumbwheel.access.needs import needs
from thumbwheel.access.turn_route import TurnRoute
from thumbwheel.gateway.application import Exchange
from thumbwheel.gateway.reply_draft import CLIENT_LEFT

SECONDS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)
"""Bounds of the buckets of requests to the API."""
CALL_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds of the buckets of calls to models."""
LONGEST_EXEMPLAR = 100
"""Characters of a trace id that is named; OpenMetrics takes 128 with the name of the label."""
PREFIX = "thumbwheel_"
"""Of the names of all figures."""
LEFT = "left"
"""Status of a call whose client did not wait for the answer."""


@dataclass(frozen=True)
class MetricSample:
    """A value that is looked up when somebody asks."""

    name: str
    help: str
    read: Callable[[], Mapping[str, float] | float]
    """The value, or values by that of `label`."""
    label: str = ""
    counts: bool = False
    """Whether it only ever grows."""


@dataclass(eq=False)
class _Samples(Collector):
    """Looks the samples up; a sample that cannot be read now is left out."""

    samples: list[MetricSample] = field(default_factory=list)
    failures: int = 0

    def collect(self) -> Iterator[Metric]:
        """Yield the samples, and the number of failed reads. A sample that cannot be read is left
        out."""
        for sample in self.samples:
            try:
                values = sample.read()
            except Exception:  # noqa: BLE001 - the others are wanted all the more
                self.failures += 1
                continue
            yield _metric(sample, values)
        help = "Figures of /metrics that could not be read."
        yield CounterMetricFamily("thumbwheel_unread_samples", help, self.failures)

    def describe(self) -> list[Metric]:
        """Return an empty list, so that registering reads no sample."""
        return []


def _metric(sample: MetricSample, values: Mapping[str, float] | float) -> Metric:
    family = CounterMetricFamily if sample.counts else GaugeMetricFamily
    if not isinstance(values, Mapping):
        return family(sample.name, sample.help, values)
    metric = family(sample.name, sample.help, labels=[sample.label])
    for label, value in values.items():
        metric.add_metric([label], value)
    return metric


class Metrics:
    """Counts on the event loop, where each call costs some microseconds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._samples = _Samples()
        self.registry.register(self._samples)
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "thumbwheel_http_requests",
            "Answered requests, those for models included.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._request_seconds = Histogram(
            "thumbwheel_http_request_seconds",
            "From the first byte of a request to the last of its answer.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._calls = Counter(
            "thumbwheel_calls",
            "Calls to models, by what answered.",
            ["agent", "version", "status"],
            registry=self.registry,
        )
        self._call_seconds = Histogram(
            "thumbwheel_call_seconds",
            "From a call to the last byte of its answer.",
            ["agent", "version"],
            buckets=CALL_SECONDS,
            registry=self.registry,
        )
        self._first_token_seconds = Histogram(
            "thumbwheel_call_first_token_seconds",
            "From a call to the first piece of its answer.",
            ["agent", "version"],
            buckets=CALL_SECONDS,
            registry=self.registry,
        )

    def add(self, *samples: MetricSample) -> None:
        """Add samples to the metrics."""
        self._samples.samples.extend(samples)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(method, route, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def call(self, exchange: Exchange) -> None:
        """Count a completed model call."""
        agent, version = exchange.agent, exchange.choice.version
        status = LEFT if exchange.cause == CLIENT_LEFT else str(exchange.status)
        self._calls.labels(agent, version, status).inc()
        trace_id = exchange.trace_id
        is_named = trace_id is not None and len(trace_id) <= LONGEST_EXEMPLAR
        exemplar = {"trace_id": trace_id} if is_named and trace_id else None
        seconds = exchange.ended - exchange.began
        self._call_seconds.labels(agent, version).observe(seconds, exemplar)
        if exchange.first_token is not None:
            first = exchange.first_token - exchange.began
            self._first_token_seconds.labels(agent, version).observe(first, exemplar)


def router(metrics: Metrics) -> APIRouter:
    """Return the router for `/metrics`, in the format that the client accepts: Prometheus or
    OpenMetrics."""
    routes = APIRouter(route_class=TurnRoute)

    @routes.get("/metrics", response_class=Response, dependencies=[needs("read")])
    def read_metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), media_type=content_type)

    return routes

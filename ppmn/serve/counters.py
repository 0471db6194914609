"""Counters in Prometheus' form, in a registry of the server's own."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ppmn.serve.image_cache import ImageCache
from ppmn.serve.work_queue import Work


class Metrics(Collector):
    """What was done is counted here; how the queues and the cache stand is asked of them."""

    def __init__(self, looks: ImageCache, *queues: Work) -> None:
        self.looks, self.queues = looks, queues
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.encoded = Counter("ppmn_looks_encoded", "Photos the image side was run on", registry=registry)
        self.grounded = Counter("ppmn_groundings", "Captions that were grounded", registry=registry)
        self.seconds = Histogram(
            "ppmn_request_seconds", "From request to answer", ["route", "status"], registry=registry
        )
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        queues = self.queues
        yield GaugeMetricFamily("ppmn_queue_depth", "Requests that wait", sum(len(q) for q in queues))
        yield GaugeMetricFamily("ppmn_looks_kept", "Photos in the cache", len(self.looks))
        yield GaugeMetricFamily("ppmn_looks_kept_bytes", "Bytes in the cache", self.looks.bytes)
        yield CounterMetricFamily("ppmn_refused", "Answered 503: queue full", sum(q.refused for q in queues))
        yield CounterMetricFamily("ppmn_dropped", "The client went away", sum(q.dropped for q in queues))
        yield CounterMetricFamily("ppmn_late", "Took more than the time", sum(q.late for q in queues))

    def text(self) -> bytes:
        return generate_latest(self.registry)

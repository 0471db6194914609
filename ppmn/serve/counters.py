"""Counters and gauges for Prometheus, in a registry of their own."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ppmn.serve.image_cache import ImageCache
from ppmn.serve.work_queue import WorkQueue


class Counters(Collector):
    """Counts events itself; reads the state of the queues and the cache on every scrape."""

    def __init__(self, images: ImageCache, *queues: WorkQueue) -> None:
        self.images = images
        self.queues = queues
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.encoded = Counter("ppmn_images_encoded", "Runs of the image encoder", registry=registry)
        self.grounded = Counter("ppmn_captions_grounded", "Captions grounded", registry=registry)
        self.seconds = Histogram(
            "ppmn_request_seconds", "From request to response", ["route", "status"], registry=registry
        )
        registry.register(self)

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.seconds.labels(route, status).observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """The metrics that are read from the queues and the cache."""
        refused = sum(queue.refused for queue in self.queues)
        dropped = sum(queue.dropped for queue in self.queues)
        timed_out = sum(queue.timed_out for queue in self.queues)
        yield GaugeMetricFamily("ppmn_queue_depth", "Waiting requests", sum(map(len, self.queues)))
        yield GaugeMetricFamily("ppmn_images_cached", "Images in the cache", len(self.images))
        yield GaugeMetricFamily("ppmn_images_cached_bytes", "Bytes in the cache", self.images.bytes)
        yield CounterMetricFamily("ppmn_requests_refused", "503 responses: queue full", refused)
        yield CounterMetricFamily("ppmn_requests_dropped", "Clients that disconnected", dropped)
        yield CounterMetricFamily("ppmn_requests_timed_out", "504 responses: too slow", timed_out)

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self.registry)

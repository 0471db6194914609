"""Counters and gauges for Prometheus, in a registry of their own."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from ppmn.serve.image_cache import ImageCache
from ppmn.serve.work_queue import WorkQueue


class Counters:
    """Counts events itself; reads the state of the queues and the cache on every scrape."""

    def __init__(self, images: ImageCache, *queues: WorkQueue) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.encoded = Counter("ppmn_images_encoded", "Runs of the image encoder", registry=registry)
        self.grounded = Counter("ppmn_captions_grounded", "Captions grounded", registry=registry)
        self.seconds = Histogram(
            "ppmn_request_seconds", "From request to response", ["route", "status"], registry=registry
        )
        self.failed = {
            503: Counter("ppmn_requests_refused", "503 responses: queue full", registry=registry),
            499: Counter("ppmn_requests_dropped", "Clients that disconnected", registry=registry),
            504: Counter("ppmn_requests_timed_out", "504 responses: too slow", registry=registry),
        }
        depth = Gauge("ppmn_queue_depth", "Waiting requests", registry=registry)
        depth.set_function(lambda: sum(map(len, queues)))
        count = Gauge("ppmn_images_cached", "Images in the cache", registry=registry)
        count.set_function(lambda: len(images))
        size = Gauge("ppmn_images_cached_bytes", "Bytes in the cache", registry=registry)
        size.set_function(lambda: images.bytes)

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.seconds.labels(route, status).observe(seconds)
        if status in self.failed:
            self.failed[status].inc()

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self.registry)

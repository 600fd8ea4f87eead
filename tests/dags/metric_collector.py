"""An OpenTelemetry collector on HTTP, which receives Airflow's metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest


class OpenTelemetryCollector:
    """Keeps the points of every metric that was sent, by its name and the tag `topic`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.points: dict[tuple[str, str], float] = {}

    def add(self, content: bytes) -> None:
        """Take one request."""
        request = ExportMetricsServiceRequest.FromString(content)
        for of_resource in request.resource_metrics:
            for of_scope in of_resource.scope_metrics:
                for metric in of_scope.metrics:
                    for point in [*metric.gauge.data_points, *metric.sum.data_points]:
                        tags = {each.key: each.value.string_value for each in point.attributes}
                        value = point.as_double or float(point.as_int)
                        self.points[metric.name, tags.get("topic", "")] = value


@contextmanager
def collecting() -> Iterator[OpenTelemetryCollector]:
    """Run a collector."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.add(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = OpenTelemetryCollector(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()

"""Serve metrics to Prometheus, on loopback only: whoever may scrape sees the names of all topics.

A scrape costs no snapshot: it gets the last one. A background thread takes one every so often, and never takes more
than a twentieth of the time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from tiered_storage.errors import ConfigurationError, TieredStorageError
from tiered_storage.remote_log.metrics.exposition import FailureCounts, families_of
from tiered_storage.remote_log.metrics.partition_metrics import RemoteLogMetrics

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

LOOPBACK: Final = "127.0.0.1"
AGE_PER_SNAPSHOT: Final = 20
"""Metrics are used for at least this many times as long as it took to take them."""


class MetricsExporter(Collector):
    """The last snapshot's metrics, for Prometheus' client. Thread-safe."""

    def __init__(
        self, take: Callable[[], RemoteLogMetrics | None], every_seconds: float, report: Callable[[str], None]
    ) -> None:
        """Call `take` in `run`, every so often; `report` names what goes wrong. None: there are no metrics yet."""
        self._take = take
        self._every = every_seconds
        self._report = report
        self._lock = threading.Lock()
        self._metrics: RemoteLogMetrics | None = None
        self._failures = FailureCounts()
        self._has_failed = False

    def refresh(self) -> float:
        """Take metrics now; return after how many seconds they are due again. A failure keeps the earlier ones."""
        try:
            metrics = self._take()
        except (TieredStorageError, OSError) as error:
            self._report(f"no metrics were taken: {error}")
            with self._lock:
                self._has_failed = True
            return self._every
        with self._lock:
            self._has_failed = False
            if metrics is None:
                return self._every
            self._metrics = metrics
            self._failures.observe(metrics.topics)
        return max(self._every, AGE_PER_SNAPSHOT * metrics.took_ms / 1000)

    def run(self, stop: threading.Event) -> None:
        """Take metrics until `stop` is set."""
        while not stop.wait(self.refresh()):
            pass

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the last snapshot."""
        with self._lock:
            metrics, failed = self._metrics, self._has_failed
            families = [] if metrics is None else list(families_of(metrics, self._failures))
        yield from families
        yield GaugeMetricFamily("remote_log_look_failed", "Whether the last look failed", float(failed))


class Page(NamedTuple):
    """A page beside the metrics: JSON."""

    status: HTTPStatus
    content: str


class _Server(ThreadingWSGIServer):
    """Serves each request in a thread: one that hangs holds no other up."""

    daemon_threads = True


class _SilentHandler(WSGIRequestHandler):
    """Logs no request."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's signature
        """Log nothing."""


def serve(
    port: int, *collectors: Collector, setting: str, pages: Mapping[str, Callable[[], Page]] | None = None
) -> Callable[[], None]:
    """Serve the metrics of `collectors` at http://127.0.0.1:`port`/metrics; return what ends that.

    `pages` are served beside them, by their paths. Raises ConfigurationError if the port cannot be opened; `setting`
    names where it comes from.
    """
    registry = CollectorRegistry()
    for each in collectors:
        registry.register(each)
    try:
        server = make_server(LOOPBACK, port, _application(registry, pages or {}), _Server, _SilentHandler)
    except OSError as error:
        raise ConfigurationError(
            f"metrics cannot be served at {LOOPBACK}:{port} ({error.strerror}): give another port by {setting}"
        ) from error

    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end


def _application(registry: CollectorRegistry, pages: Mapping[str, Callable[[], Page]]) -> WSGIApplication:
    metrics: WSGIApplication = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        page = pages.get(environ["PATH_INFO"])
        if page is None:
            return metrics(environ, start_response)
        status, content = page()
        start_response(f"{status.value} {status.phrase}", [("Content-Type", "application/json")])
        return [content.encode()]

    return answer

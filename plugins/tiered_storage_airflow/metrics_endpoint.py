"""The API server's endpoint for Prometheus, on loopback: the metrics that watch_remote_log kept, and what it served."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.metrics.exporter import MetricsExporter, serve
from tiered_storage.remote_log.metrics.partition_metrics import RemoteLogMetrics
from tiered_storage.remote_log.metrics.stored import latest_metrics
from tiered_storage.settings.settings import Settings, load_cluster_settings
from tiered_storage_airflow.read_service.service import open_by_hook

if TYPE_CHECKING:
    from tiered_storage.remote_log.manager import RemoteLogManager
    from tiered_storage_airflow.read_service.access import Metrics

EVERY_SECONDS = 30.0
"""How often the kept metrics are read."""
SECONDS_TO_END = 5.0
"""How long the end of the API server waits for a work area that hangs."""
SETTING = "read.service.metrics.port"
_log = structlog.get_logger("remote_log.metrics")


class MetricsEndpoint:
    """Serves metrics while the API server runs, if the settings name a port. Failures are logged and stop nothing."""

    def __init__(
        self,
        metrics: Metrics,
        cluster: str | None,
        open_log: Callable[[], RemoteLogManager] | None = None,
        settings: Callable[[], Settings] | None = None,
    ) -> None:
        """Serve `metrics`, and those that a run kept of `cluster` (None: the first).

        `open_log` and `settings` replace how the log is opened and the settings are loaded.
        """
        self._metrics = metrics
        self._open_log = open_log or partial(open_by_hook, cluster)
        self._settings = settings or partial(load_cluster_settings, cluster)
        self._log: RemoteLogManager | None = None
        self._stop = threading.Event()
        self._end: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Serve from now on."""
        exporter = MetricsExporter(self._latest, EVERY_SECONDS, _log.warning)
        try:
            if not (port := self._settings().read_service_metrics_port):
                return
            served = exporter, self._metrics.registry, self._metrics.fetched.registry
            self._end = serve(port, *served, setting=SETTING)
        except TieredStorageError as error:
            _log.warning("no metrics are served", reason=str(error))
            return
        self._thread = threading.Thread(target=exporter.run, args=(self._stop,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the serving."""
        self._stop.set()
        if self._end is not None:
            self._end()
        if self._thread is not None:
            self._thread.join(SECONDS_TO_END)
        if self._log is not None:
            self._log.close()

    def _latest(self) -> RemoteLogMetrics | None:
        """Return the kept metrics. The log is open of its own: requests must not wait for it, nor it for them."""
        if self._log is None:
            self._log = self._open_log()
        return latest_metrics(self._log.context.work)

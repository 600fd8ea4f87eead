"""The service's process: its threads, signals, metrics and health."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tiered_storage.cli.common.output import Output
from tiered_storage.cli.common.session import lease_owner
from tiered_storage.errors import ConfigurationError, TieredStorageError

if TYPE_CHECKING:
    from tiered_storage.process.health import Health
    from tiered_storage.remote_log.follower.followers import Followers
    from tiered_storage.remote_log.manager import RemoteLogManager
    from tiered_storage.remote_log.selection import Selection
    from tiered_storage.remote_log.service.assignments import Assignments
    from tiered_storage.remote_log.service.service import RemoteLogService

_log = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_CHECK_SECONDS: Final = 0.5
_METRICS_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Which partitions the service takes, the broker that it stands beside, and the directory that it follows into."""

    selection: Selection
    broker: int | None = None
    directory: Path | None = None


def serve_partitions(
    remote_log: RemoteLogManager, options: ServiceOptions, stop: threading.Event, output: Output
) -> bool:
    """Copy, expire and follow until `stop` is set; return whether all that ran has ended, so that the process may too.

    Raises ConfigurationError for a broker of a source that shows no leaders, for a directory without a broker, and for
    a port that cannot be opened; what Followers.open raises for the directory.
    """
    from tiered_storage.process.logs import set_up_logs
    from tiered_storage.remote_log.service.assignments import Assignments
    from tiered_storage.remote_log.service.service import RemoteLogService

    followers = _followers(remote_log, options, stop)
    set_up_logs(remote_log.context.settings.service_log_format, 0)
    unfollow = (lambda _: None) if followers is None else followers.release
    running = RemoteLogService(remote_log, lease_owner("service"), follow=followers, unfollow=unfollow)
    has_ended = False
    try:
        looking = AssignmentLoop(Assignments(remote_log.context, running.schedule, options.selection, options.broker))
        has_ended = _run(remote_log, running, looking, stop, output)
    except BaseException:
        has_ended = running.stop(0)
        raise
    finally:
        if has_ended and followers is not None:
            followers.close()
    return has_ended


def _followers(remote_log: RemoteLogManager, options: ServiceOptions, stop: threading.Event) -> Followers | None:
    from tiered_storage.remote_log.follower.followers import Followers

    if options.directory is None:
        return None
    if options.broker is None:
        raise ConfigurationError(
            "--directory needs --broker: a service that stands beside no broker leads all partitions, and follows none"
        )
    context = remote_log.context
    return Followers.open(context, options.directory, options.broker, lambda: not stop.is_set())


class AssignmentLoop:
    """Assigns partitions every so often, in a thread of its own: brokers that hang must not hold a stop up."""

    def __init__(self, assignments: Assignments) -> None:
        self._assignments = assignments
        self._notices: frozenset[str] = frozenset()
        self._problem: Exception | None = TieredStorageError("no partition is assigned yet")

    def refresh(self) -> None:
        """Look now; log a new problem, and new notices of the source."""
        try:
            self._assignments.refresh()
            notices = frozenset(self._assignments.notices)
        except (TieredStorageError, OSError) as error:
            if str(error) != str(self._problem):
                _log.warning("partitions stay as they are assigned: %s", error)
            self._problem = error
        else:
            self._problem = None
            for each in sorted(notices - self._notices):
                _log.warning("%s", each)
            self._notices = notices

    def run(self, stop: threading.Event, seconds: float, on_first: Callable[[], None]) -> None:
        """Look every so many seconds until `stop` is set; call `on_first` after the first look."""
        self.refresh()
        on_first()
        while not stop.wait(seconds):
            self.refresh()

    def ensure_done(self) -> None:
        """Raise why the last look failed."""
        if self._problem is not None:
            raise self._problem


def _run(
    remote_log: RemoteLogManager,
    running: RemoteLogService,
    looking: AssignmentLoop,
    stop: threading.Event,
    output: Output,
) -> bool:
    """Run until `stop` is set; return whether all that ran has ended."""
    from tiered_storage.process.health import Health, needs_of

    settings = remote_log.context.settings
    health = Health(
        {"assignments": looking.ensure_done, **needs_of(remote_log.context)},
        not_serving=("service", "it is starting or stopping"),
        loop="the pool of copies",
    )
    end_metrics = _serve_metrics(remote_log, running, health, stop)
    try:
        seconds = settings.remote_log_manager_task_interval_ms / 1000
        threading.Thread(
            target=looking.run, args=(stop, seconds, health.start), name="assignments", daemon=True
        ).start()
        running.start()
        health.is_serving = True
        output.say("the service runs")
        while not stop.wait(_CHECK_SECONDS):
            if not running.hangs:
                health.beat()
        health.is_serving = False
        health.stop()
        _log.info("the service ends: it finishes what it copies")
        return running.stop(settings.service_shutdown_timeout_ms / 1000)
    finally:
        end_metrics()


def _serve_metrics(
    remote_log: RemoteLogManager, running: RemoteLogService, health: Health, stop: threading.Event
) -> Callable[[], None]:
    """Serve metrics and health if a port is set; return what ends that."""
    from tiered_storage.remote_log.metrics.exporter import MetricsExporter, serve
    from tiered_storage.remote_log.metrics.snapshot import Snapshots
    from tiered_storage.remote_log.service.service import ServiceMetrics

    context = remote_log.context
    port = context.settings.service_metrics_port
    if not port:
        return lambda: None
    exporter = MetricsExporter(Snapshots(context).take, _METRICS_SECONDS, _log.warning)
    pages = {"/health": health.health, "/ready": health.ready}
    end = serve(port, exporter, ServiceMetrics(running), setting="service.metrics.port", pages=pages)
    threading.Thread(target=exporter.run, args=(stop,), name="metrics-snapshots", daemon=True).start()
    return end


def stopped_by_signal() -> threading.Event:
    """Return what the first signal to end this process sets; the second one ends it at once."""
    stop = threading.Event()

    def on_signal(_: int, __: object) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        stop.set()

    for each in _SIGNALS:
        signal.signal(each, on_signal)
    return stop

"""What the routes share: the remote log, opened once per process, its threads, its limits and the rights."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Generic, Self, TypeVar

from fastapi import Depends, Request

from tiered_storage.errors import OutdatedMetadataError, RemoteMetadataError, StoreMismatchError, TieredStorageError
from tiered_storage.remote_log.metrics.exposition import CountedStorage
from tiered_storage.remote_log.metrics.stored import LagPoint, lag_history, latest_metrics
from tiered_storage.settings.read_rights import RightsFile
from tiered_storage_airflow.read_service.access import Metrics
from tiered_storage_airflow.read_service.admission import Admission, FairQueue, Places, ShortCalls
from tiered_storage_airflow.read_service.problem import ProblemError
from tiered_storage_airflow.read_service.threads import BoundedThreads, ServiceThreads
from tiered_storage_airflow.read_service.tiers import Tiers

if TYPE_CHECKING:
    from tiered_storage.remote_log.manager import RemoteLogManager
    from tiered_storage.remote_log.metrics.partition_metrics import RemoteLogMetrics
    from tiered_storage.remote_log.model import TopicIdPartition
    from tiered_storage.settings.read_rights import ReadRights

SECONDS_TO_ANSWER = 60.0
"""How long, in seconds, a response may take to begin, and then each of its pieces."""
REPORT_THREADS = 2
MOST_WAITING_REPORTS = 30
MOST_SENDING = 4
SECONDS_SEEN = 5.0
SECONDS_OF_RIGHTS = 1.0
"""How long, in seconds, rights are cached: a read on a thread may wait long for threads that encode JSON."""
SECONDS_OF_METRICS = 30.0
"""How long, in seconds, the kept metrics are cached: runs keep new ones every few minutes."""
SECONDS_BETWEEN_SENDS = 0.002
SECONDS_BETWEEN_CHECKS = 10.0
"""How often, in seconds, metadata and store are compared, which is also how long replaced metadata are still read."""

_T = TypeVar("_T")


class SingleFlight(Generic[_T]):
    """Shares one call among concurrent callers and caches its result, but no failure. For one event loop."""

    def __init__(self, seconds: float) -> None:
        """Cache results for `seconds`."""
        self._seconds = seconds
        self._begun = 0.0
        self._call: asyncio.Future[_T] | None = None

    async def get(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Return the cached result of `call`, or a new one. Raises what `call` raises."""
        now = asyncio.get_running_loop().time()
        if self._call is None or self._is_over(self._call, now):
            self._begun = now
            self._call = asyncio.ensure_future(call())
        return await asyncio.shield(self._call)

    def _is_over(self, call: asyncio.Future[_T], now: float) -> bool:
        if not call.done():
            return False
        return call.cancelled() or call.exception() is not None or now > self._begun + self._seconds


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One requirement of the service, and whether it is met."""

    name: str
    ok: bool
    message: str


@dataclass(slots=True)
class Seen:
    """Recently read results, shared among requests."""

    rights: SingleFlight[ReadRights] = field(default_factory=lambda: SingleFlight(SECONDS_OF_RIGHTS))
    health: SingleFlight[list[HealthCheck]] = field(default_factory=lambda: SingleFlight(SECONDS_SEEN))
    remote: SingleFlight[Sequence[TopicIdPartition]] = field(default_factory=lambda: SingleFlight(SECONDS_SEEN))
    """The partitions that are or were remote."""
    partitions: SingleFlight[list[TopicIdPartition]] = field(default_factory=lambda: SingleFlight(SECONDS_SEEN))
    """All partitions, including local ones, which take longer to find."""
    metrics: SingleFlight[RemoteLogMetrics | None] = field(default_factory=lambda: SingleFlight(SECONDS_OF_METRICS))
    """The metrics that were kept last."""
    history: SingleFlight[list[LagPoint]] = field(default_factory=lambda: SingleFlight(SECONDS_OF_METRICS))
    """The lag of topics over the last day."""


class MetadataWatch:
    """Compares metadata and store in the background, so that no request waits for a store that hangs."""

    def __init__(self, log: RemoteLogManager, thread: BoundedThreads) -> None:
        """Compare those of `log` on `thread`. Opening `log` compared them as well."""
        self._log = log
        self._thread = thread
        self._error: RemoteMetadataError | None = None
        self._comparison: asyncio.Task[None] | None = None
        self._compared_at = time.monotonic()

    def ensure_readable(self) -> None:
        """Raise the error that the last comparison found; begin the next one if it is due.

        Raises OutdatedMetadataError and StoreMismatchError.
        """
        is_due = time.monotonic() > self._compared_at + SECONDS_BETWEEN_CHECKS
        if is_due and (self._comparison is None or self._comparison.done()):
            self._compared_at = time.monotonic()
            self._comparison = asyncio.ensure_future(self._compare())
        if self._error is not None:
            raise type(self._error)(str(self._error))

    async def _compare(self) -> None:
        try:
            await self._thread.run(self._log.context.guard.ensure_readable)
            self._error = None
        except (OutdatedMetadataError, StoreMismatchError) as error:
            self._error = error
        except (TieredStorageError, ProblemError):
            # The metadata or the store cannot be reached now: requests that need them report that.
            return


@dataclass(slots=True)
class OpenService:
    """An open remote log, and the limits on the work with it."""

    log: RemoteLogManager
    rights: RightsFile
    threads: ServiceThreads
    places: Places
    tiers: Tiers
    sending: FairQueue
    """For each piece that is sent."""
    metrics: Metrics
    watch: MetadataWatch
    seconds_to_answer: float
    """How long, in seconds, each piece of a response may take."""
    seen: Seen = field(default_factory=Seen)

    @classmethod
    def of(cls, log: RemoteLogManager, metrics: Metrics, short: ShortCalls, seconds_to_answer: float) -> Self:
        """Create the threads that the settings of `log` allow."""
        settings = log.context.settings
        threads = ServiceThreads.of(settings)
        return cls(
            log,
            RightsFile(settings.read_service_rights_file),
            threads,
            Places(settings.read_service_max_streams, metrics),
            Tiers.of(replace(log.context, storage=CountedStorage(log.context.storage, metrics.fetched))),
            FairQueue(MOST_SENDING, short, SECONDS_BETWEEN_SENDS),
            metrics,
            MetadataWatch(log, threads.looking["pair"]),
            seconds_to_answer,
        )

    @property
    def stalled_after_seconds(self) -> float:
        """How long, in seconds, a reader may take nothing before its stream ends."""
        return self.log.context.settings.read_service_stalled_after_ms / 1000

    async def rights_now(self) -> ReadRights:
        """Return the rights, at most a second old."""
        return await self.seen.rights.get(lambda: self.threads.rights.run(self.rights.current))

    async def kept_metrics(self) -> RemoteLogMetrics | None:
        """Return the metrics that a run kept last, at most a moment old; None if there are none."""
        return await self.seen.metrics.get(
            lambda: self.threads.asking.run(lambda: latest_metrics(self.log.context.work))
        )

    async def lag_history(self) -> list[LagPoint]:
        """Return the lag of the last day, at most a moment old."""
        log = self.log
        return await self.seen.history.get(
            lambda: self.threads.asking.run(lambda: lag_history(log.context.work, log.context.clock()))
        )

    def close(self) -> None:
        """End all threads, then close the remote log."""
        self.tiers.close()
        self.threads.close()
        self.log.close()


class ReadService:
    """Opens the remote log with the first request that needs it, and closes it with the API server."""

    def __init__(
        self,
        open_log: Callable[[], RemoteLogManager] | None = None,
        seconds_to_answer: float = SECONDS_TO_ANSWER,
        cluster: str | None = None,
    ) -> None:
        """Open the remote log with `open_log`, or else by the settings of `cluster` and Airflow's connection.

        Each response has `seconds_to_answer` to begin, or twice remote.fetch.max.wait.ms if that is longer.
        """
        self._open_log = open_log or partial(open_by_hook, cluster)
        self.cluster = cluster
        self.seconds_to_answer = seconds_to_answer
        self._threads = BoundedThreads("opening", 1, 0)
        self.reports = BoundedThreads("reports", REPORT_THREADS, MOST_WAITING_REPORTS)
        """For reports of runs, which do not need an open remote log."""
        self._lock = threading.Lock()
        self._opening = SingleFlight[OpenService](0)
        self._opened: OpenService | None = None
        self.metrics = Metrics()
        self.short_calls = ShortCalls()
        self.admission = Admission(self.short_calls)

    async def opened(self) -> OpenService:
        """Return the open service. Raises what opening raises, to all who wait; the next request tries again.

        Raises OutdatedMetadataError and StoreMismatchError once other metadata have replaced the open ones.
        """
        if self._opened is not None:
            self._opened.watch.ensure_readable()
            return self._opened
        return await self._opening.get(lambda: self._threads.run(self._open))

    def _open(self) -> OpenService:
        if self._opened is not None:
            return self._opened
        log = self._open_log()
        seconds = max(self.seconds_to_answer, 2 * log.context.settings.remote_fetch_max_wait_ms / 1000)
        opened = OpenService.of(log, self.metrics, self.short_calls, seconds)
        # Opening may hang: the lock that closing waits for is held only briefly.
        with self._lock:
            self.seconds_to_answer = seconds
            self._opened = opened
        return opened

    def close(self) -> None:
        """Close what is open; the next request opens it again."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


async def open_service(request: Request) -> OpenService:
    """Return the open service of the application that handles `request`."""
    service: ReadService = request.app.state.read_service
    return await service.opened()


OpenServiceDep = Annotated[OpenService, Depends(open_service)]


def open_by_hook(cluster: str | None) -> RemoteLogManager:
    """Open the remote log by the settings of `cluster` and Airflow's connection; the caller closes it."""
    from tiered_storage_airflow.hooks.remote_log import RemoteLogHook  # noqa: PLC0415 - loaded with the first request

    return RemoteLogHook(cluster=cluster).get_conn()

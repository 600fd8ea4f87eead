"""The processes of a gateway: one, or several that share its ports under a process that watches them.

A process that ends without being asked is started again, after a pause. SIGTERM and SIGINT end them all: each answers
what its clients have asked, and closes.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import multiprocessing
import os
import resource
import signal
import ssl
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.synchronize import Event
from typing import Any, Final

from tiered_storage.clock import wall_clock
from tiered_storage.errors import ConfigurationError, TieredStorageError
from tiered_storage.gateway.broker_ports import BrokerPorts
from tiered_storage.gateway.deletions.remote_deletions import RemoteDeletions
from tiered_storage.gateway.fetch_errors import ReadFailures
from tiered_storage.gateway.limits.client_quotas import ClientQuotas
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.gateway.limits.remote_share import RemoteShare
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.gateway.remote_partitions import RemotePartitions
from tiered_storage.gateway.served_cluster import GatewayLimits, ServedCluster
from tiered_storage.gateway.server import GatewayServer
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.client_settings import ClientSettings
from tiered_storage.kafka_wire.metadata import ClusterMetadata
from tiered_storage.process.health import Health, needs_of
from tiered_storage.process.logs import set_up_logs
from tiered_storage.remote_log.context import RemoteLogContext, store_options
from tiered_storage.remote_log.metrics.exporter import serve as serve_metrics
from tiered_storage.remote_log.metrics.exposition import CountedStorage
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.settings.properties.types import UNLIMITED
from tiered_storage.settings.settings import Settings

_log = logging.getLogger(__name__)

_RESTART_PAUSE_SECONDS: Final = 1.0
_CHECK_SECONDS: Final = 0.5
_SWITCH_SECONDS: Final = 0.0005
"""How long a thread that reads remote data or metadata may keep the event loop waiting: Python's default is 5 ms."""
_COLLECT_AFTER: Final = (700, 10, 1_000)
"""For gc.set_threshold: young objects as by default, since more of them at once take longer; old ones very rarely."""
_OTHER_FILES: Final = 200
"""Ports, the metadata's database, files or connections of the store."""
_HEAP: Final = (
    ("MALLOC_ARENA_MAX", -8, 1),
    ("MALLOC_TRIM_THRESHOLD_", -1, 64 << 20),
    ("MALLOC_MMAP_THRESHOLD_", -3, 32 << 20),
)
"""Variables of glibc's malloc, their numbers for mallopt, and how many heaps, or bytes."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_THIS_MACHINE: Final = "127.0.0.1"


Serve = Callable[[Settings, int, Callable[[], None]], Coroutine[Any, Any, None]]
"""Serves clients in one process, by its number, until it gets a signal, and calls what it is given once ports are open.
It is a function at the top of a module: other processes get its name."""


def run_gateway(settings: Settings, serve: Serve, say: Callable[[str], None]) -> None:
    """Let `serve` serve clients until SIGTERM or SIGINT; `say` announces that all ports are open.

    Raises ConfigurationError for invalid settings and for ports that cannot be opened, ClusterUnreachableError or
    ClusterRefusedError if the brokers cannot be asked for their addresses, and what opening the remote log raises.
    """
    keep_freed_memory()
    set_up_logs(settings.gateway_log_format, 0)
    allow_open_files(settings.gateway_max_connections, 2 if settings.bootstrap_servers else 1)
    where = f"{settings.gateway_listen_host}:{settings.gateway_port}"
    if settings.gateway_workers == 1:
        asyncio.run(serve(settings, 0, lambda: say(f"the gateway serves {where}")))
        return
    _watch(settings, serve, lambda: say(f"the gateway serves {where} with {settings.gateway_workers} processes"))


def allow_open_files(connections: int, files: int) -> None:
    """Let this process and its workers each open the files that gateway.max.connections connections need.

    A connection has `files`: the client's, and that to the broker if there are brokers.
    """
    needed = files * connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if allowed < needed:
        _log.warning(
            "a process may open %s files only, and gateway.max.connections needs %s: raise that limit (ulimit -n, "
            "LimitNOFILE of a service), or lower gateway.max.connections to %s",
            hard, needed, max((hard - _OTHER_FILES) // files, 1),
        )  # fmt: skip
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def keep_freed_memory() -> None:
    """Keep what is freed for the next chunks and frames, in one heap for all threads that start from now on.

    With glibc's defaults, threads that fetch chunks and free those that were sent get most of them from the kernel
    again, page by page. What the environment sets (MALLOC_…) stays. Source: mallopt(3).
    """
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is None:
        return
    for variable, parameter, value in _HEAP:
        if variable not in os.environ:
            change(parameter, value)


class _Worker:
    """One of several processes."""

    def __init__(self, settings: Settings, serve: Serve, number: int) -> None:
        """Start it."""
        spawning = multiprocessing.get_context("spawn")
        self._serves = spawning.Event()
        self.number = number
        work = (settings, serve, number, self._serves)
        self.process = spawning.Process(target=_work, args=work, name=f"gateway-{number}")
        self.process.start()

    def wait_until_it_serves(self) -> None:
        """Wait until its ports are open. Raises ConfigurationError if it ends before."""
        while not self._serves.wait(_CHECK_SECONDS):
            if self.process.exitcode is not None:
                raise ConfigurationError(
                    f"process {self.number} of the gateway ended with {self.process.exitcode} before it served: its "
                    "messages above have the reason"
                )

    def end(self) -> None:
        """Let it answer what its clients have asked, and wait for its end."""
        self.process.terminate()
        self.process.join()


def _watch(settings: Settings, serve: Serve, on_ready: Callable[[], None]) -> None:
    """Run the workers, and start those again that end by themselves; call `on_ready` once all serve."""
    stopping: list[int] = []
    workers: list[_Worker] = []
    with _handled(stopping.append):
        try:
            workers.extend(_Worker(settings, serve, number) for number in range(settings.gateway_workers))
            for worker in workers:
                worker.wait_until_it_serves()
            on_ready()
            while not stopping:
                for number, worker in enumerate(workers):
                    worker.process.join(_CHECK_SECONDS / len(workers))
                    if worker.process.exitcode is not None and not stopping:
                        _log.error("process %s of the gateway ended with %s", number, worker.process.exitcode)
                        time.sleep(_RESTART_PAUSE_SECONDS)
                        workers[number] = _Worker(settings, serve, number)
        finally:
            for worker in workers:
                worker.process.terminate()
            for worker in workers:
                worker.end()


def _work(settings: Settings, serve: Serve, number: int, serves: Event) -> None:
    """Run one of several workers; set `serves` once its ports are open."""
    keep_freed_memory()
    set_up_logs(settings.gateway_log_format, number)
    try:
        asyncio.run(serve(settings, number, serves.set))
    except TieredStorageError as error:
        _log.error("%s", error)
        raise SystemExit(1) from None


@contextmanager
def _handled(on_signal: Callable[[int], None]) -> Iterator[None]:
    earlier = {each: signal.signal(each, lambda number, _: on_signal(number)) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in earlier.items():
            signal.signal(each, handler)


async def serve_beside_brokers(settings: Settings, number: int, on_ready: Callable[[], None]) -> None:
    """Serve clients in process `number` until it gets a signal; call `on_ready` once the ports are open."""
    tls, stop = server_tls(settings), ended_by_signal()
    with RemoteLogContext.open(settings, wall_clock, store_options(settings)) as context:
        brokers, found = await asyncio.to_thread(_ask_brokers, context)
        metrics = GatewayMetrics()
        health = Health({"brokers": lambda: _ask_brokers(context), **needs_of(context)})
        end_metrics = serve_metrics_of(settings, number, metrics, health)
        counted = replace(context, storage=CountedStorage(context.storage, metrics.fetched))
        deletions = RemoteDeletions(context, metrics)
        with RemoteLogReader(counted, remote_only=True, all_decided=True) as reader:
            cluster = _served_cluster(settings, brokers, found, reader, metrics, deletions)
            server = GatewayServer(settings.gateway_listen_host or _THIS_MACHINE, cluster, brokers, tls)
            try:
                await server.start(sorted(found.brokers))
                await serve_until(stop, health, on_ready)
                await server.stop()
            finally:
                await asyncio.to_thread(deletions.close)
                end_metrics()


def _served_cluster(
    settings: Settings,
    brokers: ClientSettings,
    found: ClusterMetadata,
    reader: RemoteLogReader,
    metrics: GatewayMetrics,
    deletions: RemoteDeletions,
) -> ServedCluster:
    host = settings.gateway_advertised_host or settings.gateway_listen_host or _THIS_MACHINE
    ports = BrokerPorts(host, settings.gateway_port, brokers.bootstrap)
    for broker in found.brokers.values():
        ports.learn(broker.node_id, broker.address)
    cluster_id = found.cluster_id or settings.cluster_id
    if cluster_id is None:
        raise ConfigurationError("the brokers name no cluster id: set cluster.id")
    budget = MemoryBudget(settings.gateway_memory_max_bytes)
    metrics.show_memory(budget)
    metrics.show_chunks(reader.chunk_counts)
    held = settings.remote_log_reader_cache_memory_bytes
    share = RemoteShare(settings.gateway_remote_fetch_processor_percent)
    most_a_second = settings.gateway_remote_fetch_max_bytes_per_second_per_client
    return ServedCluster(
        ports,
        RemotePartitions(reader, cluster_id, held, budget, share),
        deletions,
        GatewayLimits.of(settings),
        ClientQuotas(None if most_a_second == UNLIMITED else most_a_second),
        budget,
        metrics,
        ReadFailures(metrics),
    )


def _ask_brokers(context: RemoteLogContext) -> tuple[ClientSettings, ClusterMetadata]:
    """Return how brokers are reached, and what they say of their cluster."""
    if not context.settings.bootstrap_servers:
        raise ConfigurationError(
            "the gateway passes requests on to brokers, and the settings name none: set bootstrap.servers"
        )
    with ClusterClient.by_properties(context.source.access, context.settings.cluster_id) as client:
        return client.settings, client.metadata(())


def ended_by_signal() -> asyncio.Event:
    """Return what a signal to end this process sets."""
    stop = asyncio.Event()
    for each in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    return stop


def server_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context for clients; None: they connect without. Raises ConfigurationError."""
    certificate, key = settings.gateway_ssl_certificate_location, settings.gateway_ssl_key_location
    if certificate is None:
        if key is not None:
            raise ConfigurationError(
                "gateway.ssl.key.location is set without gateway.ssl.certificate.location: set both"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{certificate} and {key or certificate}: not a certificate and its key in PEM form, without a password: "
            f"correct gateway.ssl.certificate.location and gateway.ssl.key.location: {error}"
        ) from error
    return context


def _favour_the_event_loop() -> None:
    """Let neither other threads nor collections of garbage stop all connections of this process for long."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    # A collection of everything takes 0.1 s, and finds little: reference counts free the rest.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


async def serve_until(stop: asyncio.Event, health: Health, on_ready: Callable[[], None]) -> None:
    """Report this process as ready, now that its ports are open, until `stop` is set; connections are drained after
    that."""
    _favour_the_event_loop()
    health.start()
    health.is_serving = True
    on_ready()
    try:
        while not stop.is_set():
            health.beat()
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _CHECK_SECONDS)
    finally:
        health.is_serving = False
        health.stop()


def serve_metrics_of(settings: Settings, number: int, metrics: GatewayMetrics, health: Health) -> Callable[[], None]:
    """Serve this process' metrics and its health, if a port is set; return what ends that."""
    if not settings.gateway_metrics_port:
        return lambda: None
    port = settings.gateway_metrics_port + number
    pages = {"/health": health.health, "/ready": health.ready}
    return serve_metrics(port, metrics, setting="gateway.metrics.port", pages=pages)

from __future__ import annotations

import signal
import socket
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.command_line import mentions, run_on
from support.remote_logs import ORDERS_0, RemoteLogFiles, a_remote_log, ranges, segments_of, unsynced
from support.waiting import wait_for
from tiered_storage.cli.common import service_process
from tiered_storage.cli.common.output import Output
from tiered_storage.errors import ConfigurationError, LogDirectoryLockedError, TieredStorageError
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.process import logs
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.service.assignments import Assignments
from tiered_storage.remote_log.service.service import RemoteLogService
from tiered_storage_airflow.demo_cluster.brokers import free_ports

ALL = [(0, 9), (10, 19), (20, 29)]


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """What a signal sets; this process keeps its log and its handlers of signals."""
    stop = threading.Event()
    monkeypatch.setattr(service_process, "stopped_by_signal", lambda: stop)
    monkeypatch.setattr(logs, "set_up_logs", lambda *_: None)
    return stop


def is_copied(files: RemoteLogFiles) -> bool:
    with files.open() as remote_log:
        return ranges(segments_of(remote_log)) == ALL


def test_it_runs_until_it_is_stopped_and_shows_how_it_does(tmp_path: Path, stop: threading.Event) -> None:
    [port] = free_ports(1)
    files = a_remote_log(tmp_path, service_metrics_port=port)
    files.config  # noqa: B018 - writes the file
    seen: list[int] = []

    def watch() -> None:
        try:
            wait_for(lambda: is_copied(files))
            wait_for(lambda: httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200)
            seen.extend(httpx.get(f"http://127.0.0.1:{port}/{page}").status_code for page in ("health", "metrics"))
        finally:
            stop.set()

    with unsynced():
        watching = threading.Thread(target=watch)
        watching.start()
        result = run_on(files, "service")
        watching.join()

    assert (result.exit_code, seen) == (0, [200, 200]), result.err
    assert mentions(result.err, "the service runs", "the service ended")


def test_a_broker_needs_a_cluster(tmp_path: Path, stop: threading.Event) -> None:
    stop.set()
    result = run_on(a_remote_log(tmp_path), "service", "--broker", 1)

    assert result.exit_code == 1
    assert mentions(result.err, "broker 1", "bootstrap.servers")


def test_a_directory_needs_a_broker(tmp_path: Path, stop: threading.Event) -> None:
    stop.set()
    result = run_on(a_remote_log(tmp_path), "service", "--directory", tmp_path / "follower")

    assert result.exit_code == 1
    assert mentions(result.err, "--broker")
    assert not (tmp_path / "follower").exists()


class FakeFollowers:
    """Followers that count how often they are closed."""

    closed = 0

    def __call__(self, _: TopicIdPartition) -> bool:
        return False

    def release(self, partition: TopicIdPartition) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("end", ["in order", "a port in use", "turns that hang"])
def test_followers_are_closed_once_unless_a_turn_goes_on(
    tmp_path: Path, stop: threading.Event, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    followers = FakeFollowers()
    monkeypatch.setattr(service_process, "_followers", lambda *_: followers)
    if end == "turns that hang":
        monkeypatch.setattr(RemoteLogService, "stop", lambda *_: False)
    stop.set()
    with socket.create_server(("127.0.0.1", 0)) as used:
        settings = {"service_metrics_port": used.getsockname()[1]} if end == "a port in use" else {}
        refused = pytest.raises(ConfigurationError) if settings else nullcontext()
        with unsynced(), a_remote_log(tmp_path, **settings).open() as remote_log, refused:
            options = service_process.ServiceOptions(EVERYTHING)
            service_process.serve_partitions(remote_log, options, stop, Output(as_json=False))

    assert followers.closed == (0 if end == "turns that hang" else 1)


def test_any_second_signal_ends_the_process_at_once() -> None:
    handlers = {each: signal.getsignal(each) for each in service_process._SIGNALS}
    try:
        stop = service_process.stopped_by_signal()
        assert not stop.is_set()
        signal.raise_signal(signal.SIGTERM)

        assert stop.is_set()
        assert {signal.getsignal(each) for each in handlers} == {signal.SIG_DFL}
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)


def test_what_a_person_should_know_of_the_source_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Looks:
        notices = ("the cluster's clock is apart",)

        def refresh(self) -> None:
            pass

    looking: Any = service_process.AssignmentLoop(Looks())  # type: ignore[arg-type]
    for _ in range(2):
        looking.refresh()

    assert [record.getMessage() for record in caplog.records] == list(Looks.notices)


def test_a_look_that_fails_leaves_all_as_it_is_and_is_reported(tmp_path: Path, stop: threading.Event) -> None:
    files = a_remote_log(tmp_path)
    stop.set()
    with files.open() as remote_log:
        running = RemoteLogService(remote_log, "service")
        looking = service_process.AssignmentLoop(Assignments(remote_log.context, running.schedule, EVERYTHING))
        with pytest.raises(TieredStorageError, match="yet"):
            looking.ensure_done()
        looking.run(stop, 0, lambda: None)
        looking.ensure_done()

        with LogDirectoryWriter.open(files.log_directory):
            looking.refresh()
        with pytest.raises(LogDirectoryLockedError):
            looking.ensure_done()
    assert running.schedule.partitions() == [ORDERS_0]
